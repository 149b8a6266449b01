"""A device that does nothing: it counts what it holds, fails when told to, and records every broken rule of the port.

Work waits in its stream until the stream is synchronized, or until the test says `FakeDevice.finish`.
"""

from __future__ import annotations

import contextlib
import ctypes
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwasm.errors import InvokeTimeout, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.gpu.device.protocols import NativeKernel, NativeTable
from tensorwasm.values import NEVER, Deadline, DeviceInfo, LaunchConfig, Region

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
    """A module, a pool, or whatever else needs no more than a name."""

    name: Any
    held_bytes: int = 0


@dataclass(eq=False)
class Step:
    """A piece of work: what it does, and what it may reach while it waits."""

    run: Callable[[], None] = lambda: None
    regions: tuple[Region, ...] = ()
    loaded: Handle | None = None
    launch: Launch | None = None
    graph: FakeGraph | None = None
    after: tuple[FakeStream, Step] | None = None


@dataclass(eq=False)
class FakeStream:
    """Work in order."""

    number: int
    steps: list[Step] = field(default_factory=list)
    recorded: list[Step] | None = None
    deadlines: list[Deadline] = field(default_factory=list)
    confined: tuple[Region, ...] | None = None

    def give(self, step: Step) -> None:
        (self.steps if self.recorded is None else self.recorded).append(step)


@dataclass(eq=False)
class FakeEvent:
    """A mark."""

    mark: tuple[FakeStream, Step] | None = None


@dataclass(eq=False)
class FakeGraph:
    """What a stream recorded."""

    steps: list[Step]


