"""Finds the loop nests of a module that may be offloaded: pieces of function bodies without calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.offload.analysis.addresses import data_addresses
from tensorwasm.offload.analysis.fusion import find_fused
from tensorwasm.offload.analysis.tree import OPENING, CodeBlock, locals_of, mark_live, parse
from tensorwasm.offload.analysis.vectors.splitting import has_vectors, vector_shapes
from tensorwasm.offload.analysis.vectors.vector_stack import VectorCode
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.lanes import VECTOR, crossing_kind, crossing_number, lane_count
from tensorwasm.offload.nest import ValueType
from tensorwasm.offload.stack import ACCESS_EFFECTS, NUMERIC_EFFECTS
from tensorwasm.wasm.definitions import CodeEntry
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import Module
from tensorwasm.wasm.types import FuncType

_PLAIN_LOOP: Final = b"\x03\x40"
_MAX_BODY_BYTES: Final = 1 << 18
_VALUE_TYPES: Final[tuple[ValueType, ...]] = ("i32", "i64", "f32", "f64")
_HANDLED: Final = frozenset(
    {"nop", "drop", "select", "select_t", "local.get", "local.set", "local.tee", "global.get", "else"}
    | {f"{kind}.const" for kind in _VALUE_TYPES}
    | NUMERIC_EFFECTS.keys()
)
_SCATTERED: Final = (DeclineReason.DATA_DEPENDENT, "an address")
_PASSED_OVER: Final = _HANDLED - {"global.get"}

TypedLocal = tuple[int, ValueType]
"""The index of a local or global, and its type."""


@dataclass(frozen=True, slots=True)
class LoopRegion:
    """A ``block`` or ``loop`` of a function without parameters and results, which no branch leaves but to its end.

    Or several of these, with what is between them.

    Attributes:
        function: in the index space of functions.
        start: place of its first instruction in the function's body.
        end: place of its ``end``, or the last one's.
        inputs: locals that it may read before it writes them, and all outputs; of a vector, each lane.
        outputs: locals that it writes and that may be read after it.
        globals: those that it reads.
        depth: how many loops are in each other.
        parts: how many regions it is; those are inside it, too.
    """

    function: int
    start: int
    end: int
    inputs: tuple[TypedLocal, ...]
    outputs: tuple[TypedLocal, ...]
    globals: tuple[TypedLocal, ...]
    depth: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class DeclinedLoop:
    """A loop that is in no region, though loops inside it may be."""

    function: int
    start: int
    reason: DeclineReason
    detail: str


def find_regions(module: Module) -> list[LoopRegion | DeclinedLoop]:
    """Find the largest regions of a module; one is no larger than its loops need, or several in a row need.

    A region comes before those inside it.

    Raises:
        InvalidWasm: a body is malformed.
    """
    imports = module.imported("func")
    memories = [item.type for item in module.imported("memory")] + list(module.memories)
    if len(memories) != 1 or getattr(memories[0], "is_64", True) or getattr(memories[0], "shared", True):
        return []
    found: list[LoopRegion | DeclinedLoop] = []
    for number, body in enumerate(module.bodies):
        if _PLAIN_LOOP in body.raw and len(body.raw) <= _MAX_BODY_BYTES:
            found += _in_body(module, number + len(imports), module.functions[number], body)
    return found


def _in_body(module: Module, function: int, type_index: int, body: CodeEntry) -> list[LoopRegion | DeclinedLoop]:
    code = body.instructions()
    scan = _RegionScan(code, {})
    addresses: dict[int, int] = {}
    for piece in scan.regions:
        if piece.depth > 1:
            addresses |= data_addresses(code, piece.start, piece.end)
    if addresses:
        scan = _RegionScan(code, addresses)
    found: list[LoopRegion | DeclinedLoop] = [DeclinedLoop(function, *each) for each in scan.declined]
    if scan.regions:
        try:
            types = local_types(module.types[type_index], body)
            root = parse(code, 0, len(code), module.types)
            mark_live(root, 0)
            blocks = dict(blocks_of(root))
        except (Declined, IndexError) as error:
            reason, detail = (
                (error.reason, error.detail) if isinstance(error, Declined) else (DeclineReason.MALFORMED, str(error))
            )
            return found + [DeclinedLoop(function, each.start, reason, detail) for each in scan.regions]
        pieces = [(blocks[piece.start], blocks[piece.start], piece.depth, 1) for piece in scan.regions]
        declined = [start for start, _, _ in scan.declined]
        for fused in find_fused(root, [piece.start for piece in scan.regions], declined):
            first, last = fused.blocks[0], fused.blocks[-1]
            depth = max(piece.depth for piece in scan.regions if first.start <= piece.start < last.end)
            pieces.append((first, last, depth, fused.count))
        pieces.sort(key=lambda piece: (piece[0].start, -piece[1].end))
        regions = [(_region(module, function, code, types, *piece), piece[3]) for piece in pieces]
        found += [region for region, parts in regions if parts == 1 or isinstance(region, LoopRegion)]
    return found


def local_types(signature: FuncType, body: CodeEntry) -> list[str]:
    """Return the types of a function's parameters and locals.

    Raises:
        Declined: there are very many.
    """
    runs = body.local_runs()
    if sum(count for count, _ in runs) > 1 << 12:
        raise Declined(DeclineReason.TOO_LARGE, "locals")
    return [*signature.params, *[kind for count, kind in runs for _ in range(count)]]


def blocks_of(root: CodeBlock) -> Iterator[tuple[int, CodeBlock]]:
    """Yield all blocks by their places."""
    waiting = [root]
    while waiting:
        block = waiting.pop()
        yield block.start, block
        waiting += [item for item in (*block.items, *(block.otherwise or ())) if isinstance(item, CodeBlock)]


def _region(
    module: Module,
    function: int,
    code: list[Instruction],
    types: list[str],
    first: CodeBlock,
    last: CodeBlock,
    depth: int,
    parts: int,
) -> LoopRegion | DeclinedLoop:
    inner = parse(code, first.start, last.end + 1, module.types)
    outputs = inner.assigned & last.live_after
    inputs = mark_live(inner, outputs) | outputs
    read = {item[1] for item in code[first.start : last.end] if item[0] == "global.get"}
    imported = [item.type for item in module.imported("global")]
    every = [*imported, *[item.type for item in module.globals]]
    try:
        pieces = code[first.start : last.end + 1]
        shapes: dict[int, str] = {}
        if has_vectors(pieces, types):
            vectors = [[local for local in locals_of(mask) if types[local] == VECTOR] for mask in (inputs, outputs)]
            shapes = vector_shapes(VectorCode(pieces, types, module.types, *vectors))
        return LoopRegion(
            function,
            first.start,
            last.end,
            tuple(_crossing(inputs, types, shapes)),
            tuple(_crossing(outputs, types, shapes)),
            tuple([(number, _integer_type(every[number].value)) for number in sorted(read)]),
            depth,
            parts,
        )
    except Declined as declined:
        return DeclinedLoop(function, first.start, declined.reason, declined.detail)
    except (IndexError, AttributeError):
        return DeclinedLoop(function, first.start, DeclineReason.MALFORMED, "no such local or global")


def _crossing(mask: int, types: Sequence[str], shapes: Mapping[int, str]) -> Iterator[TypedLocal]:
    """Yield a region's inputs or outputs: locals, and lanes of those that are vectors."""
    for local in locals_of(mask):
        if types[local] == VECTOR:
            kind = crossing_kind(shapes[local])
            yield from ((crossing_number(local, lane), kind) for lane in range(lane_count(kind)))
        else:
            yield local, _value_type(types[local])


