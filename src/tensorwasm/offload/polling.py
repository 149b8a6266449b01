"""Code that stops itself: it counts what it does, and calls the host each time that a budget is used up.

Wasmtime's own means, epochs and fuel, check at each loop's head and call the host there. All floating-point values that
are live across that call then lie on the stack, so that a loop which carries one waits for a store and a load in each
iteration: loops take up to 2.6 times as long. Here

- all that is live is stored in globals before the call and loaded after it, and need not lie on the stack otherwise;
- innermost loops of which it is clear before them that they are over soon (`tensorwasm.offload.counting`) run as they
  are; in others one check serves several iterations.

What is counted is never less than the instructions that run, but for short code outside of loops in functions without
calls. A call counts as more, and an instruction over many bytes as their number. A module in this form needs no epochs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tensorwasm.offload.analysis.regions import blocks_of, local_types
from tensorwasm.offload.analysis.tree import OPENING, locals_of, mark_live, parse
from tensorwasm.offload.counting import LoopCount, find_count
from tensorwasm.offload.declined import Declined
from tensorwasm.wasm import edit
from tensorwasm.wasm.definitions import CodeEntry, Global
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import Module
from tensorwasm.wasm.types import FuncType, GlobalType

POLL: Final = "poll"
"""The import field of the function that returns the next budget, or ends the guest."""
BUDGET: Final = 1 << 24
"""Most instructions between two polls: some milliseconds, or a second if all of them miss the caches."""
FIRST_BUDGET: Final = 1 << 20
"""Of an instance; `PollPace` says how many follow."""

_SMALL_FUNCTION: Final = 64
_PIECE: Final = 16
_LONG_PIECE: Final = 256
"""Iterations of an innermost loop that one check serves, if it is not clear how it counts, or counts far."""
_MOST_SAVED: Final = 64
_MOST_UNITS: Final = (1 << 31) - 1
_OWN_LOCALS: Final = 2
_RETURNS_I32: Final = FuncType((), ("i32",))
_HOST_CALL_UNITS: Final = 1024
_CALL_UNITS: Final = 64
_GROW_UNITS: Final = 4096
_UNIT_SHIFT: Final = 4
"""Sixteen bytes or table elements count as one instruction."""
_ZEROS: Final[Mapping[str, int | bytes]] = {"i32": 0, "i64": 0, "f32": 0, "f64": 0, "v128": bytes(16)}
_LONG: Final = frozenset(
    {"memory.fill", "memory.copy", "memory.init", "table.fill", "table.copy", "table.init", "table.grow"}
)
_LEAVING: Final = frozenset({"throw", "throw_ref", "try_table"})


def add_polls(module: Module, owner: str) -> Module:
    """Return a module that calls the import `POLL` of ``owner``, of no parameters and one i32, at bounded intervals.

    Raises:
        InvalidWasm: a body is malformed.
    """
    module, (poll,) = edit.add_function_imports(module, [(owner, POLL, _RETURNS_I32)])
    first = len(module.imported("global")) + len(module.globals)
    places = _Places(poll, first, len(module.imported("func")) + len(module.functions))
    bodies = [_PollingBody(module, number, places).build() for number in range(len(module.bodies))]
    module, _ = edit.add_globals(replace(module, bodies=tuple(bodies)), places.added)
    module, _ = edit.add_functions(module, places.outlined)
    return module


def has_long_indices(module: Module) -> bool:
    """Return whether lengths may be of 64 bits, which `add_polls` takes for 32; no engine of ours accepts that."""
    sized = [item.type for item in module.imports if item.kind in {"memory", "table"}]
    return any(getattr(each, "is_64", True) for each in (*sized, *module.memories, *module.tables))


_Kept = Sequence[tuple[int, int]]
"""Locals, and the globals that keep them."""


@dataclass(slots=True)
class _Places:
    """The import, and what is added: globals, the budget's and then those that keep locals during calls; functions."""

    poll: int
    budget: int
    function: int
    outlined: list[tuple[FuncType, CodeEntry]] = field(default_factory=list)
    added: list[Global] = field(default_factory=lambda: [_global("i32", FIRST_BUDGET)])
    _kept: dict[tuple[str, int], int] = field(default_factory=dict)

    def keep(self, kind: str, number: int) -> int:
        """Return the global for one more local of a type."""
        if (kind, number) not in self._kept:
            self._kept[kind, number] = self.budget + len(self.added)
            self.added.append(_global(kind, _ZEROS[kind]))
        return self._kept[kind, number]

    def outline(self, body: CodeEntry) -> int:
        """Add a function of no parameters that returns an i32; return its index."""
        self.outlined.append((_RETURNS_I32, body))
        return self.function + len(self.outlined) - 1


