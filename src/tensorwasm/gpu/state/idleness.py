"""Whether a session has nothing on its device any more, for whoever needs what it holds meanwhile."""

from __future__ import annotations

import time
from typing import Final

from tensorwasm.errors import InvokeTimeout, KernelFault
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.state.streams import SessionStream, StreamTable

LOOK_NS: Final = 100_000_000
"""How often the device is asked of one session: all holders of a full gate are asked every few milliseconds."""


class IdleCheck:
    """Asks one session's device. Any thread may call, at any time; never waits, changes nothing of the session.

    Work is counted off when the guest asks for it. One that never does would count as busy until it ends.

    Args:
        device: the device.
        lanes: the streams.
        sheet: where work is counted.
    """

    __slots__ = ("_device", "_lanes", "_next_ns", "_sheet")

    def __init__(self, device: Device, lanes: StreamTable, sheet: SessionLayoutWriter) -> None:
        self._device = device
        self._lanes = lanes
        self._sheet = sheet
        self._next_ns = 0

    def __call__(self) -> bool:
        """Return whether nothing is known to be on the device, or the device says so, which is asked now and then."""
        if not self._sheet.pending:
            return True
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + LOOK_NS
        try:
            return all(self._ended(lane) for lane in tuple(self._lanes))
        except Exception:  # noqa: BLE001 - a lost device, or a stream that closes now: nobody knows, so it is not idle
            return False

    def _ended(self, lane: SessionStream) -> bool:
        try:
            return not self._lanes.busy(lane) or self._device.ended(lane.stream)
        except (KernelFault, InvokeTimeout):  # it was stopped; the guest is told when it asks
            return True
