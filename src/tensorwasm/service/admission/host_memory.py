"""How much of the host's memory instances of all tenants may hold, by what the machine or its control group has.

What an instance may grow to is held before it is made, so memory that is promised is there. The rest is the process's
own, its answers', caches' and database's, and the compilers'.
"""

from __future__ import annotations

from typing import Final

from tensorwasm import machine_memory
from tensorwasm.tenancy.quotas import LEAST_MEMORY_BYTES
from tensorwasm.values import MIB

RESERVE: Final = 8
"""One part of so many is for everything that is no instance."""

LEAST_RESERVE_BYTES: Final = 384 * MIB
COMPILERS: Final = 4
"""One part of so many is what compilations share."""


def host_bytes(limit_bytes: int | None = None) -> int:
    """Return the linear memory that all tenants together may hold; on the smallest machine one instance of usual size.

    Args:
        limit_bytes: what the process may use; None asks the system.
    """
    whole = machine_memory.limit_bytes() if limit_bytes is None else limit_bytes
    return max(LEAST_MEMORY_BYTES, whole - whole // COMPILERS - max(LEAST_RESERVE_BYTES, whole // RESERVE))
