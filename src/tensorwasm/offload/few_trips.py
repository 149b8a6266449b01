"""Whether a run of a region is too short for its guard to be worth a call, as WebAssembly in front of that call.

It compares an upper bound on what all loops do, computed from locals as they are when the region begins. There is none
unless it is clear from these how often each loop runs at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.analysis.tree import OPENING
from tensorwasm.offload.costs import MOST_NS
from tensorwasm.offload.counting import LocalState, LocalTerm, find_count
from tensorwasm.wasm.instructions import Instruction

SHORT_NS: Final = 20_000
"""Threads take that long to begin, and a device takes longer: no region is worth its guard that is over by then."""
SLOW_NS: Final = 10
"""A division or a root takes no more; other instructions without an access take less than one nanosecond."""

_MOST_DEPTH: Final = 3
_MOST_LOOPS: Final = 8
_SLOW: Final = ("div", "rem", "sqrt")


@dataclass(slots=True)
class _OpenBlock:
    """A block that is open.

    Attributes:
        turns: what leaves on the stack how often it goes on at most, if it is a loop.
        ns: what an iteration takes at most, without loops inside.
    """

    start: int
    turns: Sequence[Instruction] = ()
    ns: int = 1


def few_trips(code: Sequence[Instruction]) -> list[Instruction]:
    """Return what leaves 1 on the stack if a region surely takes less than `SHORT_NS`, else 0; may be nothing."""
    ends = _ends(code)
    state = LocalState()
    stack: list[_OpenBlock] = []
    nests: list[list[_OpenBlock]] = []
    for place, instruction in enumerate(code):
        name = instruction[0]
        loops = [each for each in stack if each.turns]
        if name in OPENING:
            body = code[place + 1 : ends[place]]
            opened = _OpenBlock(place, _turns(body, state) if name == "loop" else ())
            if name == "loop":
                nests.append([*loops, opened])
                if not opened.turns or len(nests) > _MOST_LOOPS or len(loops) == _MOST_DEPTH:
                    return []
            state.forget(() if name == "block" else body)
            stack.append(opened)
        elif name in {"end", "else"}:
            state.forget(code[stack[-1].start : place])
            if name == "end":
                stack.pop()
        elif name.startswith("memory."):
            return []  # it may take long by itself
        else:
            state.do(instruction)
            if loops:
                loops[-1].ns += _most_ns(name)
    return list(_is_short(nests)) if nests else []


def _ends(code: Sequence[Instruction]) -> dict[int, int]:
    """Return the place of each block's end, by that of its start."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for place, instruction in enumerate(code):
        if instruction[0] in OPENING:
            opened.append(place)
        elif instruction[0] == "end":
            ends[opened.pop()] = place
    return ends


def _turns(body: Sequence[Instruction], state: LocalState) -> list[Instruction]:
    """Return what leaves on the stack how often a loop goes on at most, where the region begins; nothing if unknown."""
    count = find_count(body)
    if count is None:
        return []
    held = state.term(count.local)
    kind, bound = count.bound
    limit = LocalTerm(None, bound) if kind == "i32.const" else state.term(bound)
    if held is None or limit is None:
        return []
    return list(count.turns(held.plus(count.offset).code(), limit.code()))


def _most_ns(name: str) -> int:
    if ".load" in name or ".store" in name:
        return int(MOST_NS)
    return SLOW_NS if any(slow in name for slow in _SLOW) else 1


def _is_short(nests: Sequence[Sequence[_OpenBlock]]) -> Iterator[Instruction]:
    """Yield a comparison of the sum over all loops; factors that are too much alone are cut, so nothing overflows."""
    most: Instruction = ("i32.const", SHORT_NS)
    yield ("i64.const", 0)
    for loops in nests:
        yield ("i64.const", min(loops[-1].ns, SHORT_NS))
        for loop in loops:
            yield from (*loop.turns, most, *loop.turns, most, ("i32.lt_u",), ("select",))
            yield from (("i64.extend_i32_u",), ("i64.const", 1), ("i64.add",), ("i64.mul",))
        yield ("i64.add",)
    yield from (("i64.const", SHORT_NS), ("i64.lt_u",))
