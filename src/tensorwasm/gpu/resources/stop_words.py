"""The words through which guarded kernels of a session are told to stop, and say why they did.

Host memory holds a request to stop, which one thread of the session reads every now and then
(`tensorwasm.ptx.guarded.LOOK_NS`), and the status that one writes when it stops: neither takes a call of the driver,
which could wait behind the kernels. A flag in device memory, which all threads read every few hundred microseconds,
tells the others of the session. None of them lies in any session's window.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import ExitStack
from typing import Final

from tensorwasm.gpu.device.port import Device, attempt
from tensorwasm.gpu.memory import pages
from tensorwasm.ptx.guarded import FLAG_BYTES, STATUS_REQUEST
from tensorwasm.values import Deadline, Region

_WORD_BYTES: Final = 4
_STATUS_BYTES: Final = STATUS_REQUEST + _WORD_BYTES
_FLAG_STRIDE_BYTES: Final = 32
"""A sector of the GPU's second-level cache."""
_STATUS_STRIDE_BYTES: Final = 64
_BLOCK_WORDS: Final = 1024
_CLEARING_LIMIT_S: Final = 1.0


class StopWord:
    """The words of one session.

    Attributes:
        flag_at: address of the flag, on the device.
        status_at: address of status and request, on the device and on the host.
    """

    __slots__ = ("_late", "_status", "_told", "flag_at", "status_at")

    def __init__(self, flag_at: int, status_at: int) -> None:
        self.flag_at = flag_at
        self.status_at = status_at
        self._status = ctypes.c_uint32.from_address(status_at)
        # Two bytes of the request, since two threads may set them at one time.
        self._told = ctypes.c_bool.from_address(status_at + STATUS_REQUEST)
        self._late = ctypes.c_bool.from_address(status_at + STATUS_REQUEST + 1)

    @property
    def stopping(self) -> bool:
        """Whether the session's kernels are to stop, those that begin later too. Waits for none of them."""
        return self._told.value

    @stopping.setter
    def stopping(self, wanted: bool) -> None:
        self._told.value = wanted

    @property
    def late(self) -> bool:
        """Whether they are to stop because a replay's deadline has passed: as `stopping`, and apart from it."""
        return self._late.value

    @late.setter
    def late(self, wanted: bool) -> None:
        self._late.value = wanted

    @property
    def status(self) -> int:
        """Why a kernel stopped: `tensorwasm.ptx.guarded.STOPPED` or ``TRAPPED``; 0 if none did."""
        return self._status.value

    @property
    def regions(self) -> tuple[Region, Region]:
        """What kernels may touch of it."""
        flag = Region(self.flag_at, FLAG_BYTES, host=False)
        return flag, Region(self.status_at, _STATUS_BYTES, host=True)

    def forget(self) -> None:
        """Set request and status back."""
        self._status.value = 0
        self._told.value = self._late.value = False


class StopWords:
    """The stop words of one device. Thread-safe.

    Args:
        device: outlives them.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._idle: list[StopWord] = []
        self._blocks: list[tuple[int, int]] = []
        self._taken = 0

    def take(self) -> StopWord:
        """Return a word that is clear.

        Raises:
            QuotaExceeded: there is no memory for more of them.
            LaunchRefused: the device reaches no memory of the host.
        """
        with self._lock:
            if not self._idle:
                self._add_block()
            self._taken += 1
            return self._idle.pop()

    def clear(self, word: StopWord) -> None:
        """Set all words back. Nothing of the session runs any more.

        Raises:
            InvokeTimeout: the device did not come to it within a second.
        """
        if word.status:  # who writes it has written the flag
            self._device.write(word.flag_at, bytes(FLAG_BYTES), None, Deadline.after(_CLEARING_LIMIT_S))
        word.forget()

    def give(self, word: StopWord) -> None:
        """Take a word back that nothing uses. One that cannot be cleared is used no more; raises as `clear`."""
        self.clear(word)
        with self._lock:
            self._taken -= 1
            self._idle.append(word)

    def close(self) -> list[Exception]:
        """Release the memory unless a session has a word; return what the device raised."""
        failures: list[Exception] = []
        with self._lock:
            if self._taken:
                return []
            blocks, self._blocks, self._idle = self._blocks, [], []
        for flags_at, statuses_at in blocks:
            failures += attempt(self._device.free, flags_at)
            if refused := attempt(self._device.unregister, statuses_at):
                failures += refused
            else:
                pages.give_back(statuses_at)
        return failures

    def _add_block(self) -> None:
        size_bytes = _BLOCK_WORDS * _STATUS_STRIDE_BYTES
        with ExitStack() as undo:
            statuses_at = pages.acquire(size_bytes)
            undo.callback(pages.give_back, statuses_at)
            self._device.register(statuses_at, size_bytes)
            undo.callback(self._device.unregister, statuses_at)
            flags_at = self._device.allocate(_BLOCK_WORDS * _FLAG_STRIDE_BYTES)
            undo.pop_all()
        self._blocks.append((flags_at, statuses_at))
        self._idle += [
            StopWord(flags_at + at * _FLAG_STRIDE_BYTES, statuses_at + at * _STATUS_STRIDE_BYTES)
            for at in range(_BLOCK_WORDS)
        ]
