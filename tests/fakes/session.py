"""A session that does nothing: it records calls, and raises the errors that a test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fakes.device import INFO
from tensorwasm.gpu.device.arguments import Argument, HostWindow
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig, Region

_Note = Callable[..., Any]


class FakeSession:
    """Implements what the bodies of ``wasi:cuda`` ask of a `Session`.

    Attributes:
        calls: part and method, and arguments of every call, in order; arguments of a launch as they resolved.
        refusals: error that the next call of that method raises, once.
        answers: what a method returns.
        failure: what poisoned the session.
        info: what the device is.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refusals: dict[str, BaseException] = {}
        self.answers: dict[str, Any] = {}
        self.failure: BaseException | None = None
        self.info: DeviceInfo = INFO
        self.buffers = FakeBuffers(self._note)
        self.kernels = FakeKernels(self._note)
        self.streams = FakeStreams(self._note)
        self.events = FakeEvents(self._note)
        self.graphs = FakeGraphs(self._note)

    def _note(self, name: str, *arguments: Any) -> Any:
        self.calls.append((name, *arguments))
        if error := self.refusals.pop(name, None):
            raise error
        return self.answers.get(name)


class FakeBuffers:
    def __init__(self, note: _Note) -> None:
        self._note = note

    def allocate(self, size_bytes: int) -> int:
        return self._note("buffers.allocate", size_bytes)

    def free(self, handle: int, deadline: Deadline) -> None:
        self._note("buffers.free", handle, deadline)

    def write(
        self,
        handle: int,
        data: bytes | memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        self._note("buffers.write", handle, data, deadline, offset_bytes, memory)

    def read(
        self,
        handle: int,
        into: memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        self._note("buffers.read", handle, into, deadline, offset_bytes, memory)

    def copy_in(
        self, handle: int, offset_bytes: int, window: HostWindow, memory: Region, deadline: Deadline, stream: int = 0
    ) -> None:
        self._note("buffers.copy_in", handle, offset_bytes, window, memory, deadline, stream)

    def copy_out(
        self, window: HostWindow, memory: Region, handle: int, offset_bytes: int, deadline: Deadline, stream: int = 0
    ) -> None:
        self._note("buffers.copy_out", window, memory, handle, offset_bytes, deadline, stream)


class FakeKernels:
    def __init__(self, note: _Note) -> None:
        self._note = note

    def take_output(self) -> tuple[bytes, bool]:
        return b"", False

    def load(self, text: bytes, entry: str, deadline: Deadline) -> int:
        return self._note("kernels.load", text, entry, deadline)

    def unload(self, kernel_id: int, deadline: Deadline) -> None:
        self._note("kernels.unload", kernel_id, deadline)

    def launch(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
    ) -> None:
        self._note("kernels.launch", kernel_id, config, arguments(), memory, deadline)

    def submit(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
        stream: int = 0,
    ) -> None:
        self._note("kernels.submit", kernel_id, config, arguments(), memory, deadline, stream)


class FakeStreams:
    def __init__(self, note: _Note) -> None:
        self._note = note

    def open(self) -> int:
        return self._note("streams.open")

    def close(self, number: int, deadline: Deadline) -> None:
        self._note("streams.close", number, deadline)

    def synchronize(self, deadline: Deadline, stream: int | None = None) -> None:
        self._note("streams.synchronize", deadline, stream)

    def ended(self, stream: int) -> bool:
        return self._note("streams.ended", stream)


class FakeEvents:
    def __init__(self, note: _Note) -> None:
        self._note = note

    def open(self) -> int:
        return self._note("events.open")

    def close(self, number: int) -> None:
        self._note("events.close", number)

    def record(self, event: int, stream: int) -> None:
        self._note("events.record", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self._note("events.wait", stream, event)

    def synchronize(self, event: int, deadline: Deadline) -> None:
        self._note("events.synchronize", event, deadline)

    def reached(self, event: int) -> bool:
        return self._note("events.reached", event)


class FakeGraphs:
    def __init__(self, note: _Note) -> None:
        self._note = note

    def begin(self, stream: int) -> None:
        self._note("graphs.begin", stream)

    def end(self, stream: int) -> int:
        return self._note("graphs.end", stream)

    def replay(self, graph: int, memory: Region | None, deadline: Deadline, stream: int = 0) -> None:
        self._note("graphs.replay", graph, memory, deadline, stream)

    def close(self, graph: int, deadline: Deadline) -> None:
        self._note("graphs.close", graph, deadline)
