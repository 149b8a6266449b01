"""Launches of a kernel in a window of the emulator, as it is or guarded, that return what its buffers hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fakes.emulation import Emulation
from oracles.guarding import GuardedText
from oracles.windows import OWN_AT, AddressWindow, races_allowed
from tensorwasm import ptx
from tensorwasm.gpu.device.guarded_kernel import launch_parameter
from tensorwasm.values import NEVER, Dim3, LaunchConfig

_MEMORY_BYTES = 8 << 20
_DATA_AT = OWN_AT + _MEMORY_BYTES - (1 << 20)
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
        assert at - window.base < _DATA_AT
        shared_bytes, regions = launch.shared_bytes, [window.region]
        words = emulation.buffer([0] * 6)
        if isinstance(text, GuardedText):
            shared_bytes = text.shared_bytes(launch.shared_bytes)
            image = text.image(window.base + _DATA_AT)
            window.bytes_of(window.own)[_DATA_AT - OWN_AT :][: len(image)] = np.frombuffer(image, np.uint8)
            places = window.base, _DATA_AT, _NEVER_NS, words.address, words.address + 16, _NEVER_NS
            values.append(launch_parameter(*places, shared_bytes, launch.shared_bytes))
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
def guarded_runs() -> Iterator[GuardedRuns]:
    """Provide a window, and unmap it."""
    emulation = Emulation(memory_bytes=1 << 28)
    window = AddressWindow(emulation, _MEMORY_BYTES)
    try:
        yield GuardedRuns(emulation, window)
    finally:
        window.close()
        emulation.device.close()
