"""Train the tokenizer and the network on `corpus.txt`, and write `weights.bin`, which the guest carries.

Takes half a minute. The same NumPy on the same processor gives the same bytes; others give weights that do as well.
Usage: train.py [--steps N]

The file, all little-endian: ``TWLM``, then uint32: version 1, vocabulary, context, width, heads, hidden, layers,
merges; then a pair of uint16 for each merge (token 259 + i stands for those two, one after the other), and zeros up to
a multiple of 4 bytes; then cosines and sines of the rotary positions, ``(context, width / heads / 2) float32`` each;
then the tensors in the order of `Shape.tensors`, float32. Tokens 0 to 255 are bytes, 256 begins a question, 257 an
answer, 258 ends it.
"""

from __future__ import annotations

import argparse
import itertools
import struct
from collections import Counter
from pathlib import Path

import numpy as np
from network import Array, Node, Shape, angles, backward, draw, run

FOLDER = Path(__file__).parent
QUESTION, ANSWER, END, FIRST_MERGE = 256, 257, 258, 259
MERGES = 125
BATCH = 24


def find_merges(text: bytes, count: int) -> list[tuple[int, int]]:
    """Return the pairs that byte-pair encoding merges, most frequent first. Source: Sennrich et al., 2016."""
    lines = [list(line) for line in text.splitlines()]
    merges: list[tuple[int, int]] = []
    while len(merges) < count:
        pairs = Counter(pair for line in lines for pair in itertools.pairwise(line))
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        lines = [merge(line, best, FIRST_MERGE + len(merges)) for line in lines]
        merges.append(best)
    return merges


def merge(tokens: list[int], pair: tuple[int, int], into: int) -> list[int]:
    """Replace every occurrence of a pair, from the left."""
    merged, i = [], 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            merged.append(into)
            i += 2
        else:
            merged.append(tokens[i])
            i += 1
    return merged


def encode(text: str, merges: list[tuple[int, int]]) -> list[int]:
    """Return the tokens of a text."""
    tokens = list(text.encode())
    for index, pair in enumerate(merges):
        tokens = merge(tokens, pair, FIRST_MERGE + index)
    return tokens


def read_corpus() -> list[tuple[str, str]]:
    """Return questions and answers."""
    pairs = [line.split("|") for line in (FOLDER / "corpus.txt").read_text().splitlines()]
    return [(question, answer) for question, answer in pairs]


def make_texts(merges: list[tuple[int, int]], context: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the conversations as tokens ``(texts, context) int64``, and which of them count: those of answers."""
    tokens, counts = [], []
    for question, answer in read_corpus():
        for spelled in {question, question.lower(), question.rstrip("?")}:
            before = [QUESTION, *encode(spelled, merges), ANSWER]
            after = [*encode(answer, merges), END]
            text = before + after
            tokens.append(text + [END] * (context - len(text)))
            counts.append([0] * (len(before) - 1) + [1] * len(after) + [0] * (context - len(text) + 1))
    return np.array(tokens), np.array(counts, np.float32)


def step_loss(logits: Array, wanted: np.ndarray, counts: np.ndarray) -> tuple[float, Array]:
    """Return the cross-entropy of the tokens that count, and its gradient."""
    shifted = logits - logits.max(-1, keepdims=True)
    total = np.exp(shifted).sum(-1, keepdims=True)
    chosen = np.take_along_axis(shifted - np.log(total), wanted[..., None], -1)[..., 0]
    gradient = np.exp(shifted) / total
    np.put_along_axis(gradient, wanted[..., None], np.take_along_axis(gradient, wanted[..., None], -1) - 1, -1)
    weight = counts / counts.sum()
    return float(-(chosen * weight).sum()), (gradient * weight[..., None]).astype(np.float32)


def train(shape: Shape, texts: np.ndarray, counts: np.ndarray, steps: int) -> dict[str, Array]:
    """Return weights after so many steps of Adam. Source: Kingma and Ba, 2015."""
    weights = draw(shape, 1)
    means = {name: np.zeros_like(value) for name, value in weights.items()}
    squares = {name: np.zeros_like(value) for name, value in weights.items()}
    random = np.random.default_rng(2)
    for step in range(1, steps + 1):
        rows = random.choice(len(texts), BATCH, replace=False)
        length = int((counts[rows].sum(0) > 0).nonzero()[0].max()) + 2
        nodes = {name: Node(value) for name, value in weights.items()}
        _, logits = run(shape, nodes, texts[rows, : length - 1])
        loss, gradient = step_loss(logits.value, texts[rows, 1:length], counts[rows, : length - 1])
        backward(logits, gradient)
        rate = 4e-3 * min(1.0, step / 50) * (0.5 + 0.5 * np.cos(np.pi * step / steps)) + 1e-5
        for name, node in nodes.items():
            change = node.gradient if node.gradient is not None else np.zeros_like(node.value)
            means[name] = 0.9 * means[name] + 0.1 * change
            squares[name] = 0.99 * squares[name] + 0.01 * change**2
            moved = means[name] / (1 - 0.9**step) / (np.sqrt(squares[name] / (1 - 0.99**step)) + 1e-8)
            weights[name] = (weights[name] - np.float32(rate) * moved).astype(np.float32)
        if step % 100 == 0:
            print(f"step {step} of {steps}: loss {loss:.4f}", flush=True)
    return weights


def write(shape: Shape, merges: list[tuple[int, int]], weights: dict[str, Array]) -> bytes:
    """Return the file's bytes."""
    head = (1, shape.vocabulary, shape.context, shape.width, shape.heads, shape.hidden, shape.layers, len(merges))
    pairs = np.array(merges, "<u2").tobytes()
    padding = bytes(-len(pairs) % 4)
    tables = b"".join(table.astype("<f4").tobytes() for table in angles(shape))
    tensors = b"".join(weights[name].astype("<f4").tobytes() for name in shape.tensors())
    return b"TWLM" + struct.pack("<8I", *head) + pairs + padding + tables + tensors


def read(data: bytes) -> tuple[Shape, list[tuple[int, int]], dict[str, Array]]:
    """Return shape, merges and weights of a file that `write` made."""
    _, vocabulary, context, width, heads, hidden, layers, count = struct.unpack_from("<8I", data, 4)
    shape = Shape(vocabulary, context, width, heads, hidden, layers)
    merges = [(int(a), int(b)) for a, b in np.frombuffer(data, "<u2", 2 * count, 36).reshape(-1, 2)]
    at = 36 + -(-4 * count // 4) * 4 + 4 * context * (width // heads)
    weights = {}
    for name, size in shape.tensors().items():
        weights[name] = np.frombuffer(data, "<f4", int(np.prod(size)), at).reshape(size)
        at += weights[name].nbytes
    return shape, merges, weights


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=900)
    steps = parser.parse_args().steps
    merges = find_merges((FOLDER / "corpus.txt").read_bytes().replace(b"|", b"\n"), MERGES)
    shape = Shape(FIRST_MERGE + len(merges))
    texts, counts = make_texts(merges, shape.context)
    weights = train(shape, texts, counts, steps)
    (FOLDER / "weights.bin").write_bytes(write(shape, merges, weights))
    print(f"weights.bin: {sum(value.size for value in weights.values())} weights, {shape.vocabulary} tokens")


if __name__ == "__main__":
    main()
