"""The range of the limits of a runtime and its modules."""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.values import Limits

MAX_MEMORY_BYTES: Final = 1 << 32
"""Most that a linear memory can have."""


def check_limits(limits: Limits) -> None:
    """Require limits to be in range, or raise `InvalidArgs`."""
    if not 0 < limits.memory_bytes <= MAX_MEMORY_BYTES:
        raise InvalidArgs(f"memory_bytes is 1 to {MAX_MEMORY_BYTES}, not {limits.memory_bytes}")
    if not limits.wall_s > 0:
        raise InvalidArgs(f"wall_s is a positive number of seconds, not {limits.wall_s}")
    if min(limits.module_bytes, limits.output_bytes, limits.stdin_bytes, limits.table_elements) < 0:
        raise InvalidArgs("a limit is negative")
