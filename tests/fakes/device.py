"""A device that does nothing: it keeps books, fails to order, and notes every broken rule of the port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.device import DeviceStatistics
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig, Region

INFO = DeviceInfo(
    kind="emulator",
    ordinal=0,
    name="fake",
    compute_capability=(9, 0),
    ptx_version=(9, 0),
    memory_bytes=1 << 40,
    multiprocessors=1,
    max_shared_bytes=228 << 10,
)
FIRST_ADDRESS = 1 << 32


@dataclass(frozen=True)
class Launch:
    """What the device was asked to run."""

    entry: str
    config: LaunchConfig
    args: tuple[bytes, ...]
    regions: tuple[Region, ...]


@dataclass(eq=False)
class Handle:
    """A stream or a module."""

    name: Any


@dataclass
class FakeDevice:
    """Implements the `Device` port.

    Attributes:
        failures: error that the next call of that method raises, once.
        launched: every launch that was accepted.
        broken: rules of the port that the caller broke; tests assert that there are none.
        busy: streams with work that no `synchronize` has waited for.
    """

    info: DeviceInfo = INFO
    failures: dict[str, BaseException] = field(default_factory=dict)
    launched: list[Launch] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    busy: set[Handle] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)
    contents: dict[int, bytearray] = field(default_factory=dict)
    registered: dict[int, int] = field(default_factory=dict)
    modules: set[Handle] = field(default_factory=set)
    streams: set[Handle] = field(default_factory=set)
    next_address: int = FIRST_ADDRESS

    def _begin(self, name: str) -> None:
        self.calls.append(name)
        if error := self.failures.pop(name, None):
            raise error

    def _drained(self, name: str) -> None:
        if self.busy:
            self.broken.append(f"{name} while work is running")

    def allocate(self, size_bytes: int) -> int:
        self._begin("allocate")
        address = self.next_address
        # The next allocation follows without a gap: an address past the end of one is inside another.
        self.next_address += -(-size_bytes // 256) * 256
        self.memory[address] = size_bytes
        return address

    def free(self, address: int) -> None:
        self._begin("free")
        self._drained("free")
        del self.memory[address]
        self.contents.pop(address, None)

    def register(self, address: int, size_bytes: int) -> None:
        self._begin("register")
        if self.registered:
            self.broken.append("two registrations")
        self.registered[address] = size_bytes

    def unregister(self, address: int) -> None:
        self._begin("unregister")
        self._drained("unregister")
        del self.registered[address]

    def write(self, address: int, data: bytes | memoryview, stream: Handle) -> None:
        self._begin("write")
        if len(data) > self.memory[address] or stream not in self.streams:
            self.broken.append("write out of bounds or without a stream")
        self.contents.setdefault(address, bytearray(self.memory[address]))[: len(data)] = data

    def read(self, address: int, into: memoryview, stream: Handle) -> None:
        self._begin("read")
        if len(into) > self.memory[address] or stream not in self.streams:
            self.broken.append("read out of bounds or without a stream")
        into[:] = self.contents.get(address, bytearray(self.memory[address]))[: len(into)]

    def load(self, module: Any, deadline: Deadline) -> Handle:
        self._begin("load")
        self.modules.add(loaded := Handle(module))
        return loaded

    def unload(self, loaded: Handle) -> None:
        self._begin("unload")
        self._drained("unload")
        self.modules.remove(loaded)

    def open_stream(self) -> Handle:
        self._begin("open_stream")
        self.streams.add(stream := Handle(len(self.streams)))
        return stream

    def close_stream(self, stream: Handle) -> None:
        self._begin("close_stream")
        self._drained("close_stream")
        self.streams.remove(stream)

    def launch(
        self,
        loaded: Handle,
        entry: str,
        config: LaunchConfig,
        args: Sequence[bytes],
        regions: Sequence[Region],
        stream: Handle,
        deadline: Deadline,
    ) -> None:
        self._begin("launch")
        if loaded not in self.modules or stream not in self.streams:
            self.broken.append("launch of what is not there")
        self.busy.add(stream)
        self.launched.append(Launch(entry, config, tuple(args), tuple(regions)))

    def synchronize(self, stream: Handle, deadline: Deadline) -> None:
        try:
            self._begin("synchronize")
        except InvokeTimeout:
            raise  # still running
        except BaseException:
            self.busy.discard(stream)
            raise
        self.busy.discard(stream)

    def statistics(self) -> DeviceStatistics:
        return DeviceStatistics(
            allocations=len(self.memory),
            allocated_bytes=sum(self.memory.values()),
            registrations=len(self.registered),
            registered_bytes=sum(self.registered.values()),
            modules=len(self.modules),
            streams=len(self.streams),
            launches=len(self.launched),
        )

    def close(self) -> None:
        self._begin("close")

    def holds_nothing(self) -> bool:
        """Return whether everything was released."""
        return not (self.memory or self.registered or self.modules or self.streams or self.busy)