def _value_type(name: str) -> ValueType:
    for kind in _VALUE_TYPES:
        if name == kind:
            return kind
    raise Declined(DeclineReason.INSTRUCTION, f"a local of type {name}")


def _integer_type(name: str) -> ValueType:
    if name not in {"i32", "i64"}:
        raise Declined(DeclineReason.INSTRUCTION, f"a global of type {name}")
    return _value_type(name)


@dataclass(slots=True)
class _RegionPiece:
    """A block while it is read.

    Attributes:
        reaches: how many blocks are around the outermost one that a branch inside leads to.
        pending: places of the loops inside that are not all of themselves in a block that no branch leaves.
        depth: loops in each other, itself included.
        end: place of its ``end``, once it is read.
        is_scattered: an address in it is data: single loops in it are not worth a call in each iteration.
    """

    start: int
    is_loop: bool
    plain: bool
    reaches: int
    obstacle: tuple[DeclineReason, str] | None = None
    pending: list[int] = field(default_factory=list)
    regions: list[_RegionPiece] = field(default_factory=list)
    depth: int = 0
    end: int = 0
    is_scattered: bool = False


class _RegionScan:
    """Finds the regions of one body in one pass, given what `data_addresses` tells of it."""

    def __init__(self, code: Sequence[Instruction], addresses: Mapping[int, int]) -> None:
        self.addresses = addresses
        self.declined: list[tuple[int, DeclineReason, str]] = []
        self.stack = [_RegionPiece(-1, is_loop=False, plain=False, reaches=0)]
        for place, instruction in enumerate(code):
            name = instruction[0]
            if name in _PASSED_OVER:
                continue
            if name in OPENING:
                plain = name in {"block", "loop"} and instruction[1] is None
                self.stack.append(_RegionPiece(place, name == "loop", plain, len(self.stack)))
            elif name == "end":
                self.stack[-1].end = place
                self._close()
                if not self.stack:
                    break
            else:
                self._other(place, instruction)
        while len(self.stack) > 1:
            self._close()
        self.regions = self.stack[0].regions if self.stack else []
        for start in self.stack[0].pending if self.stack else []:
            self.declined.append((start, DeclineReason.CONTROL_FLOW, "a branch leaves the function"))

    def _other(self, place: int, instruction: Instruction) -> None:
        name = instruction[0]
        piece = self.stack[-1]
        if place in self.addresses:
            outside = next(each for each in reversed(self.stack) if each.start <= self.addresses[place])
            outside.obstacle = outside.obstacle or _SCATTERED
            around = self.stack[: self.stack.index(outside) + 1]
            next((each for each in reversed(around) if each.is_loop), outside).is_scattered = True
        if name in {"br", "br_if", "br_table"}:
            depth = max(instruction[1]) if name == "br_table" else instruction[1]
            piece.reaches = min(piece.reaches, max(len(self.stack) - 1 - depth, 0))
        elif name in ACCESS_EFFECTS:
            if instruction[1][2]:
                piece.obstacle = (DeclineReason.INSTRUCTION, "another memory")
        elif name not in {"global.get", "memory.fill", "memory.copy"} and piece.obstacle is None:
            reason = DeclineReason.CALL if "call" in name else DeclineReason.INSTRUCTION
            piece.obstacle = (reason, name)

    def _close(self) -> None:
        piece = self.stack.pop()
        if not self.stack:
            return
        if piece.is_loop:
            piece.pending.append(piece.start)
            piece.depth += 1
        if piece.pending and piece.plain and piece.reaches >= len(self.stack):
            if piece.obstacle is None:
                piece.regions = [piece]
            else:
                self.declined += [(start, *piece.obstacle) for start in piece.pending]
            piece.pending = []
        if piece.is_scattered:
            self.declined += [(each.start, *_SCATTERED) for each in piece.regions if each.depth == 1]
            piece.regions = [each for each in piece.regions if each.depth > 1]
        around = self.stack[-1]
        around.pending += piece.pending
        around.regions += piece.regions
        around.reaches = min(around.reaches, piece.reaches)
        around.obstacle = around.obstacle or piece.obstacle
        around.depth = max(around.depth, piece.depth)
