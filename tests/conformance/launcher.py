"""Launch a kernel from arrays to arrays, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from strategies.lanes import LaneKernel, module, raw_dtype, width_bytes
from tensorwasm.gpu.device.port import Device, LoadedModule
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, Dim3, LaunchConfig, Region

Argument = NDArray[Any] | np.generic


class Launcher:
    """Owns a stream and every module it has loaded; a context manager."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._stream = device.open_stream()
        self._modules: dict[str, LoadedModule] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for loaded in self._modules.values():
            self.device.unload(loaded)
        self.device.close_stream(self._stream)

    def require(self, target: int, version: str = "8.0") -> None:
        """Skip the test on a device below ``sm_<target>`` or a driver below that PTX version."""
        info = self.device.info
        major, minor = info.compute_capability
        if 10 * major + minor < target:
            pytest.skip(f"needs sm_{target}, the device is sm_{major}{minor}")
        if info.ptx_version < tuple(map(int, version.split("."))):
            pytest.skip(f"needs PTX {version}, the driver takes {info.ptx_version[0]}.{info.ptx_version[1]}")

    def load(self, text: str) -> LoadedModule:
        """Return the module of a PTX text, loaded once."""
        if text not in self._modules:
            self._modules[text] = self.device.load(parse(text), NEVER)
        return self._modules[text]

    def launch(
        self,
        text: str,
        entry: str,
        args: Sequence[Argument],
        *,
        grid: Dim3 = (1, 1, 1),
        block: Dim3 = (32, 1, 1),
        shared_bytes: int = 0,
        seconds: float = 60.0,
    ) -> list[NDArray[Any]]:
        """Run a kernel and return its array arguments as it left them.

        An array becomes a device buffer of its own and its address the argument; a NumPy scalar is passed by value.
        """
        loaded = self.load(text)
        arrays = [np.ascontiguousarray(arg) for arg in args if isinstance(arg, np.ndarray)]
        regions = [Region(self.device.allocate(max(1, a.nbytes)), max(1, a.nbytes), host=False) for a in arrays]
        try:
            for region, array in zip(regions, arrays, strict=True):
                self.device.write(region.address, array.tobytes(), self._stream)
            addresses = iter(regions)
            packed = [
                next(addresses).address.to_bytes(8, "little") if isinstance(arg, np.ndarray) else arg.tobytes()
                for arg in args
            ]
            deadline = Deadline.after(seconds)
            config = LaunchConfig(grid, block, shared_bytes)
            self.device.launch(loaded, entry, config, packed, regions, self._stream, deadline)
            self.device.synchronize(self._stream, deadline)
            return [self._read(region, array) for region, array in zip(regions, arrays, strict=True)]
        finally:
            for region in regions:
                self.device.free(region.address)

    def run_lanes(
        self, kernel: LaneKernel, sources: Sequence[NDArray[Any]], *, lanes: int, text: str | None = None
    ) -> list[NDArray[Any]]:
        """Run a lane kernel in one block and return its results, raw bits that start as 0xA5A5...

        Args:
            kernel: what to run.
            sources: one array of ``lanes`` elements per source; any dtype of the source's width.
            lanes: threads of the block.
            text: the module that holds it; one of its own if None.
        """
        results = [np.full(lanes * width_bytes(t), 0xA5, np.uint8).view(raw_dtype(t)) for t in kernel.results]
        arrays = self.launch(text or module([kernel]), kernel.name, [*sources, *results], block=(lanes, 1, 1))
        return arrays[len(sources) :]

    def _read(self, region: Region, like: NDArray[Any]) -> NDArray[Any]:
        into = bytearray(region.size_bytes)
        self.device.read(region.address, memoryview(into), self._stream)
        return np.frombuffer(bytes(into[: like.nbytes]), like.dtype).reshape(like.shape)
