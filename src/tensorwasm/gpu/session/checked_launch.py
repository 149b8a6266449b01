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
from tensorwasm.ptx.checked import MARK, RECORD_BYTES, AccessReport, Site, ranges_of, read_report
from tensorwasm.values import Deadline

_log: Final = logging.getLogger(__name__)


class _Allowed(NamedTuple):
    """Memory that the kernel may access."""

    start: int
    end: int
    what: str


class CheckedLaunch:
    """One launch of such a kernel, which is told when this is made what it may access.

    Args:
        core: of its session, whose lock is held.
        kernel: with the session's copy of its variables.
        windows: of the launch, where the device reaches them.
        deadline: when it must have ended.

    Raises:
        KernelFault: work before it broke a rule.
        InvokeTimeout: that did not end in time.
        DeviceLost: the device does not answer.
    """

    def __init__(self, core: SessionCore, kernel: HeldKernel, windows: Sequence[Argument], deadline: Deadline) -> None:
        guarded, data = kernel.shared.guarded, kernel.data
        if guarded is None or data is None:
            raise InternalError("a kernel that checks its accesses has no record")
        self._core, self._kernel, self._deadline = core, kernel, deadline
        self._record_at = data.address + guarded.data.image.index(MARK)
        end = data.address + data.size_bytes
        self._ranges = [_Allowed(data.address, end, "the variables of its module")]
        for handle, region in core.table.buffers.items():
            end = region.address + region.size_bytes
            self._ranges.append(_Allowed(region.address, end, f"buffer {handle} of {region.size_bytes} bytes"))
        for window in windows:
            if isinstance(window, HostWindow):
                end, what = window.address + window.length_bytes, f"a window of {window.length_bytes} bytes"
                self._ranges.append(_Allowed(window.address, end, what))
        core.work.wait_all(deadline)
        table = ranges_of([(each.start, each.end) for each in self._ranges])
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
            report = read_report(bytes(record), len(sites))
            if report is None:
                raise
            explained = self._explain(sites[report.site], report)
            _log.warning("%s", explained)  # the guest may hide it
            raise KernelFault(explained) from None

    def _explain(self, site: Site, report: AccessReport) -> str:
        """Return the report for people."""
        address, end = report.address, report.address + site.size_bytes
        nearest = min(self._ranges, key=lambda each: max(each.start - address, end - each.end, 0))
        if nearest.start <= address and end <= nearest.end:
            wrong = f"is not aligned, in {nearest.what}"
        elif address < nearest.start:
            wrong = f"begins {nearest.start - address} bytes before {nearest.what}"
        else:
            wrong = f"ends {end - nearest.end} bytes behind {nearest.what}"
        line = f"line {site.position.line} of the PTX{site.source and f' ({site.source})'}"
        where = f"{line}, block {report.block}, thread {report.thread}"
        # On the emulator it is an address of this process, which no message shows.
        place = f" at {address:#x}" if self._core.device.info.kind == "cuda" else ""
        return (
            f"{self._kernel.shared.entry}, {where}: {site.mnemonic}, a {site.kind} of {site.size_bytes} bytes{place}, "
            f"{wrong}"
        )
