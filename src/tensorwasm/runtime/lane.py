"""The short way of submitted invocations: their sandboxes are voyages, one after the other in the same place.

What is prepared once for an export is a `Lane`; it is there for modules without WASI, start function and initialisers,
and for invocations without a GPU. `tensorwasm.runtime.route` is the same for those that block.
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
from tensorwasm.guest.sandbox.oneshot_fiber import OneShotFiber, is_one_shot_fiber
from tensorwasm.guest.sandbox.store import earlier
from tensorwasm.runtime.form import Form
from tensorwasm.runtime.grants import parse_grants
from tensorwasm.runtime.invocation import Invocation
from tensorwasm.runtime.streams import Chunks
from tensorwasm.runtime.submission import Submission

if TYPE_CHECKING:
    from tensorwasm.guest.reactor.task import Sandbox
    from tensorwasm.guest.sandbox.linker import Prepared
    from tensorwasm.runtime.function import Function
    from tensorwasm.runtime.options import Options
    from tensorwasm.values import Limits

MAX_IDLE: Final = 64
"""Voyages that a lane keeps."""

_PLAIN: Final = frozenset(
    {"argv", "env", "stdin", "stdout", "stderr", "input", "deadline", "on_chunk", "on_device", "grants", "tenant"}
)
_SENT: Final = frozenset(interfaces.TENSOR.modules)

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

_orphans: Final[deque[OneShotFiber]] = deque()
"""Voyages of lanes that are gone: ended by whoever makes the next, for what is collected must not take locks."""


class Lane:
    """One way into a function, for any number of threads."""

    def __init__(self, function: Function, prepared: Prepared, export: str) -> None:
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
        """Return a voyage, the caller's alone until it is recycled."""
        with suppress(IndexError):
            return self._idle.pop()
        pad = draw_pad()
        try:
            return OneShotFiber(self._prepared, self.export, self.limits, pad)
        except BaseException:
            recycle_pad(pad)
            raise

    def put(self, voyage: OneShotFiber) -> None:
        """Take back a voyage that is closed."""
        if len(self._idle) < MAX_IDLE:
            self._idle.append(voyage)
        else:
            voyage.scrap()


def find_lane(function: Function, export: str | None, options: Options) -> Lane | None:
    """Return the lane of an invocation, None if it has to take the ordinary way.

    Raises:
        TensorWasmError: what `tensorwasm.runtime.Function.invoke` raises before a guest runs.
    """
    if options and (not options.keys() <= _PLAIN or parse_grants(options.get("grants", ())).cuda):
        return None
    try:
        return function.lanes[export]
    except KeyError:
        target = function.choose(export)
        prepared = function.form(Form(fibers=True))
        short = not function.initialisers(target) and is_one_shot_fiber(prepared)
        lane = function.lanes[export] = Lane(function, prepared, target) if short else None
        return lane


class LaneJob:
    """One invocation on a lane, as a reactor runs it."""

    __slots__ = ("_args", "_chunks", "_ends_ns", "_function", "_future", "_lane", "_options", "_started_s")

    blocks: ClassVar = False
    lingers: ClassVar = False
    roams: ClassVar = True

    def __init__(self, lane: Lane, function: Function, args: Sequence[object], options: Options) -> None:
        """Describe the job.

        Args:
            lane: where it goes.
            function: what is called.
            args: the export's arguments.
            options: of `tensorwasm.runtime.Function.invoke`.
        """
        self._lane = lane
        self._function = function
        self._args = args
        self._options = options
        self._future: Submission | None = None
        self._chunks: Chunks | None = None
        self._started_s = time.perf_counter()
        self._ends_ns = earlier(options.get("deadline"), time.monotonic_ns(), lane.limits.wall_s)

    @property
    def future(self) -> Submission:
        """Gets the outcome. Made when first asked for, which is before the job is anybody else's."""
        if self._future is None:
            self._future = Submission()
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
        lane, services = self._lane, _NOTHING
        if lane.talks:
            self._chunks = Chunks(self._options.get("on_chunk"))
            services = {"input": self._options.get("input", b""), "stream": OutputStream(self._chunks)}
        voyage = lane.take()
        try:
            voyage.begin(self._args, services, self._ends_ns, lane.put)
        except BaseException:
            lane.put(voyage)
            raise
        return voyage

    def finish(self, fiber: Sandbox | None, error: BaseException | None) -> bool:
        """Make the invocation of what there is, close the sandbox, and tell whoever waits."""
        outcome, released = self.end(fiber, error)
        self.future.spent_ns = fiber.spent_ns if fiber is not None else 0
        self.future.settle(outcome)
        return released

    def end(self, fiber: Sandbox | None, error: BaseException | None) -> tuple[Invocation | BaseException, bool]:
        """Make the invocation of what there is, and close the sandbox; see `tensorwasm.runtime.fiber.InvocationJob`."""
        if fiber is not None:
            self._function.long = fiber.long
            fiber.close()
        if fiber is None or error is not None:
            return error or InternalError("an invocation ended without an outcome"), True
        lane, chunks = self._lane, tuple(self._chunks.chunks) if self._chunks is not None else ()
        spent_s = time.perf_counter() - self._started_s
        return Invocation(lane.export, tuple(fiber.values), lane.result_types, 0, b"", b"", chunks, spent_s, None), True
