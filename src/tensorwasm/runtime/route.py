"""The short way into a function: its sandboxes are visits, and their GPU sessions serve one guest after the other.

What is prepared once for an export, a tenant and a kind of memory is a `Route`; what one guest has of it, and the next
one after it, a `Stay`. A stay is used again only if its guest ended well and left nothing behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from tensorwasm import settings
from tensorwasm.guest.imports import CudaService, OutputStream, interfaces
from tensorwasm.guest.native.loading import is_early
from tensorwasm.guest.native.session_layouts import draw_pad, recycle_pad
from tensorwasm.guest.sandbox.oneshot import OneShotSandbox, SavedStart, is_one_shot
from tensorwasm.runtime.form import Form
from tensorwasm.runtime.invocation import Invocation
from tensorwasm.runtime.linear import DIRECT, checked_kind, end_session, wants_compiled
from tensorwasm.runtime.streams import Chunks
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.gpu.native.layout import SessionLayout
    from tensorwasm.gpu.session import Session, SessionStatistics
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.sandbox.linker import Prepared
    from tensorwasm.runtime.function import Function
    from tensorwasm.runtime.grants import Grants
    from tensorwasm.values import Limits, MemoryKind

_MAX_ROUTES: Final = 256

MAX_IDLE: Final = 64
"""Stays that a route keeps; those with a session are kept as long as the device keeps that, if it is less."""

_SENT: Final = frozenset(interfaces.TENSOR.modules)

_orphans: Final[deque[Stay]] = deque()
"""Stays of routes that are gone: closed by whoever makes the next, for what is collected must not take locks."""


class Stay:
    """A visit and its session.

    Attributes:
        visit: the visit.
        session: its session, None without a GPU.
        drain: ends the session; None without one.
        left: what the session had when it was ended so, nothing before.
        services: what a guest finds that neither reads input nor sends chunks.
        confined: the session has to be told of each deadline.
    """

    __slots__ = ("_service", "confined", "drain", "left", "services", "session", "visit")

    def __init__(self, visit: OneShotSandbox, session: Session | None) -> None:
        self.visit = visit
        self.session = session
        self.drain: Callable[[], bool] | None = None
        self.left: list[SessionStatistics] = []
        self.services: dict[str, object] = {}
        self._service: CudaService | None = None
        self.confined = session is not None and session.confined
        if session is not None:
            self.drain = partial(_end, session, self.left)
            self._service = self.services["cuda"] = CudaService(session)

    def renew(self) -> bool:
        """Make it as good as new; return whether that could be done."""
        if self._service is not None:
            self._service.last_error = b""
        return self.session is None or self.session.renew()

    def close(self) -> None:
        """Give everything back."""
        if self.session is not None:
            self.session.close()
        self.visit.close()


def _end(session: Session, left: list[SessionStatistics]) -> bool:
    left.append(session.statistics())
    return end_session(session)


class Route:
    """One way into a function, for any number of threads.

    Attributes:
        settings: what it was made under.
    """

    def __init__(
        self,
        prepared: Prepared,
        export: str,
        limits: Limits,
        shared: Callable[[], SharedDevice] | None = None,
        tenant: str = "",
        memory: MemoryKind = "staged",
        rebirth: SavedStart | None = None,
        *,
        brief: bool = False,
        initialiser: str | None = None,
    ) -> None:
        """Describe it.

        Args:
            prepared: the module, for which `tensorwasm.guest.sandbox.oneshot.is_one_shot`.
            export: the function to call.
            limits: what each sandbox may use.
            shared: opens the device, None without a GPU.
            tenant: whose account is charged.
            memory: how kernels reach linear memory.
            rebirth: what sandboxes begin with, None for what the module says.
            brief: see `tensorwasm.guest.sandbox.oneshot.OneShotSandbox`.
            initialiser: likewise.
        """
        self._rebirth = rebirth
        self._brief = brief
        self._initialiser = initialiser
        self.settings = settings.current()
        self._prepared = prepared
        self._export = export
        self._limits = limits
        self._share = shared
        self._tenant = tenant
        self._memory = memory
        self._result_types = prepared.module.plan(export).results
        self._talks = any(wanted.module in _SENT for wanted in prepared.module.imports)
        self._idle: deque[Stay] = deque()
        while _orphans:
            with suppress(IndexError):
                _orphans.pop().close()

    def __del__(self) -> None:
        _orphans.extend(getattr(self, "_idle", ()))

    def invoke(
        self,
        args: Sequence[object],
        input: bytes,  # noqa: A002 - the interface's own word for it
        on_chunk: Callable[[bytes], bool] | None,
        deadline: Deadline | None,
    ) -> Invocation:
        """Do what `tensorwasm.runtime.Function.invoke` does, which documents arguments and errors."""
        started_s = time.perf_counter()
        stay = self._take(deadline)
        session, collected, services = stay.session, None, stay.services
        try:
            if self._talks:
                collected = Chunks(on_chunk)
                services = {**services, "input": input, "stream": OutputStream(collected)}
            values = stay.visit.call(args, services, deadline, stay.drain)
            gpu = stay.left[0] if stay.left else session.statistics() if session is not None else None
        except BaseException:
            stay.close()
            raise
        self._put(stay)
        chunks = tuple(collected.chunks) if collected is not None else ()
        elapsed_s = time.perf_counter() - started_s
        return Invocation(self._export, tuple(values), self._result_types, 0, b"", b"", chunks, elapsed_s, gpu)

    def _take(self, deadline: Deadline | None) -> Stay:
        """Return a stay that is as good as new, the caller's alone."""
        shared = self._share() if self._share is not None else None
        while True:
            try:
                stay = self._idle.pop()
            except IndexError:
                stay = self._open(shared)
                break
            if stay.session is None or stay.session.resume():
                break
            stay.close()
        if stay.confined and stay.session is not None:
            stay.session.enter(Deadline.after(self._limits.wall_s).earlier(deadline))
        return stay

    def _open(self, shared: SharedDevice | None) -> Stay:
        pad = draw_pad()
        try:
            if shared is None:
                return Stay(self._make_visit(pad), None)
            with shared.device.native.bound():
                session = shared.open_session(
                    self._tenant, architecture=self.settings.cuda_arch, memory_kind=self._memory, pad=pad
                )
        except BaseException:
            recycle_pad(pad)
            raise
        try:
            return Stay(self._make_visit(pad), session)
        except BaseException:
            session.close()
            recycle_pad(pad)
            raise

    def _make_visit(self, pad: SessionLayout) -> OneShotSandbox:
        return OneShotSandbox(
            self._prepared,
            self._export,
            self._limits,
            pad,
            self._rebirth,
            brief=self._brief,
            initialiser=self._initialiser,
        )

    def _put(self, stay: Stay) -> None:
        """Keep a stay for the next guest, if it can be made as good as new."""
        if len(self._idle) >= MAX_IDLE or not stay.renew():
            stay.close()
            return
        if stay.session is not None:
            stay.session.park()
        self._idle.append(stay)


