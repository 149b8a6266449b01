"""The language model of ``examples/llm``, its loops elsewhere or not: tokens a second, and whether answers differ.

Its matrices are small, and what it looks back at is longer with every token: it shows what that costs. As in the
service, calls do not wait for code; they are repeated for some time before any is measured, so that there is code.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tensorwasm.bench.harness import read_checkout
from tensorwasm.errors import InternalError

if TYPE_CHECKING:
    from tensorwasm.runtime import Function
    from tensorwasm.runtime.invoke.invocation import Invocation

TRANSFORMER: Final = "llm"
FOLDER: Final = "examples/llm"
WARM_S: Final = 20.0
_SAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class TransformerFigures:
    """The best of some calls.

    Attributes:
        tokens: that a call reads and writes.
        plain_s: of a call with all loops in the guest.
        offloaded_s: of one with loops elsewhere.
        taken: regions that ran elsewhere in it.
        declined: reasons why others did not, with counts.
        same: both give the same answers.
    """

    tokens: int
    plain_s: float
    offloaded_s: float
    taken: int
    declined: tuple[str, ...]
    same: bool

    def to_text(self) -> str:
        """Return both speeds, and what became of the loops."""
        plain, offloaded = (f"{self.tokens / spent_s:.4g}" for spent_s in (self.plain_s, self.offloaded_s))
        ratio = f"x {self.plain_s / self.offloaded_s:.3g}" if self.taken else "declined"
        reasons = ", ".join([f"taken: {self.taken}", *self.declined])
        return f"{TRANSFORMER}: {plain} tokens a second, offloaded {offloaded} ({ratio}); regions: {reasons}"


def transformer_digest() -> str:
    """Return a hash of what a call does."""
    return hashlib.sha256(read_checkout(f"{FOLDER}/llm.wasm") + _request()).hexdigest()


def measure_transformer(
    plain: Callable[[bytes], Function], offloaded: Callable[[bytes], Function]
) -> TransformerFigures:
    """Measure the model, as two functions load it."""
    wasm, request = read_checkout(f"{FOLDER}/llm.wasm"), _request()
    functions = plain(wasm), offloaded(wasm)
    until_s = time.monotonic() + WARM_S
    outcomes = [_call(function, request) for function in functions]
    while time.monotonic() < until_s:
        outcomes[1] = _call(functions[1], request)
    plain_s, offloaded_s = (min(_call(function, request).elapsed_s for _ in range(_SAMPLES)) for function in functions)
    use = outcomes[1].offload
    declined = tuple(f"{reason}: {count}" for reason, count in use.declined) if use is not None else ()
    answers = [b"".join(outcome.chunks) for outcome in outcomes]
    taken = 0 if use is None else use.taken
    return TransformerFigures(_tokens(answers[0]), plain_s, offloaded_s, taken, declined, answers[0] == answers[1])


def _request() -> bytes:
    prompt = read_checkout(f"{FOLDER}/corpus.txt").decode()
    return json.dumps({"kind": "completion", "prompt": prompt}).encode()


def _call(function: Function, request: bytes) -> Invocation:
    return function.invoke("main", input=request)


def _tokens(answer: bytes) -> int:
    """Return how many tokens an answer is of, those of its prompt included."""
    counts: dict[str, Any] = {}
    for line in answer.splitlines():
        counts |= json.loads(line).get("usage", {})
    if counts.keys() != {"prompt_tokens", "completion_tokens"}:
        raise InternalError(f"the model answered {answer[:200]!r}")
    return sum(counts.values())
