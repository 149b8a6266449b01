"""Measures one program: in wasmtime, as native code, and with its loops offloaded.

Each call of ``run`` is timed, and follows a call of ``init`` that is not. All of memory is compared by its hash.
Figures can be kept in a file, for a run that is cut short or is repeated after a change.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tensorwasm.bench.figures import MissingPeer
from tensorwasm.bench.harness import read_checkout
from tensorwasm.bench.offload.programs import BenchProgram
from tensorwasm.bench.peers.host import WasmtimeGuest
from tensorwasm.bench.peers.native import time_native
from tensorwasm.errors import GuestError, InternalError, InvalidArgs
from tensorwasm.runtime.invoke.full import open_sandbox
from tensorwasm.runtime.invoke.invocation import make_call
from tensorwasm.values import MIB, Limits
from tensorwasm.wasm.module import decode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tensorwasm.guest.sandbox.instance import Instance
    from tensorwasm.runtime import Function
    from tensorwasm.runtime.invoke.invocation import Invocation

    _Figures = TypeVar("_Figures", bound=DataclassInstance)

LIMITS: Final = Limits(memory_bytes=1024 * MIB, wall_s=3600.0)
"""Of the programs; the largest has 700 MiB."""

TRANSFORMER: Final = "llm"
_MODEL: Final = "examples/llm"
WARM_S: Final = 20.0
"""How long the transformer is called before it is measured."""
_SAMPLES: Final = 5
_ENOUGH_S: Final = 2.0
"""No further sample begins after so many seconds of samples."""


@dataclass(frozen=True, slots=True)
class PlainFigures:
    """A program in wasmtime-py with its default engine, and as native code.

    Attributes:
        best_s: of the best call.
        other_memory: hash of the memory after the call with the other sizes.
        memory: hash of the memory after the others.
        native_s: of native code; None without a compiler.
    """

    best_s: float
    other_memory: str
    memory: str
    native_s: float | None


@dataclass(frozen=True, slots=True)
class OffloadedFigures:
    """A program with its loops offloaded.

    Attributes:
        cold_s: of the first call of a fresh function, which waits for plans and code.
        new_s: of the first call with its sizes, after one with other sizes.
        later_s: of the best call after it.
        taken: how often a region of ``run`` was taken in all calls but the cold one.
        regions: of ``run``: how often each was taken, and why it was not, with counts.
        difference: which calls left another memory than wasmtime; empty if none did.
    """

    cold_s: float
    new_s: float
    later_s: float
    taken: int
    regions: tuple[str, ...]
    difference: str


class KeptFigures:
    """Figures by program and by what they depend on, in a JSON file that is written after each."""

    def __init__(self, path: Path | None) -> None:
        """Read a file, which need not be there yet; without one, keep nothing beyond this process.

        Raises:
            InvalidArgs: the file is not one of these.
        """
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            try:
                self._known = dict(json.loads(path.read_text()))
            except (OSError, ValueError, TypeError) as error:
                raise InvalidArgs(f"{path} keeps no figures: {error}") from None

    def find(self, kind: type[_Figures], program: str, depends_on: Sequence[str]) -> _Figures | None:
        """Return figures of a program, None if there are none that depend on the same."""
        found = self._known.get(_key(kind, program, depends_on))
        if found is None:
            return None
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})

    def keep(self, figures: _Figures, program: str, depends_on: Sequence[str]) -> _Figures:
        """Keep figures; return them."""
        self._known[_key(type(figures), program, depends_on)] = asdict(figures)
        if self._path is not None:
            written = self._path.with_name(self._path.name + ".new")
            written.write_text(json.dumps(self._known, indent=1) + "\n")
            written.replace(self._path)
        return figures


def measure_plain(program: BenchProgram) -> PlainFigures:
    """Measure a program in wasmtime and as native code."""
    with closing(WasmtimeGuest(program.wasm)) as guest:
        time_pair(guest.call, program.other_sizes)
        other_memory = _digest(guest.memory())
        times = _sample(lambda: time_pair(guest.call, program.sizes))
        memory = _digest(guest.memory())
    return PlainFigures(min(times), other_memory, memory, _native_s(program))


def measure_offloaded(
    load: Callable[[bytes], Function], program: BenchProgram, plain: PlainFigures
) -> OffloadedFigures:
    """Measure a program that ``load`` deploys with its loops offloaded; raise `InternalError` if it traps."""
    differences = []

    def check(name: str, sandbox: Instance, expected: str) -> None:
        memory = sandbox.memory
        if _digest(memory.view(0, memory.size_bytes)) != expected:
            differences.append(f"memory differs after the {name} call")

    function = load(program.wasm)
    try:
        with opened(load(program.wasm), program) as sandbox:
            cold_s = time_pair(sandbox.call, program.sizes)
            check("cold", sandbox, plain.memory)
        with opened(function, program) as sandbox:
            time_pair(sandbox.call, program.other_sizes)
            check("first", sandbox, plain.other_memory)
            new_s = time_pair(sandbox.call, program.sizes)
            check("second", sandbox, plain.memory)
            later_s = min(_sample(lambda: time_pair(sandbox.call, program.sizes)))
            check("last", sandbox, plain.memory)
    except GuestError as error:
        raise InternalError(f"{program.name} ended: {error.message}") from error
    taken, regions = count_taken(function, program.wasm)
    return OffloadedFigures(cold_s, new_s, later_s, taken, regions, "; ".join(differences))


def _native_s(program: BenchProgram) -> float | None:
    try:
        return min(time_native(program.source, program.header, program.sizes, _SAMPLES, _ENOUGH_S))
    except MissingPeer:
        return None


def time_pair(call: Callable[[str, Sequence[int]], object], sizes: Sequence[int]) -> float:
    """Return the seconds of ``run``, after ``init``."""
    call("init", sizes)
    began_s = time.perf_counter()
    call("run", sizes)
    return time.perf_counter() - began_s


def _sample(measured: Callable[[], float]) -> list[float]:
    times: list[float] = []
    while len(times) < _SAMPLES and sum(times) < _ENOUGH_S:
        times.append(measured())
    return times


@contextmanager
def opened(function: Function, program: BenchProgram) -> Iterator[Instance]:
    """Yield a sandbox in which a program can be called."""
    with open_sandbox(make_call(function, "run", program.sizes)) as (sandbox, _):
        yield sandbox


def _digest(memory: memoryview) -> str:
    return hashlib.sha256(memory).hexdigest()


def count_taken(function: Function, wasm: bytes) -> tuple[int, tuple[str, ...]]:
    """Return how often regions of ``run`` were taken, and what became of each."""
    offloading = function.offloading
    if offloading is None:
        return 0, ()
    exported = {item.name: item.index for item in decode(wasm).exports if item.kind == "func"}
    regions, taken = [], 0
    for number, (region, found) in enumerate(zip(offloading.regions, offloading.statistics, strict=True)):
        if region.function != exported["run"]:
            continue
        taken += found.taken
        reasons: Counter[str] = Counter()
        for refusal, count in found.declined.items():
            reasons[refusal.words] += count
        words = [f"{name}: {count}" for name, count in reasons.most_common()]
        regions.append(f"region {number}: {', '.join([f'taken: {found.taken}', *words])}")
    return taken, tuple(regions)


def _key(kind: type[DataclassInstance], program: str, depends_on: Sequence[str]) -> str:
    parts = [kind.__name__, *(field.name for field in fields(kind)), *depends_on]
    return f"{program} {hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class TransformerFigures:
    """The language model of ``examples/llm`` with its loops elsewhere, and without: the best of some calls.

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
    return hashlib.sha256(read_checkout(f"{_MODEL}/llm.wasm") + _request()).hexdigest()


def measure_transformer(
    plain: Callable[[bytes], Function], offloaded: Callable[[bytes], Function]
) -> TransformerFigures:
    """Measure the language model, as two functions load it.

    Its matrices are small, and what it looks back at is longer with every token: it shows what that costs. As in the
    service, calls do not wait for code; they are repeated for some time before, so that there is code.
    """
    wasm, request = read_checkout(f"{_MODEL}/llm.wasm"), _request()
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
    prompt = read_checkout(f"{_MODEL}/corpus.txt").decode()
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
