"""``mbarrier``: barriers that are objects in shared memory.

The object is a 64-bit word whose encoding the ISA leaves open. Here, from the low end: 20 bits of expected arrivals, 20
of pending arrivals, 21 of the transaction count (offset by 2**20), one of phase parity, and two that mark a valid
object. The state that arrivals return is the word before them. Lanes that meet at one object in one step take effect in
the order of their ids.

Source: PTX ISA 9.7.13.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.lanes import Indices
from tensorwasm.gpu.emulator.ops import LaneMemory, LaneMemoryOp, Lanes

MAX_COUNT: Final = (1 << 20) - 1
"""Largest arrival and transaction counts (9.7.13.15.3)."""

_WORD: Final = np.dtype(np.uint64)
_TX_ZERO: Final = 1 << 20
_PHASE_SHIFT: Final = 61
_VALID: Final = 0b10
_ABSENT: Final = "there is no mbarrier at this address"

SPACES: Final = {"": "generic", "shared": "shared", "shared::cta": "shared"}
_TX_SEMANTICS: Final = ("", ".relaxed.cta", ".relaxed.cluster")
_ARRIVE_SEMANTICS: Final = (*_TX_SEMANTICS, ".release.cta", ".release.cluster")
_WAIT_SEMANTICS: Final = (*_TX_SEMANTICS, ".acquire.cta", ".acquire.cluster")


@dataclass(slots=True)
class MBarrier:
    """The object, decoded: arrivals of every phase, and those, transactions and parity of the current phase.

    Transactions are negative if they came early.
    """

    expected: int
    pending: int
    tx: int = 0
    phase: int = 0

    @classmethod
    def decode(cls, word: int) -> MBarrier | None:
        """Read a word; None if it is no valid object."""
        if word >> 62 != _VALID:
            return None
        tx = (word >> 40 & ((1 << 21) - 1)) - _TX_ZERO
        return cls(word & MAX_COUNT, word >> 20 & MAX_COUNT, tx, word >> _PHASE_SHIFT & 1)

    def encode(self) -> int:
        """Return the word."""
        counts = self.expected | self.pending << 20 | (self.tx + _TX_ZERO) << 40
        return counts | self.phase << _PHASE_SHIFT | _VALID << 62

    def complete(self) -> bool:
        """Begin the next phase if nothing is pending; return whether it began."""
        if self.pending or self.tx:
            return False
        self.pending, self.phase = self.expected, self.phase ^ 1
        return True


Change = Callable[[MBarrier, int], str | None]
"""Changes a barrier by an amount; returns an error message if it may not."""


def arrive(barrier: MBarrier, count: int) -> str | None:
    """Take ``count`` arrivals off the pending ones."""
    if not 1 <= count <= barrier.pending:
        return f"{count} arrivals at an mbarrier that waits for {barrier.pending}"
    barrier.pending -= count
    return None


def _arrive_no_complete(barrier: MBarrier, count: int) -> str | None:
    """Arrive with the promise that the phase does not end by it."""
    if count == barrier.pending and not barrier.tx:
        return "a .noComplete arrival that completes the mbarrier's phase"
    return arrive(barrier, count)


def _drop(barrier: MBarrier, count: int) -> str | None:
    """Expect ``count`` arrivals fewer from the next phase on."""
    if count > barrier.expected:
        return f"{count} arrivals dropped from an mbarrier that expects {barrier.expected}"
    barrier.expected -= count
    return None


def _expect(barrier: MBarrier, count: int) -> str | None:
    """Expect ``count`` transactions more."""
    barrier.tx += count
    return None if abs(barrier.tx) <= MAX_COUNT else f"an mbarrier cannot count more than {MAX_COUNT} transactions"


def _transact(barrier: MBarrier, count: int) -> str | None:
    """Complete ``count`` transactions."""
    return _expect(barrier, -count)


def raise_pending(barrier: MBarrier, count: int) -> str | None:
    """Wait for ``count`` arrivals more in this phase (``cp.async.mbarrier.arrive`` without ``.noinc``)."""
    if barrier.pending + count > MAX_COUNT:
        return f"an mbarrier cannot wait for more than {MAX_COUNT} arrivals"
    barrier.pending += count
    return None


# ------------------------------------------------------------------------------------------------ many lanes at once


def update(
    memory: LaneMemory, space: str, lanes: Indices, addresses: Lanes, *steps: tuple[Change, Lanes | int]
) -> Lanes:
    """Apply changes, with their amounts, to the object of each lane, and end the phases that are complete.

    Lanes act one after the other. Returns the word of each lane's object before its change, ``(lanes,)`` uint64.
    """
    words = memory.load(space, lanes, addresses, _WORD, atomic=True)[:, 0].copy()
    amounts = [(change, np.broadcast_to(amount, lanes.shape).tolist()) for change, amount in steps]
    barriers: dict[tuple[int, int], MBarrier] = {}
    last: dict[tuple[int, int], int] = {}
    completed: list[int] = []
    for index, place in enumerate(zip(memory.blocks(lanes).tolist(), addresses.tolist(), strict=True)):
        lane = int(lanes[index])
        barrier = barriers.get(place) or MBarrier.decode(int(words[index])) or memory.fault(lane, _ABSENT)
        barriers[place], last[place] = barrier, index
        words[index] = barrier.encode()
        for change, counts in amounts:
            reason = change(barrier, counts[index])
            if reason:
                memory.fault(lane, reason)
        if barrier.complete():
            completed.append(index)
    ends = np.fromiter(last.values(), np.int64)
    values = np.array([[barrier.encode()] for barrier in barriers.values()], _WORD)
    memory.store(space, lanes[ends], addresses[ends], values, atomic=True)
    if completed:
        memory.synchronize(lanes[completed])
    return words


def read_phases(memory: LaneMemory, space: str, lanes: Indices, addresses: Lanes) -> Lanes:
    """Return the parity of the current phase of each lane's object, ``(lanes,)``."""
    words = memory.load(space, lanes, addresses, _WORD, atomic=True)[:, 0]
    refuse(memory, lanes, words >> np.uint64(62) != _VALID, _ABSENT)
    return _phase_of(words)


