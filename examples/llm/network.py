"""The transformer in NumPy, with gradients: what `train.py` trains, and what the guest in C is compared with.

Two layers of the kind that Llama uses: RMS normalisation, rotary positions, causal attention, a gated feed-forward
part, and an output that shares its weights with the embedding.

Source: Vaswani et al., 2017; Zhang and Sennrich, 2019 (RMSNorm); Su et al., 2021 (rotary positions); Shazeer, 2020
(SwiGLU).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
EPSILON = np.float32(1e-5)


@dataclass(frozen=True)
class Shape:
    """How large a network is.

    Attributes:
        vocabulary: tokens.
        context: most tokens of a text.
        width: numbers of a token's state, even for each head.
        heads: of attention.
        hidden: numbers inside of the feed-forward part.
        layers: how many.
    """

    vocabulary: int
    context: int = 128
    width: int = 64
    heads: int = 4
    hidden: int = 128
    layers: int = 2

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the weights' names and shapes, in the order in which they are in a file."""
        width, hidden = self.width, self.hidden
        layer: dict[str, tuple[int, ...]] = {
            "before_attention": (width,),
            "query": (width, width),
            "key": (width, width),
            "value": (width, width),
            "mix": (width, width),
            "before_hidden": (width,),
            "gate": (hidden, width),
            "up": (hidden, width),
            "down": (width, hidden),
        }
        named = {f"{index}.{name}": shape for index in range(self.layers) for name, shape in layer.items()}
        return {"embedding": (self.vocabulary, width), **named, "last": (width,)}


def draw(shape: Shape, seed: int) -> dict[str, Array]:
    """Return random weights."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, size in shape.tensors().items():
        if len(size) == 1:
            weights[name] = np.ones(size, np.float32)
        else:
            weights[name] = (random.standard_normal(size) * (0.5 / np.sqrt(size[-1]))).astype(np.float32)
    return weights


class Node:
    """A value, and how its gradient reaches what it was made of."""

    def __init__(
        self, value: Array, parents: tuple[Node, ...] = (), spread: Callable[[Array], object] | None = None
    ) -> None:
        self.value = value
        self.parents = parents
        self.spread = spread
        self.gradient: Array | None = None

    def add(self, gradient: Array) -> None:
        """Add to the gradient."""
        self.gradient = gradient if self.gradient is None else self.gradient + gradient


def backward(last: Node, gradient: Array) -> None:
    """Compute the gradients of everything that a value was made of."""
    order: list[Node] = []
    seen: set[int] = set()

    def visit(node: Node) -> None:
        if id(node) not in seen:
            seen.add(id(node))
            for parent in node.parents:
                visit(parent)
            order.append(node)

    visit(last)
    last.add(gradient)
    for node in reversed(order):
        if node.spread is not None and node.gradient is not None:
            node.spread(node.gradient)


def apply(weight: Node, x: Node) -> Node:
    """Return x times the transposed weight: ``(..., in) float32`` to ``(..., out)``."""

    def spread(gradient: Array) -> None:
        rows, inputs = gradient.reshape(-1, gradient.shape[-1]), x.value.reshape(-1, x.value.shape[-1])
        weight.add(rows.T @ inputs)
        x.add(gradient @ weight.value)

    return Node(x.value @ weight.value.T, (weight, x), spread)


def plus(a: Node, b: Node) -> Node:
    """Return the sum of two values of one shape."""

    def spread(gradient: Array) -> None:
        a.add(gradient)
        b.add(gradient)

    return Node(a.value + b.value, (a, b), spread)


def normalise(weight: Node, x: Node) -> Node:
    """Return x over its root mean square, times the weight."""
    scale = 1 / np.sqrt((x.value**2).mean(-1, keepdims=True) + EPSILON)
    unit = x.value * scale

    def spread(gradient: Array) -> None:
        weight.add((gradient * unit).reshape(-1, unit.shape[-1]).sum(0))
        inner = gradient * weight.value
        x.add(scale * (inner - unit * (inner * unit).mean(-1, keepdims=True)))

    return Node(unit * weight.value, (weight, x), spread)


def gated(gate: Node, up: Node) -> Node:
    """Return the gate's sigmoid linear unit times the other."""
    sigmoid = 1 / (1 + np.exp(-gate.value))
    silu = gate.value * sigmoid

    def spread(gradient: Array) -> None:
        gate.add(gradient * up.value * (sigmoid + silu * (1 - sigmoid)))
        up.add(gradient * silu)

    return Node(silu * up.value, (gate, up), spread)


def angles(shape: Shape) -> tuple[Array, Array]:
    """Return cosines and sines of rotary positions, ``(context, half of a head) float32`` each."""
    half = shape.width // shape.heads // 2
    turns = np.arange(shape.context)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


def rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """Turn the halves of each head against each other by the position's angle."""
    a, b = np.split(x, 2, -1)
    return np.concatenate((a * cosine - b * sine, a * sine + b * cosine), -1)


def attend(shape: Shape, query: Node, key: Node, value: Node) -> Node:
    """Return causal attention over ``(batch, length, width) float32``."""
    batch, length, width = query.value.shape
    size = width // shape.heads
    cosine, sine = (each[:length] for each in angles(shape))

    def split(x: Array) -> Array:
        return x.reshape(batch, length, shape.heads, size).transpose(0, 2, 1, 3)

    def join(x: Array) -> Array:
        return x.transpose(0, 2, 1, 3).reshape(batch, length, width)

    q, k, v = rotate(split(query.value), cosine, sine), rotate(split(key.value), cosine, sine), split(value.value)
    scores = q @ k.transpose(0, 1, 3, 2) / np.float32(np.sqrt(size))
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, np.float32(-1e9))
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    shares = scores / scores.sum(-1, keepdims=True)

    def spread(gradient: Array) -> None:
        into = split(gradient)
        value.add(join(shares.transpose(0, 1, 3, 2) @ into))
        of_shares = into @ v.transpose(0, 1, 3, 2)
        of_scores = shares * (of_shares - (of_shares * shares).sum(-1, keepdims=True)) / np.float32(np.sqrt(size))
        query.add(join(rotate(of_scores @ k, cosine, -sine)))
        key.add(join(rotate(of_scores.transpose(0, 1, 3, 2) @ q, cosine, -sine)))

    return Node(join(shares @ v), (query, key, value), spread)


def run(shape: Shape, weights: dict[str, Node], tokens: npt.NDArray[np.int64]) -> tuple[Node, Node]:
    """Return the last states ``(batch, length, width)`` and the logits ``(batch, length, vocabulary)`` of texts."""
    embedding = weights["embedding"]

    def spread(gradient: Array) -> None:
        total = np.zeros_like(embedding.value)
        np.add.at(total, tokens, gradient)
        embedding.add(total)

    x = Node(embedding.value[tokens], (embedding,), spread)
    for index in range(shape.layers):
        layer = {name.split(".")[1]: node for name, node in weights.items() if name.startswith(f"{index}.")}
        h = normalise(layer["before_attention"], x)
        seen = attend(shape, apply(layer["query"], h), apply(layer["key"], h), apply(layer["value"], h))
        x = plus(x, apply(layer["mix"], seen))
        h = normalise(layer["before_hidden"], x)
        x = plus(x, apply(layer["down"], gated(apply(layer["gate"], h), apply(layer["up"], h))))
    states = normalise(weights["last"], x)
    return states, apply(embedding, states)
