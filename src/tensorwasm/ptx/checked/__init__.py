"""Checks of every access to global and shared memory, written into a kernel: for authors of kernels, on any device.

The kernel calls a function before each access, which compares the address with a table of ranges and, if it is in none
or not aligned, writes a report and traps. Table and report are a variable of the kernel's module, so that the result is
a program like any other: whatever guards kernels guards this one as well, and what it reports is to be trusted as
little as the rest of a guest's memory.

Not checked: local and constant memory, parameters, rows of ``ldmatrix`` and ``stmatrix``, and of a matrix of ``wmma``
all rows but the first.
"""

from __future__ import annotations

from tensorwasm.ptx.checked.instrument import instrument
from tensorwasm.ptx.checked.record import MARK, MAX_RANGES, RECORD_BYTES, AccessReport, Site, new_record, read_report

__all__ = ["MARK", "MAX_RANGES", "RECORD_BYTES", "AccessReport", "Site", "instrument", "new_record", "read_report"]
