"""``mbarrier``: barriers that are objects in shared memory.

The object is a 64-bit word whose encoding the ISA leaves open. Here, from the low end: 20 bits of expected arrivals, 20
of pending arrivals, 21 of the transaction count (offset by 2**20), one of phase parity, and two that mark a valid
object. The state that arrivals return is the word before them.

Lanes that meet at one object in one step take their turns in the order of their ids.

Source: PTX ISA 9.7.13.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.ops import LaneMemory, LaneMemoryOp, Lanes

MAX_COUNT: Final = (1 << 20) - 1
"""Largest arrival and transaction counts (9.7.13.15.3)."""

_WORD: Final = np.dtype(np.uint64)
_TX_ZERO: Final = 1 << 20
_PHASE_SHIFT: Final = 61
_MARK: Final = 0b10

SPACES: Final = {"": "generic", "shared": "shared", "shared::cta": "shared"}
_ARRIVE_SEMANTICS: Final = ("", "release.cta", "release.cluster", "relaxed.cta", "relaxed.cluster")
_WAIT_SEMANTICS: Final = ("", "acquire.cta", "acquire.cluster", "relaxed.cta", "relaxed.cluster")
_TX_SEMANTICS: Final = ("", "relaxed.cta", "relaxed.cluster")


@dataclass(slots=True)
class Barrier:
    """The object, decoded.

    Attributes:
        expected: arrivals that each phase waits for.
        pending: arrivals that the current phase still waits for.
        tx: transactions that the current phase still waits for; negative if they came early.
        phase: parity of the current phase.
    """

    expected: int
    pending: int
    tx: int = 0
    phase: int = 0

    @classmethod
    def decode(cls, word: int) -> Barrier | None:
        """Read a word; None if it is no valid object."""
        if word >> 62 != _MARK:
            return None
        tx = (word >> 40 & ((1 << 21) - 1)) - _TX_ZERO
        return cls(word & MAX_COUNT, word >> 20 & MAX_COUNT, tx, word >> _PHASE_SHIFT & 1)

    def encode(self) -> int:
        """Return the word."""
        counts = self.expected | self.pending << 20 | (self.tx + _TX_ZERO) << 40
        return counts | self.phase << _PHASE_SHIFT | _MARK << 62

    def complete(self) -> bool:
        """Begin the next phase if nothing is pending; tell whether it began."""
        if self.pending or self.tx:
            return False
        self.pending, self.phase = self.expected, self.phase ^ 1
        return True


Change = Callable[[Barrier, int], str | None]
"""Changes a barrier by an amount; returns why it may not, if so."""


def arrive(barrier: Barrier, count: int) -> str | None:
    """Take ``count`` arrivals off the pending ones."""
    if not 1 <= count <= barrier.pending:
        return f"{count} arrivals at an mbarrier that waits for {barrier.pending}"
    barrier.pending -= count
    return None


def arrive_no_complete(barrier: Barrier, count: int) -> str | None:
    """Arrive with the promise that the phase does not end by it."""
    if count == barrier.pending and not barrier.tx:
        return "a .noComplete arrival that completes the mbarrier's phase"
    return arrive(barrier, count)


def drop(barrier: Barrier, count: int) -> str | None:
    """Expect ``count`` arrivals fewer from the next phase on."""
    if count > barrier.expected:
        return f"{count} arrivals dropped from an mbarrier that expects {barrier.expected}"
    barrier.expected -= count
    return None


def expect(barrier: Barrier, count: int) -> str | None:
    """Expect ``count`` transactions more."""
    barrier.tx += count
    return _check_tx(barrier)


def transact(barrier: Barrier, count: int) -> str | None:
    """Complete ``count`` transactions."""
    barrier.tx -= count
    return _check_tx(barrier)


def raise_pending(barrier: Barrier, count: int) -> str | None:
    """Wait for ``count`` arrivals more in this phase (``cp.async.mbarrier.arrive`` without ``.noinc``)."""
    if barrier.pending + count > MAX_COUNT:
        return f"an mbarrier cannot wait for more than {MAX_COUNT} arrivals"
    barrier.pending += count
    return None


def _check_tx(barrier: Barrier) -> str | None:
    if abs(barrier.tx) > MAX_COUNT:
        return f"an mbarrier cannot count more than {MAX_COUNT} transactions"
    return None


# ------------------------------------------------------------------------------------------------ many lanes at once


def update(
    memory: LaneMemory,
    space: str,
    lanes: NDArray[np.int64],
    addresses: NDArray[np.uint64],
    *steps: tuple[Change, Lanes | int],
) -> Lanes:
    """Change the barriers of many lanes, one lane after the other, and end the phases that are complete.

    Args:
        memory: where the objects are.
        space: space of the addresses.
        lanes: who changes, ``(lanes,)``.
        addresses: of the objects, ``(lanes,)``.
        steps: changes with their amounts, applied in order.

    Returns:
        The word of each lane's object before its change, ``(lanes,)`` uint64.
    """
    words = memory.load(space, lanes, addresses, _WORD, atomic=True)[:, 0].copy()
    amounts = [(change, np.broadcast_to(amount, lanes.shape).tolist()) for change, amount in steps]
    places = list(zip(memory.blocks(lanes).tolist(), addresses.tolist(), strict=True))
    barriers: dict[tuple[int, int], Barrier] = {}
    last: dict[tuple[int, int], int] = {}
    completed: list[int] = []
    for index, place in enumerate(places):
        barrier = barriers.get(place) or _decode(memory, int(lanes[index]), int(words[index]))
        barriers[place], last[place] = barrier, index
        words[index] = barrier.encode()
        for change, counts in amounts:
            reason = change(barrier, counts[index])
            if reason:
                memory.fault(int(lanes[index]), reason)
        if barrier.complete():
            completed.append(index)
    ends = np.fromiter(last.values(), np.int64)
    values = np.array([[barrier.encode()] for barrier in barriers.values()], _WORD)
    memory.store(space, lanes[ends], addresses[ends], values, atomic=True)
    if completed:
        memory.synchronize(lanes[completed])
    return words


def _decode(memory: LaneMemory, lane: int, word: int) -> Barrier:
    barrier = Barrier.decode(word)
    return barrier if barrier is not None else memory.fault(lane, "there is no mbarrier at this address")


def read_phases(memory: LaneMemory, space: str, lanes: NDArray[np.int64], addresses: NDArray[np.uint64]) -> Lanes:
    """Return the parity of the current phase of each lane's object, ``(lanes,)``."""
    words = memory.load(space, lanes, addresses, _WORD, atomic=True)[:, 0]
    invalid = words >> np.uint64(62) != _MARK
    if invalid.any():
        memory.fault(int(lanes[invalid.argmax()]), "there is no mbarrier at this address")
    return phase_of(words)


