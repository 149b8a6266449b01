"""One-shot calls on the caller's thread: the sandbox is made, called and dropped in one step.

A `OneShotPlan` holds what is prepared once for an export, a tenant and a kind of memory; a `PooledSandbox` what one
guest after the other is given of it: the descriptor of the call, and its GPU session. It is used again only if its
guest ended well and left nothing behind.
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
from tensorwasm.guest.native.session_layouts import draw_pad, recycle_pad
from tensorwasm.guest.sandbox.oneshot import OneShotSandbox, SavedStart
from tensorwasm.runtime.invoke.call import Chunks
from tensorwasm.runtime.invoke.device_access import end_session
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.gpu.native.layout import SessionLayout
    from tensorwasm.gpu.session import Session, SessionStatistics
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.values import Limits, MemoryKind

MAX_IDLE: Final = 64
"""Sandboxes that a plan keeps; one with a session is kept for as long as the device keeps that."""

_SENT: Final = frozenset(interfaces.TENSOR.modules)

_orphans: Final[deque[PooledSandbox]] = deque()
"""Sandboxes of plans that are gone: closed when the next plan is made, for what is collected must not take locks."""


class PooledSandbox:
    """A place for sandboxes, and the GPU session that they share one after the other.

    Attributes:
        session: None without a GPU.
        drain: ends the session; None without one.
        left: the session's statistics when it was ended so, empty before.
        services: what host functions find of a guest that neither reads input nor sends chunks.
        confined: the session has to know each deadline.
    """

    __slots__ = ("_service", "confined", "drain", "left", "sandbox", "services", "session")

    def __init__(self, sandbox: OneShotSandbox, session: Session | None) -> None:
        self.sandbox = sandbox
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
        """Restore the first state for the next guest; return whether that could be done."""
        if self._service is not None:
            self._service.last_error = b""
        return self.session is None or self.session.renew()

    def close(self) -> None:
        """Close the session, and give the session's layout back."""
        if self.session is not None:
            self.session.close()
        self.sandbox.close()


def _end(session: Session, left: list[SessionStatistics]) -> bool:
    left.append(session.statistics())
    return end_session(session)


class OneShotPlan:
    """What is prepared once for one-shot calls of an export. Thread-safe.

    Attributes:
        settings: what it was made under.
    """

    def __init__(
        self,
        prepared: LinkedModule,
        export: str,
        limits: Limits,
        shared: Callable[[], SharedDevice] | None = None,
        tenant: str = "",
        memory: MemoryKind = "staged",
        saved_start: SavedStart | None = None,
        *,
        brief: bool = False,
        initialiser: str | None = None,
    ) -> None:
        """Prepare nothing yet: sandboxes are made when they are needed.

        Args:
            prepared: the module, for which `tensorwasm.guest.sandbox.oneshot.is_one_shot`.
            export: the function to call.
            limits: what each sandbox may use.
            shared: opens the device, None without a GPU.
            tenant: whose account is charged.
            memory: how kernels reach linear memory.
            saved_start: what sandboxes begin with, None for what the module says.
            brief: see `tensorwasm.guest.sandbox.oneshot.OneShotSandbox`.
            initialiser: likewise.
        """
        self._saved_start = saved_start
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
        self._idle: deque[PooledSandbox] = deque()
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
        pooled = self._take(deadline)
        session, collected, services = pooled.session, None, pooled.services
        try:
            if self._talks:
                collected = Chunks(on_chunk)
                services = {**services, "input": input, "stream": OutputStream(collected)}
            values = pooled.sandbox.call(args, services, deadline, pooled.drain)
            gpu = pooled.left[0] if pooled.left else session.statistics() if session is not None else None
        except BaseException:
            pooled.close()
            raise
        self._put(pooled)
        chunks = tuple(collected.chunks) if collected is not None else ()
        elapsed_s = time.perf_counter() - started_s
        return Invocation(self._export, tuple(values), self._result_types, 0, b"", b"", chunks, elapsed_s, gpu)

    def _take(self, deadline: Deadline | None) -> PooledSandbox:
        """Return a sandbox in its first state, the caller's alone."""
        shared = self._share() if self._share is not None else None
        while True:
            try:
                pooled = self._idle.pop()
            except IndexError:
                pooled = self._open(shared)
                break
            if pooled.session is None or pooled.session.resume():
                break
            pooled.close()
        if pooled.confined and pooled.session is not None:
            pooled.session.enter(Deadline.after(self._limits.wall_s).earlier(deadline))
        return pooled

    def _open(self, shared: SharedDevice | None) -> PooledSandbox:
        pad = draw_pad()
        try:
            if shared is None:
                return PooledSandbox(self._make_sandbox(pad), None)
            with shared.device.native.bound():
                session = shared.open_session(
                    self._tenant, architecture=self.settings.cuda_arch, memory_kind=self._memory, pad=pad
                )
        except BaseException:
            recycle_pad(pad)
            raise
        try:
            return PooledSandbox(self._make_sandbox(pad), session)
        except BaseException:
            session.close()
            recycle_pad(pad)
            raise

    def _make_sandbox(self, pad: SessionLayout) -> OneShotSandbox:
        return OneShotSandbox(
            self._prepared,
            self._export,
            self._limits,
            pad,
            self._saved_start,
            brief=self._brief,
            initialiser=self._initialiser,
        )

    def _put(self, pooled: PooledSandbox) -> None:
        """Keep a sandbox for the next guest, if its first state can be restored."""
        if len(self._idle) >= MAX_IDLE or not pooled.renew():
            pooled.close()
            return
        if pooled.session is not None:
            pooled.session.park()
        self._idle.append(pooled)