@dataclass
class FakeDevice:
    """Implements the `Device` port.

    Attributes:
        failures: error that the next call of that method raises, once.
        failing: error that every call of that method raises.
        launched: every launch that was accepted, recorded ones as often as they were replayed.
        broken: rules of the port that the caller broke; tests assert that there are none.
        excuses: answers of `delayed`, the next one last; False when there is none.
        effects: whether the kernel ``fill`` and copies touch memory, host memory included, which must be real then.
    """

    info: DeviceInfo = INFO
    failures: dict[str, BaseException] = field(default_factory=dict)
    failing: dict[str, BaseException] = field(default_factory=dict)
    launched: list[Launch] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)
    registered: dict[int, int] = field(default_factory=dict)
    modules: set[Handle] = field(default_factory=set)
    streams: set[FakeStream] = field(default_factory=set)
    pools_open: set[Handle] = field(default_factory=set)
    events_open: set[FakeEvent] = field(default_factory=set)
    graphs_open: set[FakeGraph] = field(default_factory=set)
    kernels: list[tuple[Handle, str]] = field(default_factory=list)
    next_address: int = FIRST_ADDRESS
    next_stream: int = 1
    effects: bool = False
    excuses: list[bool] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    nth: dict[tuple[str, int], BaseException] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cleared = Cleared()
        self.events = FakeEvents(self)
        self.graphs = FakeGraphs(self)
        self.pools = FakePools(self)
        self.native = FakeNative(self)

    # ----------------------------------------------------------------------------------------- for tests

    @property
    def busy(self) -> set[FakeStream]:
        """Streams with work that has not ended."""
        return {stream for stream in self.streams if stream.steps}

    def finish(self, stream: FakeStream | None = None) -> None:
        """Let the work of a stream, or of all, come to its end."""
        for each in list(self.streams) if stream is None else [stream]:
            while each.steps:
                self._run(each)

    def fail(self, method: str, nth: int, error: BaseException) -> None:
        """Have the nth call of a method from now on, the next being the first, raise an error."""
        self.nth[method, self.counts.get(method, 0) + nth] = error

    def reachable(self, address: int, size_bytes: int) -> bool:
        """Return whether work that has not ended may touch a range."""
        return any(
            region.address < address + size_bytes and address < region.end
            for stream in self.streams
            for step in stream.steps
            for region in step.regions
        )

    def holds_nothing(self) -> bool:
        """Return whether everything was released."""
        held = self.memory, self.registered, self.modules, self.streams, self.pools_open, self.events_open
        return not any((*held, self.graphs_open))

    # ------------------------------------------------------------------------------------------ the core

    def begin(self, name: str) -> None:
        """Note a call, which may be one that fails."""
        self.calls.append(name)
        self.counts[name] = self.counts.get(name, 0) + 1
        error = self.failures.pop(name, None) or self.nth.pop((name, self.counts[name]), None) or self.failing.get(name)
        if error:
            raise error

    def allocate(self, size_bytes: int) -> int:
        self.begin("allocate")
        address = self.place(size_bytes)
        self.cleared.fill(address, size_bytes)
        return address

    def place(self, size_bytes: int) -> int:
        """Return new memory."""
        address = self.next_address
        # The next allocation follows without a gap: an address past the end of one is inside another.
        self.next_address += -(-size_bytes // 256) * 256
        self.memory[address] = size_bytes
        return address

    def free(self, address: int) -> None:
        self.begin("free")
        self.displace(address)

    def displace(self, address: int) -> None:
        """Forget memory."""
        if self.reachable(address, self.memory[address]):
            self.broken.append("memory was freed while work could reach it")
        self.cleared.forget(address, self.memory.pop(address))

    def register(self, address: int, size_bytes: int) -> None:
        self.begin("register")
        if any(start < address + size_bytes and address < start + size for start, size in self.registered.items()):
            self.broken.append("two registrations of one page")
        self.registered[address] = size_bytes

    def unregister(self, address: int) -> None:
        self.begin("unregister")
        if self.reachable(address, self.registered[address]):
            self.broken.append("pages were unregistered while work could reach them")
        del self.registered[address]

    def write(
        self, address: int, data: bytes | memoryview, stream: FakeStream | None, deadline: Deadline = NEVER
    ) -> None:
        self.begin("write")
        self._come_behind(stream, address, len(data))
        if not self.cleared.write(address, bytes(data)):
            self.broken.append("write out of bounds")

    def read(self, address: int, into: memoryview, stream: FakeStream | None, deadline: Deadline = NEVER) -> None:
        self.begin("read")
        self._come_behind(stream, address, len(into))
        data = self.cleared.read(address, len(into))
        if data is None:
            self.broken.append("read out of bounds")
        else:
            into[:] = data

    def fill(self, address: int, size_bytes: int, stream: FakeStream) -> None:
        self.begin("fill")
        self._own(stream)
        if stream.recorded is not None:
            self.broken.append("a fill was recorded")
        region = Region(address, size_bytes, host=False)
        stream.give(Step(lambda: self.cleared.fill(address, size_bytes), (region,)))

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: FakeStream) -> None:
        self.begin("copy_in")
        self._own(stream)

        def run() -> None:
            if self.effects and not self.cleared.write(address, ctypes.string_at(host_address, size_bytes)):
                self.broken.append("copy_in out of bounds")

        stream.give(Step(run, _ends(address, host_address, size_bytes)))

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: FakeStream) -> None:
        self.begin("copy_out")
        self._own(stream)

        def run() -> None:
            data = self.cleared.read(address, size_bytes)
            if self.effects and data is None:
                self.broken.append("copy_out out of bounds")
            elif self.effects:
                ctypes.memmove(host_address, data, size_bytes)

        stream.give(Step(run, _ends(address, host_address, size_bytes)))

    def load(self, module: Any, deadline: Deadline) -> Handle:
        self.begin("load")
        self.modules.add(loaded := Handle(module))
        return loaded

    def unload(self, loaded: Handle) -> None:
        self.begin("unload")
        if any(step.loaded is loaded for stream in self.streams for step in stream.steps):
            self.broken.append("a module was unloaded while it ran")
        self.modules.remove(loaded)

    def open_stream(self) -> FakeStream:
        self.begin("open_stream")
        self.streams.add(stream := FakeStream(self.next_stream))
        self.next_stream += 1
        return stream

    def close_stream(self, stream: FakeStream) -> None:
        self.begin("close_stream")
        if stream.steps or stream.recorded is not None:
            self.broken.append("a stream was closed with work in it")
        self.streams.remove(stream)

    def launch(
        self,
        loaded: Handle,
        entry: str,
        config: LaunchConfig,
        args: Sequence[bytes],
        regions: Sequence[Region],
        stream: FakeStream,
        deadline: Deadline,
    ) -> None:
        self.begin("launch")
        self._own(stream)
        if loaded not in self.modules:
            self.broken.append("launch of what is not there")
        launch = Launch(entry, config, tuple(args), tuple(regions))
        stream.give(Step(lambda: self._effect(launch), launch.regions, loaded, launch))
        if stream.recorded is None:
            self.launched.append(launch)

    def ended(self, stream: FakeStream) -> bool:
        self._own(stream)
        try:
            self.begin("ended")
        except BaseException:
            stream.steps.clear()
            raise
        return not stream.steps

    def delayed(self, stream: FakeStream) -> bool:
        self._own(stream)
        self.begin("delayed")
        return self.excuses.pop() if self.excuses else False

    def synchronize(self, stream: FakeStream, deadline: Deadline) -> None:
        if stream.recorded is not None:
            self.broken.append("a stream that records was waited for")
        try:
            self.begin("synchronize")
        except InvokeTimeout:
            raise  # still running
        except BaseException:
            stream.steps.clear()
            raise
        self.finish(stream)

    def statistics(self) -> DeviceStatistics:
        return DeviceStatistics(
            allocations=len(self.memory),
            allocated_bytes=sum(self.memory.values()),
            registrations=len(self.registered),
            registered_bytes=sum(self.registered.values()),
            modules=len(self.modules),
            streams=len(self.streams),
            launches=len(self.launched),
            events=len(self.events_open),
            graphs=len(self.graphs_open),
            pools=len(self.pools_open),
        )

    def close(self) -> None:
        self.begin("close")

    def _come_behind(self, stream: FakeStream | None, address: int, size_bytes: int) -> None:
        if stream is not None:
            self._own(stream)
            self.finish(stream)
        elif self.reachable(address, size_bytes):
            self.broken.append("a copy behind nothing, while work could reach its memory")

    def _own(self, stream: FakeStream) -> None:
        if stream not in self.streams:
            self.broken.append("work for a stream that is not there")

    def _run(self, stream: FakeStream) -> None:
        """Run the first step of a stream, after the one in another stream that it waits for."""
        step = stream.steps[0]
        if step.after is not None:
            other, mark = step.after
            while other is not stream and mark in other.steps:
                self._run(other)
        step.run()
        stream.steps.pop(0)

    def _effect(self, launch: Launch) -> None:
        """Do what ``fill`` of `strategies.kernels` does."""
        if not self.effects or launch.entry != "fill":
            return
        address = int.from_bytes(launch.args[0], "little")
        if not any(region.address <= address and address + 4 <= region.end for region in launch.regions):
            return
        if any(start <= address and address + 4 <= start + size for start, size in self.registered.items()):
            ctypes.memmove(address, launch.args[1], 4)
        elif not self.cleared.write(address, launch.args[1]):
            self.broken.append("a kernel reached what is not there")


