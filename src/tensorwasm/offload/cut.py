"""Cuts regions out of a module: each runs only if its guard, a function that the host gives, has not run it already.

A region becomes::

    block
      block
        global.get $off  ;; whether the guard is not to be called again
        i32.const 3
        i32.and
        br_if 0
        global.get $off  ;; whether it is not to be called for runs that are short
        i32.const 4
        i32.eq
        if
          ...            ;; whether this one surely is: see `tensorwasm.offload.cut`
          br_if 1
        end
        local.get ...    ;; the region's inputs: locals, then globals
        call $guard      ;; whether the guard ran it, whether it is off from now on, then the values of the outputs
        local.set ...    ;; the outputs, which a guard that declines gives back unchanged
        global.set $off
        br_if 1
      end
      ...                ;; the region, as it was
      global.get $off    ;; whether this run is compared: then the guard is called again
      i32.const 2
      i32.eq
      if
        ...              ;; as above, but for the branch
      end
    end

A guard that is off costs a nanosecond or so, and one of a short run some more, where a call of the host takes
microseconds. Floating-point values cross as integers of their bits, because a host function in another language may
change a NaN, and vectors lane by lane. Regions that lie in one another have guards one behind the other, the outer ones
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from tensorwasm.offload.analysis.regions import LoopRegion
from tensorwasm.offload.analysis.tree import OPENING
from tensorwasm.offload.costs import MOST_NS
from tensorwasm.offload.counting import LocalState, LocalTerm, find_count
from tensorwasm.offload.lanes import crossing_lane
from tensorwasm.offload.nest import ValueType
from tensorwasm.wasm import edit
from tensorwasm.wasm.definitions import CodeEntry, Global
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import Module
from tensorwasm.wasm.types import FuncType, GlobalType

INTERFACE: Final = "tensorwasm:offload"
"""The import module of guards."""

ON: Final = 0
"""The guard is to be called before the next run of the region."""
OFF: Final = 1
"""It is not to be called any more."""
COMPARED: Final = 2
"""It is to be called at the end of this run, too, if it has not run the region."""
LONG: Final = 4
"""It is to be called before the next run that may be long."""
_NEVER: Final = OFF | COMPARED

_CROSSING: Final[Mapping[ValueType, str]] = {"i32": "i32", "i64": "i64", "f32": "i32", "f64": "i64"}
_TO_BITS: Final[Mapping[ValueType, str]] = {"f32": "i32.reinterpret_f32", "f64": "i64.reinterpret_f64"}
_FROM_BITS: Final[Mapping[ValueType, str]] = {"f32": "f32.reinterpret_i32", "f64": "f64.reinterpret_i64"}
_LANES: Final[Mapping[ValueType, str]] = {"i32": "i32x4", "i64": "i64x2", "f32": "i32x4", "f64": "i64x2"}
_SWITCH: Final = Global(GlobalType("i32", mutable=True), (("i32.const", 0),))
_OPENING: Final = frozenset({"block", "loop", "if", "try_table"})

SHORT_NS: Final = 20_000
"""Threads take that long to begin, and a device takes longer: no region is worth its guard that is over by then."""
SLOW_NS: Final = 10
"""A division or a root takes no more; other instructions without an access take less than one nanosecond."""

_MOST_DEPTH: Final = 3
_MOST_LOOPS: Final = 8
_SLOW: Final = ("div", "rem", "sqrt")


def guard_signature(region: LoopRegion) -> FuncType:
    """Return what a guard takes, and gives: 1 if it ran the region, when it is to be called again, then the outputs."""
    return FuncType(
        tuple(_CROSSING[kind] for _, kind in (*region.inputs, *region.globals)),
        ("i32", "i32", *(_CROSSING[kind] for _, kind in region.outputs)),
    )


def guard_name(number: int) -> str:
    """Return the import field of the guard of a region, by its number in the module."""
    return f"region{number}"


def cut(module: Module, regions: Sequence[LoopRegion]) -> Module:
    """Put guards in front of regions, which may lie in one another but do not overlap otherwise.

    Raises:
        InvalidWasm: a body is malformed.
    """
    imported = len(module.imported("func"))
    types = [(INTERFACE, guard_name(number), guard_signature(region)) for number, region in enumerate(regions)]
    module, indices = edit.add_function_imports(module, types)
    module, switches = edit.add_globals(module, [_SWITCH] * len(regions))
    bodies = list(module.bodies)
    numbered = sorted(zip(regions, indices, switches, strict=True), key=lambda each: each[0].function)
    for function, group in groupby(numbered, key=lambda each: each[0].function):
        body = bodies[function - imported]
        code = tuple(_cut_code(body.instructions(), list(group)))
        bodies[function - imported] = CodeEntry.build(body.local_runs(), code)
    return replace(module, bodies=tuple(bodies))


def _cut_code(code: Sequence[Instruction], guarded: Sequence[tuple[LoopRegion, int, int]]) -> Iterator[Instruction]:
    """Yield code with guards, by their indices and those of their switches, in front of regions."""
    outermost_first = sorted(guarded, key=lambda each: (each[0].start, -each[0].end))
    starts = {each[0].start for each in guarded}
    ends = {each[0].end for each in guarded}
    labels = _Labels()
    for place, instruction in enumerate(code):
        if place in starts:
            for guard in [each for each in outermost_first if each[0].start == place]:
                yield from _before(code, *guard)
                labels.open(added=True)
        yield labels.shift(instruction)
        if instruction[0] in _OPENING:
            labels.open(added=False)
        elif instruction[0] == "end":
            labels.close()
        for guard in [each for each in reversed(outermost_first) if each[0].end == place] if place in ends else ():
            yield from _after(*guard)
            yield ("end",)
            labels.close()


def _before(code: Sequence[Instruction], region: LoopRegion, index: int, switch: int) -> Iterator[Instruction]:
    yield from (("block", None), ("block", None))
    yield from (("global.get", switch), ("i32.const", _NEVER), ("i32.and",), ("br_if", 0))
    if short := few_trips(code[region.start : region.end + 1]):
        yield from (("global.get", switch), ("i32.const", LONG), ("i32.eq",), ("if", None))
        yield from (*short, ("br_if", 1), ("end",))
    yield from _call(region, index, switch)
    yield from (("br_if", 1), ("end",))


def _after(region: LoopRegion, index: int, switch: int) -> Iterator[Instruction]:
    yield from (("global.get", switch), ("i32.const", COMPARED), ("i32.eq",), ("if", None))
    yield from _call(region, index, switch)
    yield from (("drop",), ("end",))


def _call(region: LoopRegion, index: int, switch: int) -> Iterator[Instruction]:
    """Yield the call of a guard, which leaves whether the region was run on the stack."""
    for local, kind in region.inputs:
        vector = crossing_lane(local)
        if vector:
            yield from (("local.get", vector[0]), (f"{_LANES[kind]}.extract_lane", vector[1]))
            continue
        yield ("local.get", local)
        if kind in _TO_BITS:
            yield (_TO_BITS[kind],)
    for number, _ in region.globals:
        yield ("global.get", number)
    yield ("call", index)
    for local, kind in reversed(region.outputs):
        vector = crossing_lane(local)
        if vector:
            yield from _set_lane(*vector, _LANES[kind])
            continue
        if kind in _FROM_BITS:
            yield (_FROM_BITS[kind],)
        yield ("local.set", local)
    yield ("global.set", switch)


def _set_lane(local: int, lane: int, lanes: str) -> Iterator[Instruction]:
    """Yield what puts a number on the stack into a lane of a vector, of which the others stay."""
    size = 16 // int(lanes[-1])
    order = [at if at // size == lane else 16 + at for at in range(16)]
    yield from ((f"{lanes}.splat",), ("local.get", local), ("i8x16.shuffle", bytes(order)), ("local.set", local))


class _Labels:
    """The labels in scope: those of the code as it was, and added ones between them."""

    def __init__(self) -> None:
        self._added: list[bool] = []
        self._old: list[int] = []  # how many labels are outside of each old one

    def open(self, *, added: bool) -> None:
        """Enter a block."""
        if not added:
            self._old.append(len(self._added))
        self._added.append(added)

    def close(self) -> None:
        """Leave the innermost block."""
        if not self._added.pop():
            self._old.pop()

    def shift(self, instruction: Instruction) -> Instruction:
        """Return an instruction that branches to where it did."""
        match instruction:
            case ("br" | "br_if" as name, label):
                return name, self._shift(label)
            case ("br_table", labels):
                return "br_table", tuple(map(self._shift, labels))
            case ("try_table", block, catches):
                return "try_table", block, tuple((kind, tag, self._shift(label)) for kind, tag, label in catches)
        return instruction

    def _shift(self, label: int) -> int:
        outside = self._old[-1 - label] if label < len(self._old) else -1  # of the function's own label, nothing
        return len(self._added) - 1 - outside


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
