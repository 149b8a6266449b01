"""Finds regions that follow one another with nothing between that may not be a part of a region, too.

One region of them all runs what the loops of several do with its arrays copied once. They stay regions by themselves
inside it, for when it declines.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.offload.analysis.tree import CodeBlock
from tensorwasm.offload.stack import STACK_EFFECTS
from tensorwasm.wasm.instructions import Instruction

MOST_FUSED: Final = 8
"""Regions in one."""


@dataclass(slots=True)
class FusedRegions:
    """Blocks that follow one another and contain several regions; one region may be from the first to the last.

    Attributes:
        count: regions in them.
        height: of the stack behind the last block, compared with its height at the blocks.
    """

    blocks: list[CodeBlock] = field(default_factory=list)
    count: int = 0
    height: int = 0

    def pass_over(self, item: Instruction | CodeBlock) -> bool:
        """Go on behind an item without a region; return whether a region may contain it."""
        if isinstance(item, CodeBlock):
            effect = (int(item.kind == "if"), item.results) if _is_closed(item) else None
        else:
            effect = STACK_EFFECTS.get(item[0])
        if effect is None or self.height < effect[0]:
            return False
        self.height += effect[1] - effect[0]
        return True


def find_fused(root: CodeBlock, starts: Sequence[int], declined: Sequence[int]) -> list[FusedRegions]:
    """Find the regions of a function's body that may be one, given where regions and declined loops start."""
    found: list[FusedRegions] = []
    waiting = [root]
    while waiting:
        block = waiting.pop()
        for items in (block.items, block.otherwise or ()):
            counts = {id(each): _count(each, starts) for each in items if isinstance(each, CodeBlock)}
            barred = {id(each) for each in items if isinstance(each, CodeBlock) and _count(each, declined)}
            together = [run for run in _together(items, counts, barred) if run.count > 1]
            found += together
            fused = {id(each) for run in together for each in run.blocks}
            waiting += [each for each in items if isinstance(each, CodeBlock) and id(each) not in fused]
    return found


def _count(block: CodeBlock, starts: Sequence[int]) -> int:
    return sum(block.start <= start <= block.end for start in starts)


def _together(
    items: Iterable[Instruction | CodeBlock], counts: Mapping[int, int], barred: Container[int]
) -> Iterator[FusedRegions]:
    """Yield what may be fused of items, given how many regions each block has, and those with other loops."""
    run = FusedRegions()
    for item in items:
        count = counts.get(id(item), 0)
        if isinstance(item, CodeBlock) and count:
            fits = id(item) not in barred and item.kind != "if" and not item.results and _is_closed(item)
            if not fits or run.height or run.count + count > MOST_FUSED:
                yield run
                run = FusedRegions()
            if fits and count <= MOST_FUSED:
                run.blocks.append(item)
                run.count += count
        elif run.blocks and not run.pass_over(item):
            yield run
            run = FusedRegions()
    yield run


def _is_closed(block: CodeBlock, depth: int = 0) -> bool:
    """Return whether a block is without parameters and what no region contains, and no branch leaves it."""
    if block.params or block.kind == "try_table":
        return False
    for item in (*block.items, *(block.otherwise or ())):
        if isinstance(item, CodeBlock):
            if not _is_closed(item, depth + 1):
                return False
        elif item[0] in {"br", "br_if", "br_table"}:
            if max(item[1]) > depth if item[0] == "br_table" else item[1] > depth:
                return False
        elif item[0] not in STACK_EFFECTS:
            return False
    return True
