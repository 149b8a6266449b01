"""Finds loads and stores whose addresses are data wherever the code comes from: no region with both can be modelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tensorwasm.offload.stack import ACCESS_EFFECTS, NUMERIC_EFFECTS
from tensorwasm.wasm.instructions import Instruction

_MAX_STEPS: Final = 50_000
_UNKNOWN: Final = -1
_EFFECTS: Final[Mapping[str, tuple[int, int]]] = {
    **ACCESS_EFFECTS,
    **dict.fromkeys(("memory.fill", "memory.copy"), (3, 0)),
}
"""Operands and results of what accesses memory; the first operand is the address."""

_Held = dict[int, int]
"""For locals that hold data on all ways: the last place such that a region from there, or from before, loads it."""


def data_addresses(code: Sequence[Instruction], start: int, end: int) -> Mapping[int, int]:
    """Return the accesses of a region whose addresses are data, by their places.

    Args:
        code: of a function; the region has only instructions that regions may have.
        start: place of the region's first instruction, which opens a block.
        end: place of its ``end``.

    Returns:
        The last place such that the address is data in every region that begins there or before.
    """
    scan = _AddressScan(code)
    try:
        scan.block(start, {})
    except _TooLong:
        return {}
    return {place: level for place, level in scan.levels.items() if start <= place <= end and level >= start}


class _TooLong(Exception):
    """The code has too many paths."""


class _AddressScan:
    def __init__(self, code: Sequence[Instruction]) -> None:
        self.code = code
        self.levels: dict[int, int] = {}
        self.labels: list[list[_Held]] = []
        self.steps = 0

    def block(self, start: int, held: _Held | None) -> tuple[int, _Held | None]:
        """Walk a block; return the place behind its end, and what is held there."""
        name = self.code[start][0]
        while True:
            self.labels.append([])
            end, behind = self._items(start + 1, held)
            arrived = self.labels.pop()
            if name != "loop":
                break
            before = held
            held = _united([held, *arrived])
            if held == before:
                return end + 1, behind
        if self.code[end][0] == "else":
            end, other = self._items(end + 1, held)
            arrived += [] if other is None else [other]
        elif name == "if" and held is not None:
            arrived.append(held)
        return end + 1, _united([behind, *arrived])

    def _items(self, place: int, held: _Held | None) -> tuple[int, _Held | None]:
        """Walk up to an ``end`` or ``else``; return its place, and what is held before it."""
        stack: list[int] = []
        held = None if held is None else dict(held)
        while True:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise _TooLong
            instruction = self.code[place]
            name = instruction[0]
            if name in {"end", "else"}:
                return place, held
            if name in {"block", "loop", "if"}:
                place, held = self.block(place, held)
                stack.append(_UNKNOWN)  # its result, if it has one
                continue
            if held is not None:
                held = self._step(place, instruction, held, stack)
            place += 1

    def _step(self, place: int, instruction: Instruction, held: _Held, stack: list[int]) -> _Held | None:
        name = instruction[0]

        def popped(count: int) -> list[int]:
            return [stack.pop() if stack else _UNKNOWN for _ in range(count)]

        if name == "local.get":
            stack.append(held.get(instruction[1], _UNKNOWN))
        elif name in {"local.set", "local.tee"}:
            held[instruction[1]] = popped(1)[0]
            stack += [held[instruction[1]]] if name == "local.tee" else []
        elif name in _EFFECTS:
            count, results = _EFFECTS[name]
            *_, address = popped(count)
            self.levels[place] = address
            stack += [place] * results
        elif name in NUMERIC_EFFECTS and NUMERIC_EFFECTS[name][0]:
            stack.append(max(popped(NUMERIC_EFFECTS[name][0])))
        elif name.startswith("select"):
            condition, other, one = popped(3)
            stack.append(max(condition, min(one, other)))
        elif name in {"br", "br_if", "br_table"}:
            popped(name != "br")
            self._branch(instruction, held)
            return held if name == "br_if" else None
        elif name == "drop":
            popped(1)
        elif name != "nop":
            stack.append(_UNKNOWN)  # a constant or a global
        return held

    def _branch(self, instruction: Instruction, held: _Held) -> None:
        for depth in instruction[1] if instruction[0] == "br_table" else (instruction[1],):
            if depth < len(self.labels):
                self.labels[-1 - depth].append(dict(held))


def _united(ways: Sequence[_Held | None]) -> _Held | None:
    """Return what is held on all ways that are taken; None if there are none."""
    taken = [way for way in ways if way is not None]
    if not taken:
        return None
    shared = set.intersection(*[set(way) for way in taken])
    levels = {local: min(way[local] for way in taken) for local in shared}
    return {local: level for local, level in levels.items() if level > _UNKNOWN}
