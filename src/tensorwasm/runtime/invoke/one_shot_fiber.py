"""One-shot calls as fibers: a sandbox is made, called and, unless its guest is suspended, dropped in one step.

A `FiberPlan` holds what is prepared once for an export, for modules without WASI, start function and initialisers, and
for invocations without a GPU. `tensorwasm.runtime.invoke.one_shot` is the same for calls on the caller's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from tensorwasm.errors import InternalError
from tensorwasm.guest.imports import OutputStream, interfaces
from tensorwasm.guest.native.session_layouts import draw_pad, recycle_pad
from tensorwasm.guest.sandbox.oneshot_fiber import OneShotFiber
from tensorwasm.guest.sandbox.state import earlier
from tensorwasm.runtime.invoke.call import Chunks
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.invoke.loaded_module import LoadedModule
from tensorwasm.runtime.invoke.pending import PendingInvocation

if TYPE_CHECKING:
    from tensorwasm.guest.reactor.task import Sandbox
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.runtime.invoke.call import Options
    from tensorwasm.values import Limits

MAX_IDLE: Final = 64
"""Sandboxes that a plan keeps."""

_SENT: Final = frozenset(interfaces.TENSOR.modules)

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

_orphans: Final[deque[OneShotFiber]] = deque()
"""Sandboxes of plans that are gone: closed when the next plan is made, for what is collected must not take locks."""


class FiberPlan:
    """What is prepared once for one-shot calls of an export as fibers. Thread-safe."""

    def __init__(self, function: LoadedModule, prepared: LinkedModule, export: str) -> None:
        """Describe it.

        Args:
            function: what is called.
            prepared: its form for fibers, for which `tensorwasm.guest.sandbox.oneshot_fiber.is_one_shot_fiber`.
            export: the function to call.
        """
        self.export = export
        self.limits: Limits = function.host.limits
        self.result_types = prepared.module.plan(export).results
        self.talks = any(wanted.module in _SENT for wanted in prepared.module.imports)
        self._prepared = prepared
        self._idle: deque[OneShotFiber] = deque()
        while _orphans:
            with suppress(IndexError):
                _orphans.pop().scrap()

    def __del__(self) -> None:
        _orphans.extend(getattr(self, "_idle", ()))

    def take(self) -> OneShotFiber:
        """Return a sandbox, the caller's alone until it is recycled."""
        with suppress(IndexError):
            return self._idle.pop()
        pad = draw_pad()
        try:
            return OneShotFiber(self._prepared, self.export, self.limits, pad)
        except BaseException:
            recycle_pad(pad)
            raise

    def put(self, sandbox: OneShotFiber) -> None:
        """Take back a sandbox that is closed."""
        if len(self._idle) < MAX_IDLE:
            self._idle.append(sandbox)
        else:
            sandbox.scrap()


class OneShotJob:
    """One one-shot invocation, as a reactor runs it."""

    __slots__ = ("_args", "_chunks", "_ends_ns", "_function", "_future", "_options", "_plan", "_started_s")

    blocks: ClassVar = False
    lingers: ClassVar = False
    roams: ClassVar = True

    def __init__(self, plan: FiberPlan, function: LoadedModule, args: Sequence[object], options: Options) -> None:
        """Describe the job.

        Args:
            plan: how it is called.
            function: what is called.
            args: the export's arguments.
            options: of `tensorwasm.runtime.Function.invoke`.
        """
        self._plan = plan
        self._function = function
        self._args = args
        self._options = options
        self._future: PendingInvocation | None = None
        self._chunks: Chunks | None = None
        self._started_s = time.perf_counter()
        self._ends_ns = earlier(options.get("deadline"), time.monotonic_ns(), plan.limits.wall_s)

    @property
    def future(self) -> PendingInvocation:
        """Gets the outcome. Made when first asked for, which is before the job is anybody else's."""
        if self._future is None:
            self._future = PendingInvocation()
        return self._future

    @property
    def light(self) -> bool:
        """Whether everything that its guest does is short, or a timer can end it."""
        return self._function.brief

    def begin(self) -> OneShotFiber:
        """Return the sandbox; nothing of it is made yet.

        Raises:
            TensorWasmError: what `tensorwasm.runtime.Function.invoke` raises before a guest runs.
        """
        plan, services = self._plan, _NOTHING
        if plan.talks:
            self._chunks = Chunks(self._options.get("on_chunk"))
            services = {"input": self._options.get("input", b""), "stream": OutputStream(self._chunks)}
        sandbox = plan.take()
        try:
            sandbox.begin(self._args, services, self._ends_ns, plan.put)
        except BaseException:
            plan.put(sandbox)
            raise
        return sandbox

    def finish(self, fiber: Sandbox | None, error: BaseException | None) -> bool:
        """Make the invocation of what there is, close the sandbox, and tell whoever waits."""
        outcome, released = self.end(fiber, error)
        self.future.spent_ns = fiber.spent_ns if fiber is not None else 0
        self.future.settle(outcome)
        return released

    def end(self, fiber: Sandbox | None, error: BaseException | None) -> tuple[Invocation | BaseException, bool]:
        """Close the sandbox; return the outcome, and True: nothing reaches its memory any more."""
        if fiber is not None:
            self._function.long = fiber.long
            fiber.close()
        if fiber is None or error is not None:
            return error or InternalError("an invocation ended without an outcome"), True
        plan, chunks = self._plan, tuple(self._chunks.chunks) if self._chunks is not None else ()
        spent_s = time.perf_counter() - self._started_s
        return Invocation(plan.export, tuple(fiber.values), plan.result_types, 0, b"", b"", chunks, spent_s, None), True
