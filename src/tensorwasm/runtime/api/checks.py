"""Checks of what a runtime is given: limits, caps and files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs, ModuleTooLarge
from tensorwasm.gpu.device.limits import MAX_PROCESS_DEVICE_BYTES
from tensorwasm.gpu.limits.accounts import MAX_CAP_BYTES
from tensorwasm.values import MIB, Limits

MAX_MEMORY_BYTES: Final = 1 << 32
"""Most that a linear memory can have."""


def checked_quota(gpu_bytes: int | None, setting_mib: int | None) -> int:
    """Return a tenant's cap in bytes: the given one, else the setting's, else the process's; raise `InvalidArgs`."""
    if gpu_bytes is None:
        return MAX_PROCESS_DEVICE_BYTES if setting_mib is None else setting_mib * MIB
    if not 0 <= gpu_bytes <= MAX_CAP_BYTES:
        raise InvalidArgs(f"gpu_bytes is 0 to {MAX_CAP_BYTES}, not {gpu_bytes}")
    return gpu_bytes


def check_limits(limits: Limits) -> None:
    """Require limits to be in range, or raise `InvalidArgs`."""
    if not 0 < limits.memory_bytes <= MAX_MEMORY_BYTES:
        raise InvalidArgs(f"memory_bytes is 1 to {MAX_MEMORY_BYTES}, not {limits.memory_bytes}")
    if not limits.wall_s > 0:
        raise InvalidArgs(f"wall_s is a positive number of seconds, not {limits.wall_s}")
    if min(limits.module_bytes, limits.output_bytes, limits.stdin_bytes, limits.table_elements) < 0:
        raise InvalidArgs("a limit is negative")


def read_module(path: Path, limit_bytes: int) -> bytes:
    """Read a file, at most one byte beyond the limit; raise `InvalidArgs`, or `ModuleTooLarge` if there is more."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            # Room for all that there may be takes longer to find than the file to read.
            most_bytes = min(limit_bytes, found.st_size) if stat.S_ISREG(found.st_mode) else limit_bytes
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise InvalidArgs(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise InvalidArgs(f"{str(path)[:64]!r} is no path") from None
    if len(data) > limit_bytes:
        known = f"{found.st_size}" if stat.S_ISREG(found.st_mode) else f"more than {limit_bytes}"
        raise ModuleTooLarge(f"the module has {known} bytes; the limit is {limit_bytes}")
    return data
