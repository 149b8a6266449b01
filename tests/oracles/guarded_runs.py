"""Launches of a kernel in a window of the emulator, as it is or guarded, that return what its buffers hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fakes.emulation import Emulation
from oracles.guarding import GuardedText
from oracles.windows import DATA_AT, OWN_AT, WINDOW_BYTES, AddressWindow, races_allowed
from tensorwasm import ptx
from tensorwasm.gpu.device.guarded_kernel import launch_parameter
from tensorwasm.ptx.guarded import Width
from tensorwasm.values import NEVER, Dim3, LaunchConfig

_MEMORY_BYTES = 8 << 20
_BEFORE_BYTES = 2 << 20
_WIDE_BYTES = 8 << 30
_NEVER_NS = (1 << 64) - 1


@dataclass(frozen=True)
class Launch:
    """What is launched.

    Attributes:
        arguments: arrays for buffers, with whether their contents are returned, and numbers.
    """

    entry: str
    grid: Dim3
    block: Dim3
    arguments: Sequence[tuple[np.ndarray, bool] | np.generic]
    shared_bytes: int = 0


class GuardedRuns:
    """A window on the emulator in which kernels run."""

    def __init__(self, emulation: Emulation, window: AddressWindow) -> None:
        self._emulation = emulation
        self._window = window

    def run(self, launch: Launch, text: str | GuardedText) -> tuple[list[np.ndarray], int]:
        """Launch a kernel; return the bytes of its buffers, and the status word."""
        emulation, window = self._emulation, self._window
        window.clear()
        values, buffers, at = [], [], window.own.address
        if window.size_bytes > WINDOW_BYTES:
            at += _BEFORE_BYTES - 1024  # the first buffer lies in two of its pieces of 4 GiB
        for argument in launch.arguments:
            if isinstance(argument, tuple):
                data = np.ascontiguousarray(argument[0]).reshape(-1).view(np.uint8)
                place = window.bytes_of(window.own)[at - window.own.address :][: data.size]
                place[:] = data
                buffers += [place] * argument[1]
                values.append(at.to_bytes(8, "little"))
                at = -(-(at + data.size) // 256) * 256
            else:
                values.append(argument.tobytes())
        assert at - window.own.address <= _MEMORY_BYTES
        shared_bytes, regions = launch.shared_bytes, [window.region]
        words = emulation.buffer([0] * 6)
        if isinstance(text, GuardedText):
            shared_bytes = text.shared_bytes(launch.shared_bytes)
            image = text.image(window.data.address)
            window.bytes_of(window.data)[: len(image)] = np.frombuffer(image, np.uint8)
            places = window.base, DATA_AT, _NEVER_NS, words.address, words.address + 16, _NEVER_NS
            window_bytes = window.size_bytes if text.wide else 0
            values.append(launch_parameter(*places, shared_bytes, launch.shared_bytes, window_bytes))
            text = text.text
            regions.append(words)
        loaded = emulation.device.load(ptx.parse_variants(text)[0], NEVER)
        with races_allowed():
            config = LaunchConfig(launch.grid, launch.block, shared_bytes)
            emulation.device.launch(loaded, launch.entry, config, values, regions, emulation.stream, NEVER)
            emulation.device.synchronize(emulation.stream, NEVER)
        emulation.device.unload(loaded)
        return [each.copy() for each in buffers], int(emulation.read(words)[4])


@contextmanager
def guarded_runs(width: Width = "narrow") -> Iterator[GuardedRuns]:
    """Provide a window, and unmap it."""
    emulation = Emulation(memory_bytes=1 << 28)
    wide = _WIDE_BYTES, WINDOW_BYTES - _BEFORE_BYTES
    window = AddressWindow(emulation, _MEMORY_BYTES, *(wide if width == "wide" else (WINDOW_BYTES, OWN_AT)))
    try:
        yield GuardedRuns(emulation, window)
    finally:
        window.close()
        emulation.device.close()