class Cleared:
    """Device memory that was cleared: what else there is has no contents."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._data: dict[int, bytearray] = {}

    def fill(self, address: int, size_bytes: int) -> None:
        self.forget(address, size_bytes)
        insort(self._starts, address)
        self._sizes[address] = size_bytes

    def forget(self, address: int, size_bytes: int) -> None:
        at = max(bisect_right(self._starts, address) - 1, 0)
        while at < len(self._starts) and self._starts[at] < address + size_bytes:
            start = self._starts[at]
            if start + self._sizes[start] > address:
                del self._starts[at], self._sizes[start]
                self._data.pop(start, None)
            else:
                at += 1

    def read(self, address: int, size_bytes: int) -> bytes | None:
        start = self._find(address, size_bytes)
        if start is None:
            return None
        data = self._data.get(start)
        return bytes(size_bytes) if data is None else bytes(data[address - start : address - start + size_bytes])

    def write(self, address: int, data: bytes) -> bool:
        start = self._find(address, len(data))
        if start is None:
            return False
        content = self._data.setdefault(start, bytearray(self._sizes[start]))
        content[address - start : address - start + len(data)] = data
        return True

    def _find(self, address: int, size_bytes: int) -> int | None:
        at = bisect_right(self._starts, address)
        if not at or self._starts[at - 1] + self._sizes[self._starts[at - 1]] < address + size_bytes:
            return None
        return self._starts[at - 1]


class FakeEvents:
    """Implements `Events`.

    Attributes:
        until: the patience with every event.
        waits: deadlines that events were waited for with.
    """

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.until = NEVER
        self.waits: list[Deadline] = []

    def open_event(self) -> FakeEvent:
        self._device.begin("open_event")
        self._device.events_open.add(event := FakeEvent())
        return event

    def close_event(self, event: FakeEvent) -> None:
        self._device.begin("close_event")
        self._device.events_open.remove(event)

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        self._device.begin("record")
        self._check(event, stream)
        step = Step()
        stream.give(step)
        event.mark = stream, step

    def wait_event(self, stream: FakeStream, event: FakeEvent) -> None:
        self._device.begin("wait_event")
        self._check(event, stream)
        if event.mark is not None:
            stream.give(Step(after=event.mark))

    def event_reached(self, event: FakeEvent) -> bool:
        self._device.begin("event_reached")
        return event.mark is None or event.mark[1] not in event.mark[0].steps

    def patience(self, event: FakeEvent) -> Deadline:
        return self.until

    def synchronize_event(self, event: FakeEvent, deadline: Deadline) -> None:
        self.waits.append(deadline)
        self._device.begin("synchronize_event")
        while event.mark is not None and event.mark[1] in event.mark[0].steps:
            self._device._run(event.mark[0])

    def _check(self, event: FakeEvent, stream: FakeStream) -> None:
        if event not in self._device.events_open or stream not in self._device.streams:
            self._device.broken.append("an event or a stream that is not there")
        if stream.recorded is not None:
            self._device.broken.append("an event was recorded in a graph")


class FakeGraphs:
    """Implements `Graphs`."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def begin_capture(self, stream: FakeStream) -> None:
        self._device.begin("begin_capture")
        if stream.recorded is not None:
            raise LaunchRefused("records already")
        stream.recorded = []

    def end_capture(self, stream: FakeStream) -> FakeGraph:
        if stream.recorded is None:
            raise LaunchRefused("does not record")
        steps, stream.recorded = stream.recorded, None
        self._device.begin("end_capture")
        self._device.graphs_open.add(graph := FakeGraph(steps))
        return graph

    def replay(self, graph: FakeGraph, stream: FakeStream, regions: Sequence[Region], deadline: Deadline) -> None:
        device = self._device
        device.begin("replay")
        device._own(stream)
        if graph not in device.graphs_open or stream.recorded is not None:
            device.broken.append("replay of what is not there")
        for step in graph.steps:
            if step.loaded is not None and step.loaded not in device.modules:
                device.broken.append("replay of an unloaded kernel")
            again = Step(step.run, tuple(regions), step.loaded, step.launch, graph)
            stream.give(again)
            if step.launch is not None:
                device.launched.append(step.launch)

    def graph_handle(self, graph: FakeGraph) -> int:
        return id(graph)

    def close_graph(self, graph: FakeGraph) -> None:
        self._device.begin("close_graph")
        if any(step.graph is graph for stream in self._device.streams for step in stream.steps):
            self._device.broken.append("a graph was closed while it ran")
        self._device.graphs_open.remove(graph)