def phase_of(words: Lanes) -> Lanes:
    """Return the phase parity in words or states."""
    return words >> np.uint64(_PHASE_SHIFT) & np.uint64(1)


# -------------------------------------------------------------------------------------------------- the instructions

Run = Callable[..., tuple[Lanes, ...]]
Form = tuple[str, tuple[LaneMemoryOp, ...]]


def _initialise(space: str) -> Run:
    def run(memory: LaneMemory, lanes: NDArray[np.int64], addresses: Lanes, counts: Lanes) -> tuple[Lanes, ...]:
        wrong = (counts < 1) | (counts > MAX_COUNT)
        if wrong.any():
            memory.fault(int(lanes[wrong.argmax()]), f"an mbarrier takes 1 to {MAX_COUNT} arrivals")
        words = [[Barrier(count, count).encode()] for count in counts.tolist()]
        memory.store(space, lanes, addresses, np.array(words, _WORD))
        return ()

    return run


def _invalidate(space: str) -> Run:
    def run(memory: LaneMemory, lanes: NDArray[np.int64], addresses: Lanes) -> tuple[Lanes, ...]:
        read_phases(memory, space, lanes, addresses)
        memory.unset(space, lanes, addresses, _WORD.itemsize)
        return ()

    return run


def _arrival(space: str, *changes: Change) -> Run:
    """Arrive once, or as often as an operand says."""

    def run(memory: LaneMemory, lanes: NDArray[np.int64], addresses: Lanes, *counts: Lanes) -> tuple[Lanes, ...]:
        amount: Lanes | int = counts[0] if counts else 1
        return (update(memory, space, lanes, addresses, *((change, amount) for change in changes)),)

    return run


