"""Jobs for a reactor, and a device whose work ends when the test says so."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from tensorwasm.errors import LimitError
from tensorwasm.guest.imports.host_function import HostCall, HostFunction
from tensorwasm.guest.imports.suspension import DeviceWait, QueueWait, Steps
from tensorwasm.guest.native.session_layouts import take_layout
from tensorwasm.guest.sandbox.fiber import Fiber
from tensorwasm.guest.sandbox.linker import LinkedModule
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.values import Deadline, Limits

HOST = "host"
_NOTIFY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@dataclass
class FakeStream:
    """Guests that wait, in order, until `end_work`; ``idle`` if what is not yet asked for has ended."""

    waiting: list[tuple[int, int]] = field(default_factory=list)
    idle: bool = False
    failure: BaseException | None = None
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def start(self, function: int, argument: int) -> bool:
        with self.arrived:
            self.waiting.append((function, argument))
            self.arrived.notify_all()
        return True

    def ended(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return self.idle

    def await_waiters(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.waiting) >= count, timeout=30)

    def end_work(self, count: int | None = None) -> None:
        """Notify, as a driver does: by calling the C function on this thread."""
        with self.arrived:
            ended, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        for function, argument in ended:
            _NOTIFY(function)(argument)

    def steps(self, _call: HostCall, value: int) -> Steps:
        """Wait, then answer the parameter and one."""
        yield DeviceWait(self.start, self.ended)
        return value + 1

    def function(self, name: str = "wait") -> HostFunction:
        return HostFunction(HOST, name, ("i32",), ("i32",), _never, waits=True, steps=self.steps)


@dataclass
class FakeLine:
    """A line in which everybody waits until `call_next`; what is asked of it is written down."""

    until: Deadline = field(default_factory=Deadline)
    refusal: Exception | None = None
    waiting: list[Callable[[], object]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def join(self, tell: Callable[[], object], until: Deadline) -> bool:
        assert until is self.until
        with self.arrived:
            self.waiting.append(tell)
            self.asked.append("join")
            self.arrived.notify_all()
        return True

    def give_up(self) -> None:
        self.asked.append("give up")
        if self.refusal is not None:
            raise self.refusal

    def abandon(self) -> None:
        self.asked.append("abandon")

    def await_waiters(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.waiting) >= count, timeout=30)

    def call_next(self) -> None:
        self.waiting.pop(0)()

    def steps(self, _call: HostCall, value: int) -> Steps:
        """Wait, then answer the parameter and one, or two if the turn did not come."""
        try:
            yield QueueWait(self, self.until)
        except LimitError:
            return value + 2
        return value + 1

    def function(self, name: str = "wait") -> HostFunction:
        return HostFunction(HOST, name, ("i32",), ("i32",), _never, waits=True, steps=self.steps)


def _never(*_: object) -> int:
    raise AssertionError("the body of a function with steps was called")


@dataclass
class FakeJob:
    """A call whose outcome lands in `future`."""

    prepared: LinkedModule
    export: str = "go"
    args: Sequence[object] = ()
    deadline: Deadline = field(default_factory=lambda: Deadline.after(60))
    limits: Limits = field(default_factory=Limits)
    wasi_config: WasiConfig = field(default_factory=WasiConfig)
    drain: Callable[[], bool] | None = None
    blocks: bool = False
    lingers: bool = False
    may_move: bool = False
    light: bool = False
    future: Future[list[int | float]] = field(default_factory=Future)
    finished_on: int = 0

    def begin(self) -> Fiber:
        return Fiber(
            self.prepared,
            self.export,
            self.args,
            limits=self.limits,
            services={},
            wasi_config=self.wasi_config,
            deadline=self.deadline,
            layout=take_layout(),
            drain=self.drain,
        )

    def finish(self, fiber: Fiber | None, error: BaseException | None) -> bool:
        self.finished_on = threading.get_ident()
        values = fiber.values if fiber is not None else []
        released = fiber.close() if fiber is not None else True
        if error is None:
            self.future.set_result(values)
        else:
            self.future.set_exception(error)
        return released