class FakePools:
    """Implements `Pools`."""

    capped = True

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def open_pool(self, max_bytes: int) -> Handle:
        self._device.begin("open_pool")
        self._device.pools_open.add(pool := Handle(max_bytes))
        return pool

    def pool_allocate(self, pool: Handle, size_bytes: int) -> int:
        self._device.begin("pool_allocate")
        if pool.held_bytes + size_bytes > pool.name:
            raise QuotaExceeded("over the pool's cap")
        pool.held_bytes += size_bytes
        return self._device.place(size_bytes)

    def pool_free(self, pool: Handle, address: int) -> None:
        self._device.begin("pool_free")
        pool.held_bytes -= self._device.memory[address]
        self._device.displace(address)

    def close_pool(self, pool: Handle) -> None:
        self._device.begin("close_pool")
        if pool.held_bytes:
            self._device.broken.append("a pool was closed with memory in use")
        self._device.pools_open.remove(pool)


class FakeNative:
    """Implements `Native`. What compiled code would give a stream, tests give it with `give`."""

    table = NativeTable(*range(1, len(NativeTable.__dataclass_fields__) + 1))

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    usable = True
    confines = True

    def bound(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def kernel(self, loaded: Handle, entry: str, deadline: Deadline) -> NativeKernel:
        self._device.begin("kernel")
        self._device.kernels.append((loaded, entry))
        return NativeKernel(len(self._device.kernels), 1024, 227 << 10, (1 << 31, 65535, 65535), (1024, 1024, 64), 32)

    def stream(self, stream: FakeStream) -> int:
        return stream.number

    def confine(self, stream: FakeStream, regions: Sequence[Region], deadline: Deadline) -> None:
        self._device.begin("confine")
        stream.confined = tuple(regions)
        stream.deadlines.append(deadline)

    def started(self, stream: FakeStream, deadline: Deadline) -> None:
        self._device.begin("started")

    def notify(self, stream: FakeStream, function: int, argument: int) -> None:
        self._device.begin("notify")
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
        stream.give(Step(lambda: call(argument)))

    def give(self, number: int, run: Callable[[], None] = lambda: None) -> None:
        """Give work to the stream of that handle, as compiled code does."""
        (stream,) = (stream for stream in self._device.streams if stream.number == number)
        stream.give(Step(run, stream.confined or ()))


def _ends(address: int, host_address: int, size_bytes: int) -> tuple[Region, ...]:
    return Region(address, size_bytes, host=False), Region(host_address, size_bytes, host=True)
