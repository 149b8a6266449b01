"""Function bodies as nested blocks, and which locals are live at their labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.types import FuncType

PLACED: Final = frozenset({"br_if", "memory.fill", "memory.copy"})
OPENING: Final = frozenset({"block", "loop", "if", "try_table"})

_MAX_DEPTH: Final = 100
_MAX_PASSES: Final = 16
_MAX_LOCALS: Final = 4096
_LEAVING: Final = frozenset(
    {"return", "unreachable", "throw", "throw_ref", "return_call", "return_call_indirect", "return_call_ref"}
)


@dataclass(slots=True, eq=False)
class CodeBlock:
    """A block with what is in it; sets of locals are numbers with a bit for each.

    Attributes:
        kind: ``block``, ``loop``, ``if`` or ``try_table``.
        start: place of its first instruction in the function's body.
        otherwise: what follows ``else``.
        caught: labels that an exception inside leads to.
        assigned: locals that are written inside.
        live: locals that may be read after a branch to its label.
        live_after: locals that may be read behind its end.
    """

    kind: str
    start: int
    end: int = 0
    params: int = 0
    results: int = 0
    items: list[Instruction | CodeBlock] = field(default_factory=list)
    otherwise: list[Instruction | CodeBlock] | None = None
    caught: tuple[int, ...] = ()
    assigned: int = 0
    live: int = 0
    live_after: int = 0
    has_loop: bool = False


def parse(code: Sequence[Instruction], first: int, last: int, types: Sequence[FuncType]) -> CodeBlock:
    """Return the instructions from ``first`` up to ``last`` as the content of a block.

    Each instruction that `PLACED` names has its place as one more immediate.

    Raises:
        Declined: blocks are nested too deep, or not well-formed.
    """
    root = CodeBlock("block", first, last)
    stack = [root]
    items = root.items
    for place in range(first, last):
        instruction = code[place]
        name = instruction[0]
        if name in OPENING:
            block = _open(instruction, place, types)
            items.append(block)
            stack.append(block)
            items = block.items
            if len(stack) > _MAX_DEPTH:
                raise Declined(DeclineReason.TOO_LARGE, "blocks in blocks")
        elif name == "else":
            stack[-1].otherwise = items = []
        elif name == "end":
            block = stack.pop()
            if not stack:
                raise Declined(DeclineReason.MALFORMED)
            block.end = place
            around = stack[-1]
            around.assigned |= block.assigned
            around.has_loop |= block.has_loop or block.kind == "loop"
            items = around.items if around.otherwise is None else around.otherwise
        else:
            items.append((*instruction, place) if name in PLACED else instruction)
            if name in {"local.set", "local.tee"}:
                stack[-1].assigned |= _bit(instruction[1])
    if len(stack) > 1:
        raise Declined(DeclineReason.MALFORMED)
    return root


def mark_live(root: CodeBlock, live_after: int) -> int:
    """Set the live locals of all blocks, given those behind the end of the root; return those at its start."""
    liveness = _Liveness()
    for _ in range(_MAX_PASSES):
        liveness.changed = False
        start = liveness.block(root, live_after, 0)
        if not liveness.changed:
            return start
    raise Declined(DeclineReason.TOO_LARGE, "loops in loops")


def locals_of(mask: int) -> Iterable[int]:
    """Yield the numbers of a set of locals in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _bit(local: int) -> int:
    if local >= _MAX_LOCALS:
        raise Declined(DeclineReason.TOO_LARGE, "locals")
    return 1 << local


def _open(instruction: Instruction, place: int, types: Sequence[FuncType]) -> CodeBlock:
    block = CodeBlock(instruction[0], place)
    kind = instruction[1]
    if isinstance(kind, int):
        if kind >= len(types):
            raise Declined(DeclineReason.MALFORMED)
        block.params, block.results = len(types[kind].params), len(types[kind].results)
    elif kind is not None:
        block.results = 1
    if instruction[0] == "try_table":
        block.caught = tuple([label for _, _, label in instruction[2]])
    return block


class _Liveness:
    """One pass over a tree, from its end to its start."""

    def __init__(self) -> None:
        self.changed = False
        self.labels: list[CodeBlock] = []

    def block(self, block: CodeBlock, after: int, held: int) -> int:
        """Return what is live at the start; what is ``held`` may be read by a handler at any time."""
        block.live_after = after
        if block.kind != "loop":
            block.live = after
        for label in block.caught:
            held |= self._at(label)
        self.labels.append(block)
        live = self._items(block.items, after, held)
        if block.kind == "if":
            live |= after if block.otherwise is None else self._items(block.otherwise, after, held)
        self.labels.pop()
        if block.kind == "loop" and live != block.live:
            block.live |= live
            self.changed = True
        return live

    def _at(self, depth: int) -> int:
        return self.labels[-1 - depth].live if depth < len(self.labels) else 0

    def _items(self, items: list[Instruction | CodeBlock], live: int, held: int) -> int:
        for item in reversed(items):
            if isinstance(item, CodeBlock):
                live = self.block(item, live, held)
                continue
            name = item[0]
            if name == "local.get":
                live |= _bit(item[1])
            elif name in {"local.set", "local.tee"}:
                live = live & ~_bit(item[1]) | held
            elif name == "br":
                live = self._at(item[1])
            elif name == "br_if":
                live |= self._at(item[1])
            elif name == "br_table":
                live = 0
                for depth in item[1]:
                    live |= self._at(depth)
            elif name in _LEAVING:
                live = held
        return live