def refuse(memory: LaneMemory, lanes: Indices, wrong: NDArray[np.bool_], reason: str) -> None:
    """Raise `KernelFault` for the first lane that is wrong, if any."""
    if wrong.any():
        memory.fault(int(lanes[wrong.argmax()]), reason)


def _phase_of(words: Lanes) -> Lanes:
    return words >> np.uint64(_PHASE_SHIFT) & np.uint64(1)


# -------------------------------------------------------------------------------------------------- the instructions

Form = tuple[str, tuple[LaneMemoryOp, ...]]
Settle = Callable[[LaneMemory], None]


def _initialise(space: str, memory: LaneMemory, lanes: Indices, addresses: Lanes, counts: Lanes) -> None:
    refuse(memory, lanes, (counts < 1) | (counts > MAX_COUNT), f"an mbarrier takes 1 to {MAX_COUNT} arrivals")
    words = [[MBarrier(count, count).encode()] for count in counts.tolist()]
    memory.store(space, lanes, addresses, np.array(words, _WORD))


def _invalidate(space: str, memory: LaneMemory, lanes: Indices, addresses: Lanes) -> None:
    read_phases(memory, space, lanes, addresses)
    memory.unset(space, lanes, addresses, _WORD.itemsize)


def _change(
    space: str, changes: tuple[Change, ...], memory: LaneMemory, lanes: Indices, addresses: Lanes, *counts: Lanes
) -> tuple[Lanes, ...]:
    """Apply changes: once, or as often as an operand says; after `_expect`, whose amount is the operand, once."""
    amount: Lanes | int = counts[0] if counts else 1
    rest = 1 if changes[0] is _expect else amount
    return (update(memory, space, lanes, addresses, (changes[0], amount), *((change, rest) for change in changes[1:])),)


def _transaction(
    space: str, change: Change, memory: LaneMemory, lanes: Indices, addresses: Lanes, counts: Lanes
) -> None:
    update(memory, space, lanes, addresses, (change, counts))


def _wait(
    space: str, settle: Settle, memory: LaneMemory, lanes: Indices, addresses: Lanes, *phases: Lanes
) -> tuple[Lanes, ...]:
    """Test a phase, given as a state or, in 32 bits, as its parity."""
    settle(memory)
    is_parity = phases[0].dtype.itemsize == 4
    awaited: Any = phases[0] & np.uint32(1) if is_parity else _phase_of(phases[0])
    return (read_phases(memory, space, lanes, addresses) != awaited,)


def _count_pending(_memory: LaneMemory, _lanes: Indices, states: Lanes) -> tuple[Lanes, ...]:
    return ((states >> np.uint64(20) & np.uint64(MAX_COUNT)).astype(np.uint32),)


def forms(settle: Settle) -> Iterator[Form]:
    """Yield every supported mnemonic with its ops; ``settle`` performs pending asynchronous arrivals before a wait."""
    for suffix, space in SPACES.items():
        tail = f"{'.' * bool(suffix)}{suffix}.b64"
        yield f"mbarrier.init{tail}", (LaneMemoryOp((), ("u64", "u32"), partial(_initialise, space)),)
        yield f"mbarrier.inval{tail}", (LaneMemoryOp((), ("u64",), partial(_invalidate, space)),)
        yield from _arrival_forms(tail, space)
        yield from _wait_forms(tail, partial(_wait, space, settle))
        for name, change in (("expect_tx", _expect), ("complete_tx", _transact)):
            op = LaneMemoryOp((), ("u64", "u32"), partial(_transaction, space, change))
            yield from ((f"mbarrier.{name}{semantics}{tail}", (op,)) for semantics in _TX_SEMANTICS)
    yield "mbarrier.pending_count.b64", (LaneMemoryOp(("b32",), ("b64",), _count_pending),)


def _arrival_forms(tail: str, space: str) -> Iterator[Form]:
    def op(*changes: Change, counted: bool = True) -> LaneMemoryOp:
        return LaneMemoryOp(("b64",), ("u64", "u32") if counted else ("u64",), partial(_change, space, changes))

    for name, changes in (("arrive", ()), ("arrive_drop", (_drop,))):
        plain = op(*changes, arrive, counted=False), op(*changes, arrive)
        for semantics in _ARRIVE_SEMANTICS:
            yield f"mbarrier.{name}{semantics}{tail}", plain
            yield f"mbarrier.{name}.expect_tx{semantics}{tail}", (op(_expect, *changes, arrive),)
        for semantics in ("", ".release.cta"):
            yield f"mbarrier.{name}.noComplete{semantics}{tail}", (op(*changes, _arrive_no_complete),)


def _wait_forms(tail: str, run: Callable[..., tuple[Lanes, ...]]) -> Iterator[Form]:
    for parity, type_ in (("", "b64"), (".parity", "b32")):
        bare = LaneMemoryOp(("pred",), ("u64", type_), run, waits=True)
        hinted = LaneMemoryOp(("pred",), ("u64", type_, "b32"), run, waits=True)
        for semantics in _WAIT_SEMANTICS:
            yield f"mbarrier.test_wait{parity}{semantics}{tail}", (bare,)
            yield f"mbarrier.try_wait{parity}{semantics}{tail}", (bare, hinted)
