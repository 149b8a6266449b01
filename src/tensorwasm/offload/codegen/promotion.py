"""Places in memory that a loop in a thread reads and writes in every turn, and that it may keep in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.codegen.iterations import Access, Iteration, distance
from tensorwasm.offload.codegen.linear import Linear
from tensorwasm.offload.nest import Store, accesses_of
from tensorwasm.offload.program import Block, Execute, For, If

MAX_PLACES: Final = 16
"""In one loop, for they are registers."""


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """A place in an array that is read before a loop and written after it.

    Attributes:
        address: offset in the array.
        copies: neighbours that it stands for.
        accesses: to it in the loop.
    """

    array: int
    address: Linear
    copies: int
    accesses: tuple[Access, ...]


def kept_places(
    loop: For, iterations: Mapping[Execute, Iteration], array_of: Mapping[Access, int]
) -> tuple[KeptPlace, ...]:
    """Return the places that a loop may keep: of arrays to which it makes no other access."""
    if not all(isinstance(part, Execute) for part in loop.body):
        return ()
    uses: dict[int, dict[tuple[Linear, int], list[Access]]] = {}
    for part in executes(loop.body):
        iteration = iterations[part]
        for access in accesses_of(iteration.effects):
            key = iteration.addresses[access], iteration.copies
            uses.setdefault(array_of[access], {}).setdefault(key, []).append(access)
    found = [
        KeptPlace(array, *key, tuple(dict.fromkeys(accesses)))
        for array, places in uses.items()
        if _may_stay(loop, places)
        for key, accesses in places.items()
        if any(isinstance(access, Store) for access in accesses)
    ]
    return tuple(found) if len(found) <= MAX_PLACES else ()


def executes(block: Block) -> Iterator[Execute]:
    """Yield what a block executes, with the blocks in it."""
    for part in block:
        if isinstance(part, Execute):
            yield part
        elif isinstance(part, If):
            yield from executes((*part.then, *part.otherwise))
        else:
            yield from executes(part.body)


def _may_stay(loop: For, places: Mapping[tuple[Linear, int], Sequence[Access]]) -> bool:
    """Return whether accesses to an array are all to places that do not move, and lie apart."""
    if len(places) > MAX_PLACES or any(address.mentions(loop.variable) for address, _ in places):
        return False
    if len(places) > 1 and any(copies > 1 for _, copies in places):
        return False
    if any(not _same_type(accesses) for accesses in places.values()):
        return False
    listed = [(address, accesses[0].size_bytes) for (address, _), accesses in places.items()]
    for number, (one, size_bytes) in enumerate(listed):
        for other, other_bytes in listed[:number]:
            apart = distance(one, other)
            if apart is None or -other_bytes < apart < size_bytes:
                return False
    return True


def _same_type(accesses: Sequence[Access]) -> bool:
    """Return whether accesses are of whole values of one type."""
    kinds = {access.opcode.partition(".")[0] for access in accesses}
    return len(kinds) == 1 and all(access.opcode.endswith((".load", ".store")) for access in accesses)