def _global(kind: str, value: int | bytes) -> Global:
    return Global(GlobalType(kind, mutable=True), ((f"{kind}.const", value),))


@dataclass(slots=True)
class _PolledLoop:
    """A loop, or the whole function.

    Attributes:
        depth: how many blocks it is the last of.
        units: what one iteration counts for, without loops inside that count for themselves.
        calls: whether something in it may leave the function, except to return.
        gives: whether a branch out of it carries values.
    """

    start: int
    plain: bool
    depth: int = 0
    end: int = 0
    units: int = 0
    calls: bool = False
    gives: bool = False
    inside: list[_PolledLoop] = field(default_factory=list)

    @property
    def in_pieces(self) -> bool:
        """Whether it is an innermost loop that can run in pieces."""
        return self.plain and not self.inside and not self.calls


def _find_loops(
    code: Sequence[Instruction], imported: int, signature: FuncType, types: Sequence[FuncType]
) -> _PolledLoop:
    """Return the whole function with its loops."""
    stack = [_PolledLoop(-1, plain=False)]
    opened: list[bool] = []  # whether each open block is a loop
    carrying = [bool(signature.results)]  # whether branches carry values to the function's end, and to each open block
    for place, instruction in enumerate(code):
        name = instruction[0]
        if name in OPENING:
            opened.append(name == "loop")
            carrying.append(_carries(instruction, types))
            if name == "loop":
                stack.append(_PolledLoop(place, instruction[1] is None, len(opened)))
        elif name == "end":
            carrying.pop()
            if opened.pop():
                loop = stack.pop()
                loop.end = place
                stack[-1].inside.append(loop)
                stack[-1].calls |= loop.calls
        for _, label in _labels((instruction,)):
            target = len(opened) - label
            stack[-1].gives |= target < stack[-1].depth and carrying[target]
        stack[-1].units += _units(instruction, imported)
        stack[-1].calls |= "call" in name or name in _LEAVING
    return stack[0]


def _carries(opening: Instruction, types: Sequence[FuncType]) -> bool:
    """Return whether branches to a block carry values."""
    name, kind = opening[:2]
    if isinstance(kind, int):
        return bool(types[kind].params if name == "loop" else types[kind].results)
    return kind is not None and name != "loop"


def _units(instruction: Instruction, imported: int) -> int:
    name = instruction[0]
    if name in {"call", "return_call"}:
        return _HOST_CALL_UNITS if instruction[1] < imported else _CALL_UNITS
    if name in {"memory.grow", "table.grow"}:
        return _GROW_UNITS
    return _CALL_UNITS if "call" in name else 1


