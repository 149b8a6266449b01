"""Places in memory that a loop in a thread reads and writes in every turn, and that it may keep in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.codegen.iterations import Access, Iteration, distance
from tensorwasm.offload.codegen.linear import Linear, weighted
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
    """Return the places that a loop may keep: of arrays to which it makes no other access that may be to them."""
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
        for key, accesses in _staying(loop, places).items()
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


_Places = Mapping[tuple[Linear, int], Sequence[Access]]


def _staying(loop: For, places: _Places) -> _Places:
    """Return those places of an array that do not move, if all accesses to others lie apart from them."""
    if len(places) > MAX_PLACES or (len(places) > 1 and any(copies > 1 for _, copies in places)):
        return {}
    listed = [(address, accesses[0].size_bytes) for (address, _), accesses in places.items()]
    moving = [place for place in listed if place[0].mentions(loop.variable)]
    staying = [place for place in listed if place not in moving]
    apart = all(_apart(one, other) for number, one in enumerate(staying) for other in staying[:number])
    if not apart or not all(_passes_by(loop, one, other) for one in staying for other in moving):
        return {}
    found = {key: accesses for key, accesses in places.items() if not key[0].mentions(loop.variable)}
    return found if all(map(_same_type, found.values())) else {}


_Place = tuple[Linear, int]
"""An address and how many bytes from there on."""


def _apart(one: _Place, other: _Place) -> bool:
    between = distance(one[0], other[0])
    return between is not None and not -other[1] < between < one[1]


def _passes_by(loop: For, one: _Place, other: _Place) -> bool:
    """Return whether the second place, which moves away from the first one or from beside it, never comes to it."""
    between = weighted([(other[0], 1), (one[0], -1)])
    step = between.coefficient(loop.variable)
    if not isinstance(loop.first, int) or between.terms != {(loop.variable, step)}:
        return False
    first = between.constant + step * loop.first
    return first >= one[1] if step > 0 else first <= -other[1]


def _same_type(accesses: Sequence[Access]) -> bool:
    """Return whether accesses are of whole values of one type."""
    kinds = {access.opcode.partition(".")[0] for access in accesses}
    return len(kinds) == 1 and all(access.opcode.endswith((".load", ".store")) for access in accesses)
