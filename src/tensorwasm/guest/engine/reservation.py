"""Checks whether this process can reserve a pool of sandboxes, before wasmtime tries: on failure it ends the process.

The checks are the address space, the process's limit on it, and the kernel's limit on mappings.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import CapacityExhausted

_ADDRESS_SPACE_BYTES: Final = 1 << 47
MAPPINGS_PER_SLOT: Final = 5  # measured with live instances: memory, image, guards, table, stack
_SPARE_MAPPINGS: Final = 8192  # for everything else: libraries, threads, drivers, memory registered with a device
_TIB: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """Sizes of a pool, all in bytes of address space, not of memory.

    Attributes:
        slots: sandboxes that may live at once.
        guard_bytes: unmapped after each memory.
        table_bytes: reserved for the tables of one sandbox.
        stack_bytes: reserved for the fiber of one sandbox, 0 in a pool without fibers.
        mappings: most that one sandbox may have.
        most_heaps: sandboxes that may have a heap for exceptions at once, each as large as a linear memory.
    """

    slots: int
    memory_bytes: int
    guard_bytes: int
    table_bytes: int
    stack_bytes: int = 0
    mappings: int = MAPPINGS_PER_SLOT
    most_heaps: int = 0

    @property
    def slot_bytes(self) -> int:
        """What one sandbox takes of the reservation."""
        return self.memory_bytes + self.guard_bytes + self.table_bytes + self.stack_bytes

    @property
    def heaps(self) -> int:
        """Heaps in the pool."""
        return min(self.slots, self.most_heaps)

    @property
    def heap_bytes(self) -> int:
        """What one heap takes of the reservation."""
        return self.memory_bytes + self.guard_bytes

    @property
    def total_bytes(self) -> int:
        """The whole reservation."""
        return self.slots * self.slot_bytes + self.heaps * self.heap_bytes + self.guard_bytes


def most_slots(layout: PoolLayout) -> int:
    """Return how many slots a pool of this process can have now, at least 1; the layout's own number is ignored.

    The kernel's limit on mappings decides (``vm.max_map_count``), less those that exist and a reserve; then the address
    space. Mappings of earlier pools are counted only as their sandboxes are made.
    """
    by_mappings = (_mapping_limit() - _SPARE_MAPPINGS - _mapping_count()) // layout.mappings
    return max(1, min(by_mappings, _most_by_addresses(layout)))


def _most_by_addresses(layout: PoolLayout) -> int:
    others_bytes = layout.guard_bytes + layout.most_heaps * layout.heap_bytes
    return (_ADDRESS_SPACE_BYTES - others_bytes) // layout.slot_bytes - 1


def check(layout: PoolLayout) -> None:
    """Try whether a pool can be reserved, without keeping it; `CapacityExhausted` says what is short and what to do."""
    if layout.slots < 1:
        raise CapacityExhausted("a pool needs at least one slot")
    if layout.total_bytes > _ADDRESS_SPACE_BYTES:
        raise CapacityExhausted(
            f"{layout.slots} slots need {layout.total_bytes / _TIB:.1f} TiB of address space and there are "
            f"{_ADDRESS_SPACE_BYTES // _TIB}; ask for at most {_most_by_addresses(layout)} slots"
        )
    limit, used = _mapping_limit(), _mapping_count()
    if used + layout.slots * layout.mappings > limit:
        raise CapacityExhausted(
            f"{layout.slots} slots may need {layout.slots * layout.mappings} mappings and the kernel allows "
            f"{limit}, of which {used} are taken; ask for fewer slots or raise vm.max_map_count"
        )
    if sys.platform == "win32":  # there an anonymous mapping would be charged to the page file
        return
    try:
        mmap.mmap(-1, layout.total_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except (OSError, ValueError, OverflowError) as error:
        raise CapacityExhausted(
            f"{layout.slots} slots need {layout.total_bytes / _TIB:.2f} TiB of address space and the system refuses "
            f"({error}); ask for fewer slots or raise the limit (ulimit -v)"
        ) from None


def _mapping_limit() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    return sys.maxsize


def _mapping_count() -> int:
    with contextlib.suppress(OSError):
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    return 0