def find_route(
    function: Function, export: str | None, granted: Grants, tenant: str, memory_kind: MemoryKind | None
) -> Route | None:
    """Return the route of an invocation, None if it has to take the ordinary way.

    That is so with WASI, with a start of its own, with warm sandboxes, and without compiled code.

    Raises:
        TensorWasmError: what `tensorwasm.runtime.Function.invoke` raises before a guest runs.
    """
    if function.initialiser is not None or (tenant in function.stocks and not granted.cuda):
        return None
    key = export, granted.cuda, tenant, memory_kind
    route = function.routes.get(key)
    if route is None or route.settings is not settings.current():
        route = _make_route(function, function.choose(export), granted, tenant, memory_kind)
        if route is not None:
            if len(function.routes) >= _MAX_ROUTES:
                function.routes.clear()
            function.routes[key] = route
    return route


def _make_route(
    function: Function, target: str, granted: Grants, tenant: str, memory_kind: MemoryKind | None
) -> Route | None:
    plain, host = function.prepared, function.host
    # What is called by name runs once too.
    initialiser = next((name for name in function.initialisers(target) if name != target), None)
    if not granted.cuda:
        if is_early() or not is_one_shot(plain):  # else its visits would be slow ones for good
            return None
        return Route(plain, target, host.limits, brief=function.brief, initialiser=initialiser)
    if plain.needs_wasi:
        return None
    memory = checked_kind(memory_kind)
    if memory == "pinned":  # its pages are prepared before the guest touches them
        return None
    form = Form(wants_compiled(host.share()), memory in DIRECT)
    prepared = function.form(form) if form.native and not form.host_memory else None
    if prepared is None or not prepared.needs_pad or not is_one_shot(prepared):
        return None
    return Route(prepared, target, host.limits, host.share, tenant, memory, initialiser=initialiser)