class _PollingBody:
    """One function's body while it is rewritten."""

    def __init__(self, module: Module, number: int, places: _Places) -> None:
        self._body, self._places = module.bodies[number], places
        self._code = self._body.instructions()
        signature = module.types[module.functions[number]]
        self._function = _find_loops(self._code, len(module.imported("func")), signature, module.types)
        self._params = len(signature.params)
        # Locals of our own: for a budget, and for iterations that are left.
        self._spare = self._params + sum(count for count, _ in self._body.local_runs())
        self._left = self._spare + 1
        self._live: dict[int, int] = {}
        self._types: list[str] = []
        try:
            self._types = [*local_types(signature, self._body), *["i32"] * _OWN_LOCALS]
            root = parse(self._code, 0, len(self._code), module.types)
            mark_live(root, 0)
            self._live = {start: block.live for start, block in blocks_of(root)}
        except Declined:
            self._live = {}  # nothing is saved, which is slower

    def build(self) -> CodeEntry:
        """Return the body with polls; a small one without loops and calls as it was."""
        function = self._function
        long = not _LONG.isdisjoint(name for name, *_ in self._code)
        checked = function.calls or function.units > _SMALL_FUNCTION
        if not checked and not long and not function.inside:
            return self._body
        code: list[Instruction] = []
        if checked:
            code += self._check((("i32.const", function.units),), (1 << self._params) - 1)
        code += self._through(0, len(self._code), function)
        return CodeEntry.build((*self._body.local_runs(), (_OWN_LOCALS, "i32")), code)

    def _through(self, first: int, last: int, around: _PolledLoop) -> Iterator[Instruction]:
        """Yield code with the loops that ``around`` has in it."""
        loops = {loop.start: loop for loop in around.inside}
        place = first
        while place < last:
            loop = loops.get(place)
            if loop is not None:
                yield from self._loop(loop)
                place = loop.end + 1
                continue
            if self._code[place][0] in _LONG:
                yield from self._charge_length()
            yield self._code[place]
            place += 1

    def _loop(self, loop: _PolledLoop) -> Iterator[Instruction]:
        body = self._through(loop.start + 1, loop.end, loop)
        if loop.in_pieces:
            code = list(body)
            count = find_count(code) if self._can_outline(code, loop) else None
            yield from self._in_pieces(loop, code, _PIECE) if count is None else self._counting(loop, code, count)
            return
        yield self._code[loop.start]
        yield from self._check((("i32.const", loop.units),), self._live.get(loop.start, 0))
        yield from body
        yield ("end",)

    def _can_outline(self, body: Sequence[Instruction], loop: _PolledLoop) -> bool:
        used = {item[1] for item in body if item[0].startswith("local.")}
        can_be = loop.start in self._live and not loop.gives and ("return",) not in body
        return can_be and all(map(self._is_kept, used))

    def _counting(self, loop: _PolledLoop, body: Sequence[Instruction], count: LoopCount) -> Iterator[Instruction]:
        """Yield a loop as it is for when it is over soon, and the call of one in pieces for when it is not."""
        exits = sorted({label - depth for depth, label in _labels(body) if label > depth})
        units = loop.units
        yield from (("block", None), ("block", None), *count.turns(), ("local.tee", self._left))
        yield from (("i32.const", max(BUDGET // units, 1) - 1), ("i32.ge_u",), ("br_if", 0))
        yield from (("global.get", self._places.budget), ("local.get", self._left), ("i32.const", units), ("i32.mul",))
        yield from (("i32.const", units), ("i32.add",), ("i32.sub",), ("local.tee", self._spare))
        yield from (("i32.const", 0), ("i32.le_s",), ("br_if", 0))
        yield from (("local.get", self._spare), ("global.set", self._places.budget), ("loop", None))
        yield from _moved(body, 2)
        yield from (("end",), ("br", 1), ("end",))
        assigned = {item[1] for item in body if item[0] in {"local.set", "local.tee"}} - {self._spare}
        used = assigned | {item[1] for item in body if item[0] == "local.get"}
        given = self._keep([local for local in locals_of(self._live[loop.start]) if local in used])
        taken = self._keep(sorted(assigned))
        yield from _stored(given)
        yield from (("call", self._outline(loop, body, exits, given, taken)), ("local.set", self._spare))
        yield from _loaded(taken)
        for number, label in enumerate(exits, 1):
            yield from (("local.get", self._spare), ("i32.const", number), ("i32.eq",), ("br_if", label))
        yield ("end",)

    def _outline(
        self, loop: _PolledLoop, body: Sequence[Instruction], exits: Sequence[int], given: _Kept, taken: _Kept
    ) -> int:
        """Make a function of a loop, with its locals in globals; it returns which exit was taken, 0 for the end."""
        nearer = {label: number for number, label in enumerate(exits, 1)}
        moved = [_relabelled(item, depth, nearer) for depth, item in _with_depths(body)]
        code: list[Instruction] = [*_loaded(given), *[("block", None)] * len(exits)]
        code += self._in_pieces(loop, moved, _LONG_PIECE)
        for number in range(len(exits) + 1):
            code += [("end",)] * (number > 0)
            code += [*_stored(taken), ("i32.const", number), ("return",)]
        used = {item[1] for item in code if item[0].startswith("local.")}
        ordered = sorted(used, key=lambda local: (self._types[local], local))
        places = {local: place for place, local in enumerate(ordered)}
        code = [(item[0], places[item[1]]) if item[0].startswith("local.") else item for item in code]
        runs = [(count, kind) for kind, count in Counter(self._types[local] for local in ordered).items()]
        return self._places.outline(CodeEntry.build(runs, code))

    def _in_pieces(self, loop: _PolledLoop, body: Sequence[Instruction], turns: int) -> Iterator[Instruction]:
        """Yield an innermost loop in pieces of so many iterations, which are counted."""
        yield from (("block", None), ("loop", None))
        units = min(turns * loop.units, _MOST_UNITS)
        yield from self._check((("i32.const", units),), self._live.get(loop.start, 0))
        yield from (("i32.const", turns), ("local.set", self._left), ("block", None), ("loop", None))
        yield from (("local.get", self._left), ("i32.const", 1), ("i32.sub",), ("local.tee", self._left))
        yield from (("i32.const", 0), ("i32.lt_s",), ("br_if", 1))
        yield from _moved(body, 3)
        yield from (("end",), ("br", 2), ("end",), ("br", 0), ("end",), ("end",))

    def _spend(self, *units: Instruction) -> Iterator[Instruction]:
        """Yield what takes units from the budget, and leaves it on the stack."""
        yield from (("global.get", self._places.budget), *units, ("i32.sub",))
        yield from (("local.tee", self._spare), ("global.set", self._places.budget), ("local.get", self._spare))

    def _check(self, units: Sequence[Instruction], live: int) -> Iterator[Instruction]:
        """Yield what takes units, which come onto the stack, from the budget, and polls if that is used up."""
        yield from self._spend(*units)
        yield from (("i32.const", 0), ("i32.le_s",), ("if", None))
        yield from self._poll(live)
        yield ("end",)

    def _charge_length(self) -> Iterator[Instruction]:
        """Yield what takes from the budget for a length, which is on the stack and stays there."""
        yield ("local.tee", self._spare)
        yield from self._check((("local.get", self._spare), ("i32.const", _UNIT_SHIFT), ("i32.shr_u",)), 0)

    def _poll(self, live: int) -> Iterator[Instruction]:
        """Yield the call, with locals saved before and restored behind it."""
        kept = self._keep([local for local in locals_of(live) if self._is_kept(local)][:_MOST_SAVED])
        yield from _stored(kept)
        yield from (("call", self._places.poll), ("global.set", self._places.budget))
        yield from _loaded(kept)

    def _is_kept(self, local: int) -> bool:
        return local < len(self._types) and self._types[local] in _ZEROS

    def _keep(self, kept: Sequence[int]) -> _Kept:
        """Return locals with globals for them."""
        counts: Counter[str] = Counter()
        places = []
        for local in kept:
            kind = self._types[local]
            places.append((local, self._places.keep(kind, counts[kind])))
            counts[kind] += 1
        return places


def _stored(kept: _Kept) -> Iterator[Instruction]:
    for local, place in kept:
        yield from (("local.get", local), ("global.set", place))


def _loaded(kept: _Kept) -> Iterator[Instruction]:
    for local, place in kept:
        yield from (("global.get", place), ("local.set", local))


def _with_depths(body: Sequence[Instruction]) -> Iterator[tuple[int, Instruction]]:
    """Yield instructions of a loop's body, and how many blocks in the loop are around each."""
    depth = 0
    for instruction in body:
        yield depth, instruction
        depth += (instruction[0] in OPENING) - (instruction[0] == "end")


def _labels(body: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Yield where branches of a loop's body lead, with their depths; the loop's own label is the depth."""
    for depth, instruction in _with_depths(body):
        match instruction:
            case ("br" | "br_if", label):
                yield depth, label
            case ("br_table", labels):
                for label in labels:
                    yield depth, label


def _relabelled(instruction: Instruction, depth: int, labels: Mapping[int, int]) -> Instruction:
    """Return a branch out of a loop with another label, given those as seen from the loop's body, outside of blocks."""

    def moved(label: int) -> int:
        return depth + labels.get(label - depth, label - depth)

    match instruction:
        case ("br" | "br_if" as name, label):
            return name, moved(label)
        case ("br_table", targets):
            return "br_table", tuple(map(moved, targets))
    return instruction


def _moved(body: Sequence[Instruction], added: int) -> Iterator[Instruction]:
    """Yield a loop's body inside of so many more blocks; the loop's own label becomes the innermost of these."""
    further = {label - depth: label - depth + added for depth, label in _labels(body) if label > depth}
    for depth, instruction in _with_depths(body):
        yield _relabelled(instruction, depth, further)
