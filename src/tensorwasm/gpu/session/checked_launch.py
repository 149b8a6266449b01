"""A launch of a kernel that checks its accesses: what it may access, and what it reports.

Everything before it has ended when it starts, and it is waited for at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from tensorwasm.errors import InternalError, KernelFault
from tensorwasm.gpu.device.arguments import Argument, HostWindow
from tensorwasm.gpu.session.core import SessionCore
from tensorwasm.gpu.state.numbered import SessionStream
from tensorwasm.gpu.state.resource_table import HeldKernel
from tensorwasm.ptx.checked import MARK, RECORD_BYTES, AccessReport, Site, new_record, read_report
from tensorwasm.values import MIB, Deadline

_log: Final = logging.getLogger(__name__)

_FAR_BYTES: Final = 1024 * MIB
"""A distance that says nothing about what went wrong."""
_OFFSETS: Final = 1 << 32
"""How many offsets in shared memory there are; the greater half of them is before the first variable."""
_KINDS: Final = {"load": "a load", "store": "a store", "atomic": "an atomic operation"}


class _Allowed(NamedTuple):
    """Memory that the kernel may access."""

    start: int
    end: int
    what: str


class CheckedLaunch:
    """A launch of a kernel that checks its accesses. Making it writes into the kernel's record what it may access.

    Args:
        core: of its session, whose lock is held.
        kernel: with the session's copy of its variables.
        windows: of the launch, where the device reaches them.
        shared_bytes: dynamic shared memory that the launch asks for.
        deadline: when it must have ended.

    Raises:
        KernelFault: work before it broke a rule.
        InvokeTimeout: that did not end in time.
        DeviceLost: the device does not answer.
    """

    def __init__(
        self, core: SessionCore, kernel: HeldKernel, windows: Sequence[Argument], shared_bytes: int, deadline: Deadline
    ) -> None:
        guarded, data = kernel.shared.guarded, kernel.data
        if guarded is None or data is None or not guarded.data.image.startswith(MARK):
            raise InternalError("a kernel that checks its accesses has no record")
        self._core, self._kernel, self._deadline = core, kernel, deadline
        self._record_at = data.address
        self._ranges = list[_Allowed]()
        for held in core.table.kernels.values():  # a kernel may have left the address of a variable to this one
            whose = "its module" if held is kernel else f"another kernel, {held.shared.entry}"
            self._ranges += _variables(held, whose)
        size_bytes = guarded.shared.program_bytes + (shared_bytes if guarded.shared.dynamic else 0)
        self._shared = _Allowed(0, size_bytes, f"the {size_bytes} bytes of shared memory")
        for handle, region in core.table.buffers.items():
            end = region.address + region.size_bytes
            self._ranges.append(_Allowed(region.address, end, f"buffer {handle} of {region.size_bytes} bytes"))
        for window in windows:
            if isinstance(window, HostWindow):
                end, what = window.address + window.length_bytes, f"a window of {window.length_bytes} bytes"
                self._ranges.append(_Allowed(window.address, end, what))
        core.work.wait_all(deadline)
        table = new_record([(each.start, each.end) for each in self._ranges], self._shared.end)
        core.device.write(self._record_at, table, None, deadline)

    def wait(self, stream: SessionStream) -> None:
        """Wait for its end.

        Raises:
            KernelFault: it accessed other memory, or trapped by itself.
        """
        try:
            self._core.work.wait(stream, self._deadline)
        except KernelFault:
            record = bytearray(RECORD_BYTES)
            self._core.device.read(self._record_at, memoryview(record), None, self._deadline)
            sites = self._kernel.shared.sites
            report = read_report(bytes(record), sites)
            if report is None:
                raise
            explained = self._explain(sites[report.site], report)
            _log.warning("%s", explained)  # the guest may hide it
            raise KernelFault(explained) from None

    def _explain(self, site: Site, report: AccessReport) -> str:
        """Return the report for people."""
        line = f"line {site.position.line} of the PTX{site.source and f' ({site.source})'}"
        where = f"{line}, block {report.block}, thread {report.thread}"
        at, place = report.address, ""
        if report.shared:
            at -= _OFFSETS if at >= _OFFSETS // 2 else 0
            place = f" at offset {at}"
        elif self._core.device.info.kind == "cuda":  # on the emulator it is one of this process, which no message shows
            place = f" at {at:#x}"
        access = f"{site.mnemonic}, {_KINDS[site.kind]} of {report.size_bytes} bytes{place}"
        allowed = [self._shared] if report.shared else self._ranges
        return f"{self._kernel.shared.entry}, {where}: {access}, {_fault(at, at + report.size_bytes, allowed)}"


def _fault(start: int, end: int, allowed: Sequence[_Allowed]) -> str:
    """Return what is wrong with an access."""
    if not allowed:
        return "has no memory that it may access"
    nearest = min(allowed, key=lambda each: max(each.start - start, end - each.end, 0))
    before, behind = nearest.start - start, end - nearest.end
    if max(before, behind) <= 0:
        return f"is not aligned, in {nearest.what}"
    if max(before, behind) > _FAR_BYTES:
        return f"is far from all that it may access; nearest is {nearest.what}"
    return (
        f"begins {before} bytes before {nearest.what}" if before > 0 else f"ends {behind} bytes behind {nearest.what}"
    )


def _variables(kernel: HeldKernel, whose: str) -> list[_Allowed]:
    """Return where the variables of a kernel's module are, if there are some."""
    guarded, data = kernel.shared.guarded, kernel.data
    if guarded is None or data is None:
        return []
    start, end = data.address + RECORD_BYTES * bool(kernel.shared.sites), data.address + guarded.data.size_bytes
    return [_Allowed(start, end, f"the variables of {whose}")] if start < end else []