def _expecting_arrival(space: str, *changes: Change) -> Run:
    """Expect transactions, then arrive once."""

    def run(memory: LaneMemory, lanes: NDArray[np.int64], addresses: Lanes, counts: Lanes) -> tuple[Lanes, ...]:
        arrivals: list[tuple[Change, Lanes | int]] = [(change, 1) for change in changes]
        return (update(memory, space, lanes, addresses, (expect, counts), *arrivals),)

    return run


def _transaction(space: str, change: Change) -> Run:
    def run(memory: LaneMemory, lanes: NDArray[np.int64], addresses: Lanes, counts: Lanes) -> tuple[Lanes, ...]:
        update(memory, space, lanes, addresses, (change, counts))
        return ()

    return run


def _wait(space: str, settle: Callable[[LaneMemory], None], *, parity: bool) -> Run:
    def run(memory: LaneMemory, lanes: NDArray[np.int64], addresses: Lanes, *phases: Lanes) -> tuple[Lanes, ...]:
        settle(memory)
        awaited: Any = phases[0] & np.uint32(1) if parity else phase_of(phases[0])
        return (read_phases(memory, space, lanes, addresses) != awaited,)

    return run


def _count_pending(_memory: LaneMemory, _lanes: NDArray[np.int64], states: Lanes) -> tuple[Lanes, ...]:
    return ((states >> np.uint64(20) & np.uint64(MAX_COUNT)).astype(np.uint32),)


def forms(settle: Callable[[LaneMemory], None]) -> Iterator[Form]:
    """Yield every supported mnemonic with its ops.

    Args:
        settle: performs the asynchronous arrivals that are under way; called before every wait.
    """
    for suffix, space in SPACES.items():
        tail = f"{'.' * bool(suffix)}{suffix}.b64"
        yield f"mbarrier.init{tail}", (LaneMemoryOp((), ("u64", "u32"), _initialise(space)),)
        yield f"mbarrier.inval{tail}", (LaneMemoryOp((), ("u64",), _invalidate(space)),)
        yield from _arrival_forms(tail, space)
        yield from _wait_forms(tail, space, settle)
        for semantics in _dotted(_TX_SEMANTICS):
            yield f"mbarrier.expect_tx{semantics}{tail}", (_two(_transaction(space, expect)),)
            yield f"mbarrier.complete_tx{semantics}{tail}", (_two(_transaction(space, transact)),)
    yield "mbarrier.pending_count.b64", (LaneMemoryOp(("b32",), ("b64",), _count_pending),)


def _arrival_forms(tail: str, space: str) -> Iterator[Form]:
    for name, changes in (("arrive", ()), ("arrive_drop", (drop,))):
        for semantics in _dotted(_ARRIVE_SEMANTICS):
            plain = _arrival(space, *changes, arrive)
            one, many = LaneMemoryOp(("b64",), ("u64",), plain), LaneMemoryOp(("b64",), ("u64", "u32"), plain)
            yield f"mbarrier.{name}{semantics}{tail}", (one, many)
            expecting = LaneMemoryOp(("b64",), ("u64", "u32"), _expecting_arrival(space, *changes, arrive))
            yield f"mbarrier.{name}.expect_tx{semantics}{tail}", (expecting,)
        for semantics in ("", ".release.cta"):
            partial = LaneMemoryOp(("b64",), ("u64", "u32"), _arrival(space, *changes, arrive_no_complete))
            yield f"mbarrier.{name}.noComplete{semantics}{tail}", (partial,)


def _wait_forms(tail: str, space: str, settle: Callable[[LaneMemory], None]) -> Iterator[Form]:
    for parity, type_ in ((False, "b64"), (True, "b32")):
        run = _wait(space, settle, parity=parity)
        bare = LaneMemoryOp(("pred",), ("u64", type_), run, waits=True)
        hinted = LaneMemoryOp(("pred",), ("u64", type_, "b32"), run, waits=True)
        for semantics in _dotted(_WAIT_SEMANTICS):
            yield f"mbarrier.test_wait{'.parity' * parity}{semantics}{tail}", (bare,)
            yield f"mbarrier.try_wait{'.parity' * parity}{semantics}{tail}", (bare, hinted)


def _two(run: Run) -> LaneMemoryOp:
    return LaneMemoryOp((), ("u64", "u32"), run)


def _dotted(words: tuple[str, ...]) -> Iterator[str]:
    return (f".{word}" if word else "" for word in words)
