"""A machine for the doctor, made of tables, and a device that adds vectors in Python."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

from tensorwasm.doctor.facts import CommandOutput
from tensorwasm.errors import DeviceLost, DeviceUnavailable
from tensorwasm.gpu.cuda.driver.versions import Version, parse_version
from tensorwasm.gpu.device.port import Device, DeviceStatistics
from tensorwasm.values import DeviceInfo

EMULATOR = DeviceInfo("emulator", 0, "emulator", (9, 0), (9, 5), 1 << 30, 1, 232448)


class FakeDevice:
    """Enough of a device for one vector addition."""

    def __init__(self, info: DeviceInfo, fault: str = "") -> None:
        self.info = info
        self.windows = SimpleNamespace(available=fault != "no windows")
        self.closed = False
        self.memory: dict[int, bytearray] = {}
        self.modules: list[object] = []
        self._fault = fault
        self._addresses = count(4096, 4096)

    def allocate(self, size_bytes):
        address = next(self._addresses)
        self.memory[address] = bytearray(size_bytes)
        return address

    def free(self, address):
        del self.memory[address]

    def write(self, address, data, stream):
        self.memory[address][: len(data)] = data

    def read(self, address, into, stream):
        into[:] = self.memory[address]

    def load(self, module, deadline):
        self.modules.append(module)
        return module

    def unload(self, loaded):
        self.modules.remove(loaded)

    def open_stream(self):
        return object()

    def close_stream(self, stream):
        return

    def launch(self, loaded, entry, config, args, regions, stream, deadline):
        if self._fault == "lost":
            raise DeviceLost("a kernel faulted: an access outside memory (error 700 from cuLaunchKernel); start anew")
        one, two, to = (int.from_bytes(arg, "little") for arg in args[:3])
        total = int.from_bytes(args[3], "little")
        numbers = (struct.unpack(f"<{total}f", self.memory[address]) for address in (one, two))
        sums = [a + b + (self._fault == "wrong") for a, b in zip(*numbers, strict=True)]
        self.memory[to][:] = struct.pack(f"<{total}f", *sums)

    def synchronize(self, stream, deadline):
        return

    def statistics(self):
        return DeviceStatistics(allocations=len(self.memory), modules=len(self.modules))

    def close(self):
        self.closed = True


@dataclass
class FakeSystem:
    """A machine that answers from tables.

    Attributes:
        commands: exit code and output by command line, input after a ``<``; the longest that begins the line counts.
        files: text by path; a path that is there is one that exists.
        libraries: complaint by library; one that is not there loads.
        packages: version by package.
        gpu: fields of the GPU's `DeviceInfo`, or why there is none.
        fault: what is wrong with its launches.
    """

    platform: str = "linux"
    environment: Mapping[str, str] = field(default_factory=dict)
    python: tuple[int, int, int] = (3, 12, 3)
    commands: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ("wasmtime==50.0.1", "numpy>=2.0", "ml_dtypes>=0.5", "cuda-bindings<14,>=12.9; extra")
    gpu: Mapping[str, object] | str = "no driver: libcuda.so.1 not found; install the NVIDIA driver"
    fault: str = ""
    opened: list[FakeDevice] = field(default_factory=list)

    def run(self, *command: str, limit_s: float = 10.0, say: str = "") -> CommandOutput | None:
        line = " ".join((*command, *(("<", say.strip()) if say else ())))
        for key in sorted(self.commands, key=len, reverse=True):
            if line == key or line.startswith(key + " "):
                return CommandOutput(*self.commands[key])
        return None

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.files

    def load_library(self, name: str) -> str:
        return self.libraries.get(name, "")

    def version(self, package: str) -> str | None:
        return self.packages.get(package)

    def requirements(self) -> tuple[str, ...]:
        return self.required

    def ptxas(self) -> Version | None:
        answer = self.run("ptxas", "--version")
        return parse_version(answer.text.partition("release")[2]) if answer and answer.code == 0 else None

    def open(self, choice: str) -> tuple[Device, str]:
        if choice == "emulator":
            return self._made(EMULATOR, ""), "asked for"
        if isinstance(self.gpu, str):
            if choice == "auto":
                return self._made(EMULATOR, ""), f"no usable GPU: {self.gpu}"
            raise DeviceUnavailable(self.gpu)
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in self.gpu.items()}
        info = DeviceInfo(**{"kind": "cuda", "ordinal": 0, "memory_bytes": 1 << 34, "multiprocessors": 30} | fields)
        return self._made(info, self.fault), "asked for" if choice != "auto" else f"{info.name} works"

    def _made(self, info: DeviceInfo, fault: str) -> FakeDevice:
        self.opened.append(FakeDevice(info, fault))
        return self.opened[-1]
