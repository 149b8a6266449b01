"""Moving parts of managed memory to the device before a kernel reads them.

A kernel that touches managed memory that lies on the host stops at every group of pages: on an H200, 8 GB/s arrive so,
and 51 GB/s when the driver is asked ahead.

Source: CUDA Driver API, "Unified Addressing", cuMemPrefetchAsync.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from tensorwasm.errors import CallerError, InternalError, LimitError
from tensorwasm.gpu.device.limits import MOST_MOVES
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.device.protocols import Stream
from tensorwasm.gpu.memory import pages
from tensorwasm.values import MIB, Region

PREFETCH_BYTES: Final = 2 * MIB
"""Bytes of a launch's windows from which they are moved ahead of it. Every launch asks, also for what is there already:
the guest may have touched it since. Fewer bytes arrive by faults in a quarter of a millisecond."""

_REFUSALS: Final = (CallerError, LimitError, InternalError)
_log: Final = logging.getLogger(__name__)


class Prefetch:
    """Moves parts of one managed memory to its device. Not safe from several threads.

    Attributes:
        effective: whether moving has an effect, as far as is known.
    """

    __slots__ = ("_device", "effective")

    def __init__(self, device: Device) -> None:
        self._device = device
        self.effective = device.info.concurrent_managed_access

    def choose(self, windows: Iterable[tuple[int, int]], memory: Region) -> list[Region]:
        """Return the longest disjoint parts that are worth moving, ascending; none if they are small together.

        Args:
            windows: first byte and length of each; they may overlap, and be empty.
            memory: what may be moved, in whole pages.
        """
        if not self.effective:
            return []
        spans: list[Region] = []
        for address, length_bytes in sorted(windows):
            start = max(address // pages.PAGE_BYTES * pages.PAGE_BYTES, memory.address)
            end = min(pages.rounded(address + length_bytes, pages.PAGE_BYTES), memory.end)
            if length_bytes and start < end:
                if spans and start <= spans[-1].end:
                    start = spans[-1].address
                    end = max(end, spans.pop().end)
                spans.append(Region(start, end - start, host=True))
        longest = sorted(spans, key=lambda span: span.size_bytes)[-MOST_MOVES:]
        if sum(span.size_bytes for span in longest) < PREFETCH_BYTES:
            return []
        return sorted(longest, key=lambda span: span.address)

    def start(self, spans: Sequence[Region], stream: Stream) -> None:
        """Start moving parts, behind the work in a stream that does not record.

        It is a hint: one that is refused is logged, and the pages move when they are touched. A lost device and a
        kernel's fault are raised.
        """
        move = self._device.unified.prefetch
        try:
            self.effective = all(move(span.address, span.size_bytes, stream, to_host=False) for span in spans)
        except _REFUSALS as refused:
            _log.info("managed memory was not moved ahead of a kernel: %s", refused)
        if not self.effective:
            _log_ineffective(self._device.info.name)


@cache
def _log_ineffective(device: str) -> None:
    """Log, once for a device, that moving has no effect there."""
    _log.info("on %s managed memory moves only when it is touched", device)
