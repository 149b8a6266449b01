"""What the parts of a session share: its tables, its lock, and the error that ended it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate, Final, ParamSpec, TypeVar

from tensorwasm.errors import (
    CallerError,
    DeviceLost,
    InvalidArgs,
    LimitError,
    QuotaExceeded,
    TensorWasmError,
)
from tensorwasm.gpu.device.guarded_kernel import device_time, first_look, launch_parameter
from tensorwasm.gpu.device.limits import GUARDED_PIECE_BYTES, SessionLimits
from tensorwasm.gpu.device.port import attempt
from tensorwasm.gpu.limits.gate import NoPermit
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.device_resources import DeviceResources, TenantResources
from tensorwasm.gpu.resources.window_heap import window_bytes
from tensorwasm.gpu.state.numbered import EventTable, GraphTable
from tensorwasm.gpu.state.resource_table import HeldKernel, ResourceTable
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.gpu.windows import Windows
from tensorwasm.values import NEVER, Deadline, LaunchConfig, MemoryKind

SETTLE_LIMIT_S: Final = 30.0
"""Longest that a change of a session's memory waits for its work, if the guest's call has no deadline."""

BRIEFLY_S: Final = 0.005
"""How long it waits where other guests wait, too: long enough for new memory to be cleared."""

REFUSALS: Final = (CallerError, LimitError, NoPermit)
"""Errors after which everything is as before."""


class SessionCore:
    """The tables of one session, and the lock that every method of its parts holds.

    For the arguments see `tensorwasm.gpu.session.Session`.

    Attributes:
        credits: credits for work pending on the device.
        lock: held by one method at a time.
        failure: what poisoned the session, or None.
        closed: whether it is closed.
        used: whether any method was called since the session was new or renewed.
        refused: calls that were over a quota.
        launched: launches the device accepted from Python.
        staged: those of them whose windows were staged.
        replayed: graphs replayed from Python.
        window: to which guarded kernels are confined; None without a guard.
    """

    __slots__ = (
        "_cap_bytes",
        "closed",
        "credits",
        "device",
        "events",
        "failure",
        "graphs",
        "launched",
        "layout",
        "limits",
        "lock",
        "refused",
        "replayed",
        "resources",
        "staged",
        "table",
        "tenancy",
        "used",
        "window",
        "windows",
        "work",
    )

    def __init__(
        self,
        resources: DeviceResources,
        tenant: str,
        limits: SessionLimits,
        architecture: tuple[int, int] | None,
        memory_kind: MemoryKind,
        layout: SessionLayout | None,
    ) -> None:
        self.resources = resources
        self.device = resources.device
        self.limits = limits
        self.tenancy = tenancy = resources.tenancy(tenant)
        self._cap_bytes = tenancy.account.max_bytes
        self.window = window = None
        if resources.windows is not None:
            self.window = window = resources.windows.take(tenant, tenancy.account, self._window_bytes(self._cap_bytes))
        try:
            self._open(tenancy, architecture, memory_kind, layout)
        except BaseException:
            if window is not None:
                window.give_back()
            raise

    def _open(
        self,
        tenancy: TenantResources,
        architecture: tuple[int, int] | None,
        memory_kind: MemoryKind,
        layout: SessionLayout | None,
    ) -> None:
        resources, device, limits, window = self.resources, self.device, self.limits, self.window
        self.layout = writer = SessionLayoutWriter(layout, resources.driver_at() if layout is not None else 0)
        self.table = table = ResourceTable(
            resources, tenancy, window, limits, writer, architecture or device.info.compute_capability
        )
        self.work = work = SessionWork(resources, writer, table.reachable, limits.streams, window, tenancy.tenant)
        if window is not None:
            window.heap.settle = self._settle
            writer.show_guard(window.address, window.size_bytes, window.stop.flag_at, window.stop.status_at)
            writer.show_timer(device.timer_offset_ns)
            writer.show_clear(window.clear_ranges)
        self.credits = work.credits
        self.events = EventTable()
        self.graphs = graphs = GraphTable(device, writer)
        self.windows = Windows(resources, tenancy, table.regions, writer, work, graphs, memory_kind, window)
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self.closed = self.used = False
        self.refused = self.launched = self.staged = self.replayed = 0

    def _window_bytes(self, cap_bytes: int) -> int:
        """Return the size of the window of a session that is opened under a cap: for what it may hold."""
        return window_bytes(min(cap_bytes, self.limits.device_bytes))

    def cap_stands(self) -> bool:
        """Return whether the tenant is registered, with a cap for which the window would have the same size."""
        account = self.tenancy.account
        if account.stands(self._cap_bytes):
            return True
        cap_bytes = account.max_bytes  # read once: another thread may change it
        if self.window is not None and self.window.size_bytes != self._window_bytes(cap_bytes):
            return False
        self._cap_bytes = cap_bytes
        return account.registered

    def complete(
        self, kernel: HeldKernel, config: LaunchConfig, values: tuple[bytes, ...], deadline: Deadline | None
    ) -> tuple[LaunchConfig, tuple[bytes, ...]]:
        """Return geometry and values of a launch with what a guarded kernel takes besides; others as they are.

        Without a deadline it is recorded: replays are stopped by the session's request, for which each block looks.
        """
        guarded, window = kernel.shared.guarded, self.window
        if guarded is None or window is None:
            return config, values
        shared_bytes = guarded.shared.total(config.shared_bytes)
        offset_ns = self.device.timer_offset_ns
        deadline_ns = device_time(deadline or NEVER, offset_ns)
        parameter = launch_parameter(
            window.address,
            0 if kernel.data is None else kernel.data.address - window.address,
            deadline_ns,
            window.stop.flag_at,
            window.stop.status_at,
            0 if deadline is None else first_look(deadline_ns, offset_ns),
            shared_bytes,
            config.shared_bytes,
            window.size_bytes if guarded.verified.width == "wide" else 0,
        )
        return replace(config, shared_bytes=shared_bytes), (*values, parameter)

    def launch_pieces(self, kernel: HeldKernel, config: LaunchConfig) -> int:
        """Return how many pieces of work a launch is, with as much shared memory as it asks for."""
        guarded = kernel.shared.guarded
        if guarded is None:
            return 1
        shared_bytes = guarded.shared.total(config.shared_bytes)
        return kernel.shared.image(self.device, self.layout.deadline).pieces(config.grid, config.block, shared_bytes)

    def copy_pieces(self, size_bytes: int) -> int:
        """Return how many pieces of work a copy is."""
        return 1 if self.window is None else 1 + size_bytes // GUARDED_PIECE_BYTES

    def _settle(self) -> None:
        """Wait until nothing that can reach the session's window is in flight."""
        with self.lock:
            try:
                self.work.wait_all(self.layout.deadline.earlier(Deadline.after(SETTLE_LIMIT_S)))
            except BaseException as error:
                self.judge(error)
                raise

    def settle_at_once(self) -> None:
        """Check that nothing that can reach the session's window is in flight, waiting for `BRIEFLY_S` at most.

        Raises:
            QuotaExceeded: something is.
        """
        limit = Deadline.after(BRIEFLY_S)
        with self.lock:
            while not self.work.idle():
                if limit.expired():
                    raise QuotaExceeded("a guest's memory does not grow while its kernels run")
                time.sleep(BRIEFLY_S / 50)

    @property
    def pristine(self) -> bool:
        """Whether nothing with a number, kernels apart, was ever there, and no work is on the device."""
        numbered = self.table.buffers, self.events, self.graphs
        return all(things.next_number == 1 for things in numbered) and self.work.renewable

    def renew(self) -> bool:
        """Forget what Python did for a guest; return whether nothing is left of it."""
        with self.lock:
            idle = self.failure is None and self.graphs.recording is None and not self.layout.staged
            unreached = self.pristine and self.windows.reach.region is None
            if not (idle and unreached) or attempt(self.table.renew):
                return False
            self.launched = self.staged = self.replayed = self.refused = 0
            self.used = False
            return True

    def begin(self, recording: bool) -> None:  # noqa: FBT001 - one caller, on every path of every guest
        """Begin a method; the lock is held.

        Args:
            recording: whether the method may be called while a stream records.
        """
        if self.failure is not None:
            raise DeviceLost(f"this GPU session ended with an earlier failure: {self.failure}")
        if self.closed:
            raise DeviceLost("this GPU session is closed")
        if self.graphs.recording is not None and not recording:
            raise InvalidArgs("while a stream records, there are only launches and copies on it")
        self.used = True
        if self.window is not None and self.window.stop.status:
            try:
                self.work.require_unstopped(self.layout.deadline)
            except TensorWasmError as error:
                self.fail(error)
                raise
        if self.layout.loads:
            self.table.adopt()

    def judge(self, error: BaseException, harmless: tuple[type[BaseException], ...] = ()) -> None:
        """End the session after an error, unless it is a refusal or one of ``harmless``."""
        if isinstance(error, QuotaExceeded):
            self.refused += 1
        if not isinstance(error, (*REFUSALS, *harmless)):
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the session: its state on the device is unknown."""
        self.failure = error
        self.layout.disarm()


class SessionPart:
    """A part of a session, whose methods take turns (`in_turn`)."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core


_S = TypeVar("_S", bound=SessionPart)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Method = Callable[Concatenate[_S, _P], _R]


def in_turn(
    *harmless: type[BaseException], recording: bool = False
) -> Callable[[_Method[_S, _P, _R]], _Method[_S, _P, _R]]:
    """Run a method of a part with the session's lock held, and judge what it raises.

    Args:
        harmless: errors that leave everything as it was in this method.
        recording: whether the method may be called while a stream records.
    """

    def wrap(method: _Method[_S, _P, _R]) -> _Method[_S, _P, _R]:
        @functools.wraps(method)
        def take(self: _S, /, *args: _P.args, **named: _P.kwargs) -> _R:
            core = self._core
            with core.lock:
                core.begin(recording)
                try:
                    return method(self, *args, **named)
                except BaseException as error:
                    core.judge(error, harmless)
                    raise

        return take

    return wrap
