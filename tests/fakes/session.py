"""A session that does nothing: it notes what it is asked, and refuses what it is told to refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes.device import INFO
from tensorwasm.gpu.launch import Argument, HostWindow
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig, Region


@dataclass
class FakeSession:
    """Implements what the bodies of ``wasi:cuda`` ask of a `Session`.

    Attributes:
        calls: method and arguments of every call, in order; arguments of a launch as they resolved.
        refusals: error that the next call of that method raises, once.
        answers: what a method returns.
        failure: what poisoned the session.
        info: what the device is.
    """

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    refusals: dict[str, BaseException] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    failure: BaseException | None = None
    info: DeviceInfo = INFO

    def _note(self, name: str, *arguments: Any) -> Any:
        self.calls.append((name, *arguments))
        if error := self.refusals.pop(name, None):
            raise error
        return self.answers.get(name)

    def allocate(self, size_bytes: int) -> int:
        return self._note("allocate", size_bytes)

    def free(self, handle: int, deadline: Deadline) -> None:
        self._note("free", handle, deadline)

    def write(
        self,
        handle: int,
        data: bytes | memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        self._note("write", handle, data, deadline, offset_bytes, memory)

    def read(
        self,
        handle: int,
        into: memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        self._note("read", handle, into, deadline, offset_bytes, memory)

    def load(self, text: bytes, entry: str, deadline: Deadline) -> int:
        return self._note("load", text, entry, deadline)

    def unload(self, kernel_id: int, deadline: Deadline) -> None:
        self._note("unload", kernel_id, deadline)

    def launch(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
    ) -> None:
        self._note("launch", kernel_id, config, arguments(), memory, deadline)

    def submit(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
        stream: int = 0,
    ) -> None:
        self._note("submit", kernel_id, config, arguments(), memory, deadline, stream)

    def copy_in(
        self, handle: int, offset_bytes: int, window: HostWindow, memory: Region, deadline: Deadline, stream: int = 0
    ) -> None:
        self._note("copy_in", handle, offset_bytes, window, memory, deadline, stream)

    def copy_out(
        self, window: HostWindow, memory: Region, handle: int, offset_bytes: int, deadline: Deadline, stream: int = 0
    ) -> None:
        self._note("copy_out", window, memory, handle, offset_bytes, deadline, stream)

    def synchronize(self, deadline: Deadline, stream: int | None = None) -> None:
        self._note("synchronize", deadline, stream)

    def ended(self, stream: int) -> bool:
        return self._note("ended", stream)

    def open_stream(self) -> int:
        return self._note("open_stream")

    def close_stream(self, number: int, deadline: Deadline) -> None:
        self._note("close_stream", number, deadline)

    def open_event(self) -> int:
        return self._note("open_event")

    def close_event(self, number: int) -> None:
        self._note("close_event", number)

    def record(self, event: int, stream: int) -> None:
        self._note("record", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._note("wait_event", stream, event)

    def synchronize_event(self, event: int, deadline: Deadline) -> None:
        self._note("synchronize_event", event, deadline)

    def event_reached(self, event: int) -> bool:
        return self._note("event_reached", event)

    def begin_graph(self, stream: int) -> None:
        self._note("begin_graph", stream)

    def end_graph(self, stream: int) -> int:
        return self._note("end_graph", stream)

    def replay(self, graph: int, memory: Region | None, deadline: Deadline, stream: int = 0) -> None:
        self._note("replay", graph, memory, deadline, stream)

    def close_graph(self, graph: int, deadline: Deadline) -> None:
        self._note("close_graph", graph, deadline)
