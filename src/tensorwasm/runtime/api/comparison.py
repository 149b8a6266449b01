"""Runs of a function with its loops offloaded, beside WebAssembly alone: results, traps and all of memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from tensorwasm.errors import GuestError, GuestTrap, InvalidPointer
from tensorwasm.guest.engine import codec
from tensorwasm.runtime.invoke.full import open_sandbox
from tensorwasm.runtime.invoke.invocation import make_call
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from tensorwasm.guest.sandbox.instance import Instance
    from tensorwasm.runtime.api.function import Function

_PIECE_BYTES: Final = MIB


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """A function to call, and its arguments."""

    export: str
    args: Sequence[object] = ()


class CallSpan(NamedTuple):
    """When a call ran, on the clock of `time.perf_counter_ns`."""

    export: str
    args: Sequence[object]
    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class SandboxRun:
    """What calls in one sandbox came to.

    Attributes:
        outcomes: of each call, the bits of its results.
        ending: how the guest ended in the call after these, in a word; empty if there was none.
        times_s: of each repetition of the last call.
        results: of the last call, as a JSON array.
        spans: of all calls, the one that ended with an error included.
    """

    outcomes: list[tuple[int, ...]] = field(default_factory=list)
    ending: str = ""
    times_s: list[float] = field(default_factory=list)
    results: str = "[]"
    spans: list[CallSpan] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OffloadComparison:
    """Two runs of the same calls, and the first difference between them, in words; empty without one."""

    plain: SandboxRun
    offloaded: SandboxRun
    difference: str


def compare_runs(
    plain: Function, offloaded: Function, setup: Sequence[MeasuredCall], call: MeasuredCall, repeat: int = 1
) -> OffloadComparison:
    """Make the same calls in a fresh sandbox of each function; raise what `Function.invoke` raises before a call.

    Args:
        plain: the module as it is.
        offloaded: the same module, loaded with ``offload``.
        setup: calls to make first.
        call: the call to measure.
        repeat: how often to make it.
    """
    with _open(plain, call) as one, _open(offloaded, call) as other:
        left, right = (_run(sandbox, setup, call, repeat) for sandbox in (one, other))
        return OffloadComparison(left, right, _difference(left, right) or _memory_difference(one, other))


def run_alone(function: Function, setup: Sequence[MeasuredCall], call: MeasuredCall, repeat: int = 1) -> SandboxRun:
    """Make calls in a fresh sandbox; arguments are those of `compare_runs`."""
    with _open(function, call) as sandbox:
        return _run(sandbox, setup, call, repeat)


@contextmanager
def _open(function: Function, call: MeasuredCall) -> Iterator[Instance]:
    with open_sandbox(make_call(function, call.export, call.args)) as (sandbox, _):
        yield sandbox


def _run(sandbox: Instance, setup: Sequence[MeasuredCall], call: MeasuredCall, repeat: int) -> SandboxRun:
    """Make calls one after the other, up to one that ends with an error of the guest."""
    run = SandboxRun()
    for number, each in enumerate([*setup, *[call] * repeat]):
        began_ns = time.perf_counter_ns()
        try:
            values = sandbox.call(each.export, each.args)
        except GuestError as error:
            run.ending = (error.trap if isinstance(error, GuestTrap) else "") or error.kind
            break
        finally:
            run.spans.append(CallSpan(each.export, each.args, began_ns, time.perf_counter_ns()))
        if number >= len(setup):
            run.times_s.append((run.spans[-1].ended_ns - began_ns) * 1e-9)
        types = sandbox.module.plan(each.export).results
        run.outcomes.append(tuple(codec.encode(types, values)))
        run.results = codec.render(types, values)
    return run


def _difference(left: SandboxRun, right: SandboxRun) -> str:
    if left.outcomes != right.outcomes:
        pairs = zip_longest(left.outcomes, right.outcomes)
        number = next(number for number, (one, other) in enumerate(pairs, 1) if one != other)
        return f"call {number} came to something else"
    if left.ending != right.ending:
        return f"the guest ended with {right.ending or 'no error'}, not with {left.ending or 'none'}"
    return ""


def _memory_difference(one: Instance, other: Instance) -> str:
    try:
        left, right = one.memory, other.memory
    except InvalidPointer:  # there is no memory to see
        return ""
    if left.size_bytes != right.size_bytes:
        return f"the memory has {right.size_bytes} bytes, not {left.size_bytes}"
    for start in range(0, left.size_bytes, _PIECE_BYTES):
        length = min(_PIECE_BYTES, left.size_bytes - start)
        expected, found = left.read(start, length), right.read(start, length)
        if expected != found:
            place = next(place for place in range(length) if expected[place] != found[place])
            return f"byte {start + place:#x} of the memory is {found[place]:#04x}, not {expected[place]:#04x}"
    return ""
