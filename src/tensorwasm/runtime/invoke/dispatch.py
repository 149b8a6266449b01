"""How a call of a function runs: one table of conditions, and two ways.

*One-shot*: the sandbox is made, called and dropped in one step of compiled code (`tensorwasm.runtime.invoke.one_shot`).
*Full*: everything else (`tensorwasm.runtime.invoke.full`). Each is done on the caller's thread or as a fiber. A call is
one-shot if it meets every row of `CONDITIONS`.

An event loop's thread begins a call itself, for a slice of time (`tensorwasm.runtime.invoke.inline`); past it a
one-shot call of a module without imports starts anew elsewhere, and every other call goes on elsewhere where it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from tensorwasm import settings
from tensorwasm.errors import InvalidArgs, TensorWasmError
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.native.loading import is_loading, load_oneshot, once_loaded
from tensorwasm.guest.reactor.preemption_timer import find_timer
from tensorwasm.guest.sandbox.oneshot import SavedStart
from tensorwasm.guest.sandbox.wasi_io import INHERIT
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.invoke.device_access import is_direct, resolve_memory_kind, wants_compiled
from tensorwasm.runtime.invoke.full import FullJob, prepare_form, run_full
from tensorwasm.runtime.invoke.grants import Grants, parse_grants
from tensorwasm.runtime.invoke.inline import slice_budget
from tensorwasm.runtime.invoke.invocation import (
    Announce,
    CallInputs,
    CallOptions,
    Invocation,
    PendingInvocation,
    configure,
    make_call,
)
from tensorwasm.runtime.invoke.one_shot import FiberPlan, OneShotJob, OneShotPlan

if TYPE_CHECKING:
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.reactor.reactor import Reactor
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.runtime.invoke.deployed_module import DeployedModule
    from tensorwasm.values import DeviceInfo, MemoryKind

_MAX_PLANS: Final = 256
_OWN_STREAMS: Final = "a guest that was submitted cannot have this process's own streams: others would wait"
NO_GRANTS: Final = Grants()


@dataclass(frozen=True, slots=True)
class Question:
    """A call's properties, from which `CONDITIONS` decides whether it can be one-shot."""

    module: DeployedModule
    export: str  # the function's name, which the module has
    granted: Grants
    tenant: str  # whose account is charged
    memory: MemoryKind  # how kernels reach linear memory
    saved: SavedStart | None = None  # the state sandboxes begin with, None for the module's own

    @property
    def prepared(self) -> LinkedModule:
        """The form of the module whose sandboxes run on the caller's thread."""
        module = self.module
        if self.saved is not None:
            return module.form(module.blank)
        if module.prepared.needs_wasi:
            return module.form(Form(native=self.granted.cuda, stdio=True))
        return module.form(Form(native=True)) if self.granted.cuda else module.prepared


@dataclass(frozen=True, slots=True)
class Condition:
    """A row of `CONDITIONS`."""

    what: str  # must hold, in words
    # Tests it for a call on the caller's thread; None where it need not hold.
    on_thread: Callable[[Question], bool] | None
    as_fiber: Callable[[Question], bool] | None  # tests it for a call as a fiber; None where it need not hold


CONDITIONS: Final = (
    Condition(
        "its sandbox is not to be a warm one",
        lambda asked: asked.granted.cuda or asked.saved is not None or asked.tenant not in asked.module.warm_kept,
        None,
    ),
    Condition(
        "none of its loops is offloaded; calls of which some are do not run as fibers",
        lambda asked: asked.saved is not None or asked.module.offloading is None,
        None,
    ),
    Condition(
        "nothing but a reactor's _initialize is called before the export, and before a fiber's nothing",
        lambda asked: asked.module.initialiser is None or asked.saved is not None,
        lambda asked: not asked.module.initialisers(asked.export),
    ),
    Condition(
        "its GPU, if any, is reached by compiled host functions, through memory that wasmtime made; a fiber has none",
        lambda asked: not asked.granted.cuda or _has_compiled_gpu(asked),
        lambda asked: not asked.granted.cuda,
    ),
    Condition(
        "it begins with the module's own state, or compiled code has been loaded, as far as it will be",
        lambda asked: asked.saved is None or not is_loading(),  # else its sandboxes would stay slow
        None,
    ),
    Condition(
        "its module has no start function, and little to copy when a sandbox is made",
        lambda asked: asked.prepared.is_one_shot(),
        lambda asked: asked.module.form(Form(fibers=True)).is_one_shot_fiber(),
    ),
    Condition(
        "it has WASI without directories and saved state, and as a fiber no WASI",
        lambda asked: not asked.prepared.needs_wasi or (asked.saved is None and not asked.granted.directories),
        lambda asked: not asked.module.prepared.needs_wasi,
    ),
)
"""What a call must meet to be one-shot, in this order; the first row that it does not meet makes it a full one."""


def _has_compiled_gpu(asked: Question) -> bool:
    if asked.memory == "pinned":  # its pages are prepared before the guest runs
        return False
    shared = asked.module.host.share()
    direct = is_direct(shared, asked.memory, asked.prepared)
    return wants_compiled(shared) and not direct and asked.prepared.needs_layout


def plan_one_shot(asked: Question) -> OneShotPlan | None:
    """Return a plan for one-shot calls on the caller's thread, None if they must be full."""
    if any(row.on_thread is not None and not row.on_thread(asked) for row in CONDITIONS):
        return None
    module, host, gpu = asked.module, asked.module.host, asked.granted.cuda
    initialisers = module.initialisers(asked.export) if asked.saved is None else ()
    return OneShotPlan(
        asked.prepared,
        asked.export,
        host.limits,
        host.share if gpu else None,
        asked.tenant,
        asked.memory,
        asked.saved,
        # With WASI it may not keep the GIL, which the threads need on which wasmtime hands output on.
        brief=not (gpu or asked.prepared.needs_wasi) and asked.saved is None and module.brief,
        initialiser=next((name for name in initialisers if name != asked.export), None),  # which runs once too
    )


class Dispatcher:
    """Runs the calls of one module, each in the way that its conditions allow. Thread-safe.

    `tensorwasm.runtime.Function` documents what is called, arguments and errors.
    """

    def __init__(self, module: DeployedModule) -> None:
        self._module = module
        self._prepared: set[tuple[bool, MemoryKind | None]] = set()
        self._lock = threading.Lock()
        self._generation = 0  # of what plans rest on: one that was made of an earlier one is used once, and not kept
        self.plans: dict[tuple[str | None, bool, bool, str, MemoryKind | None], OneShotPlan] = {}
        self.fiber_plans: dict[str | None, FiberPlan | None] = {}

    def forget(self) -> None:
        """Drop all plans: what they rest on has changed."""
        with self._lock:
            self._generation += 1
            self.plans.clear()
            self.fiber_plans.clear()

    # ---------------------------------------------------------------- on the caller's thread

    def call(
        self,
        export: str | None,
        args: Sequence[object],
        *,
        announce: Announce | None = None,
        on_device: Callable[[DeviceInfo, str], object] | None = None,
        **given: Unpack[CallInputs],
    ) -> Invocation:
        """Make a call on this thread, with the keyword arguments of `tensorwasm.runtime.Function.invoke`.

        With `announce`, which is given what ends the guest from any thread, a call without a GPU is a full one.
        """
        module, granted = self._module, parse_grants(given.get("grants", ()))
        if announce is None or granted.cuda:
            plan = self.plan(export, granted, given.get("tenant", DEFAULT_TENANT), given.get("memory_kind"))
            if plan is not None:
                if on_device is not None and granted.cuda:
                    on_device(module.host.share().info, module.host.device_reason)
                config = None
                if module.prepared.needs_wasi:
                    config = configure(
                        module,
                        granted,
                        argv=given.get("argv"),
                        env=given.get("env"),
                        stdin=given.get("stdin", b""),
                        stdout=given.get("stdout"),
                        stderr=given.get("stderr"),
                    )
                sent = given.get("input", b""), given.get("on_chunk"), given.get("deadline")
                return plan.invoke(args, *sent, config, announce)
        given["grants"] = granted
        return run_full(make_call(module, export, args, **given), on_device=on_device, announce=announce)

    def plan(
        self, export: str | None, granted: Grants, tenant: str, memory_kind: MemoryKind | None
    ) -> OneShotPlan | None:
        """Return the plan of a one-shot call on the caller's thread, None if it must be a full one."""
        plan = self.find_plan(export, granted, tenant, memory_kind)
        if plan is None:
            early = is_loading()  # read first: that may end meanwhile
            generation, target = self._generation, self._module.choose(export)
            plan = plan_one_shot(Question(self._module, target, granted, tenant, resolve_memory_kind(memory_kind)))
            with self._lock:
                if plan is not None and generation == self._generation:
                    if len(self.plans) >= _MAX_PLANS:
                        self.plans.clear()
                    self.plans[export, granted.cuda, bool(granted.directories), tenant, memory_kind] = plan
            if early and plan is not None:
                once_loaded(self.forget)  # its sandboxes would stay slow
        return plan

    def find_plan(
        self, export: str | None, granted: Grants, tenant: str, memory_kind: MemoryKind | None
    ) -> OneShotPlan | None:
        """Return the plan of a one-shot call on the caller's thread if it was made before, else None."""
        plan = self.plans.get((export, granted.cuda, bool(granted.directories), tenant, memory_kind))
        return plan if plan is not None and plan.settings is settings.current() else None

    # ---------------------------------------------------------------- as a fiber

    def submit(self, export: str | None, args: Sequence[object], options: CallOptions) -> Future[Invocation]:
        """Make a call that holds no thread while its guest waits; see `tensorwasm.runtime.Function.submit`."""
        self._module.engine.require_ticker()  # a forked process has no threads either: no outcome would ever come
        if self._module.may_offload:
            return self._submit_offloaded(export, args, options)
        fibers = self._module.fibers
        reactor = fibers.open()
        if reactor is None:
            return fibers.run_on_thread(partial(self.call, export, args, **options))
        try:
            job = self._make_job(export, args, reactor, options)
        except TensorWasmError as error:
            refused = PendingInvocation()
            refused.settle(error)
            return refused
        return _spawn(reactor, job)

    def _submit_offloaded(self, export: str | None, args: Sequence[object], options: CallOptions) -> Future[Invocation]:
        """Make a call on a thread of its own: what runs its loops elsewhere waits for them."""
        if any(options.get(stream) is INHERIT for stream in ("stdin", "stdout", "stderr")):
            refused = PendingInvocation()
            refused.settle(InvalidArgs(_OWN_STREAMS))
            return refused
        from tensorwasm.runtime.invoke.call_threads import CallThreads  # noqa: PLC0415 - imports thread pools

        threads = self._module.fibers.keep(CallThreads)
        return threads.submit(lambda announce: self.call(export, args, announce=announce, **options))

    def _make_job(
        self, export: str | None, args: Sequence[object], reactor: Reactor, options: CallOptions
    ) -> FullJob | OneShotJob:
        plan = self._fiber_plan(export, options)
        if plan is not None:
            return OneShotJob(plan, self._module, args, options)
        return _describe_full(self._module, export, args, reactor, **options)

    def _fiber_plan(self, export: str | None, options: CallOptions) -> FiberPlan | None:
        """Return the plan of a one-shot call as a fiber, None if it must be a full one."""
        granted = parse_grants(options["grants"]) if "grants" in options else NO_GRANTS
        if granted.cuda or "memory_kind" in options:  # which the full way checks
            return None
        try:
            return self.fiber_plans[export]
        except KeyError:
            generation = self._generation
            asked = Question(self._module, self._module.choose(export), granted, "", "staged")
            short = all(row.as_fiber is None or row.as_fiber(asked) for row in CONDITIONS)
            plan = FiberPlan(self._module, self._module.form(Form(fibers=True)), asked.export) if short else None
            with self._lock:
                if generation == self._generation:
                    self.fiber_plans[export] = plan
            return plan

    # ---------------------------------------------------------------- on an event loop's thread

    def begin(
        self, export: str | None, args: Sequence[object], options: CallOptions
    ) -> Invocation | Future[Invocation]:
        """Make a call on this thread, for a slice at most; see `tensorwasm.runtime.Function.invoke_async`.

        Returns:
            Its outcome, which may be raised, or a future if it goes on elsewhere.
        """
        module, fibers = self._module, self._module.fibers
        module.engine.require_ticker()
        if module.may_offload:
            return self._submit_offloaded(export, args, options)
        reactor = fibers.open()
        if reactor is None:
            return fibers.run_on_thread(partial(self.call, export, args, **options))
        job, budget = self._make_job(export, args, reactor, options), slice_budget()
        if module.long or not job.light or not budget.free or find_timer(module.engine) is None:
            return _spawn(reactor, job, long=module.long)
        fiber, error = job.begin(), None
        try:
            if not budget.run(fiber):
                pending = job.future
                pending.stop_with(partial(reactor.cancel, reactor.adopt(job, fiber)))
                return pending
        except BaseException as raised:  # noqa: BLE001 - raised again, once the sandbox is closed
            error = raised
        outcome, released = job.end(fiber, error)
        if released:
            fiber.recycle()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def begin_pure(self, export: str | None, args: Sequence[object], tenant: str) -> Invocation | None:
        """Make a call that has no effect but its results, on this thread, if it ends within its slice.

        Returns None if it has to be made with `begin`, because it has other effects or the thread or the slice had no
        time.
        """
        module = self._module
        if module.long or not module.pure or module.offload != "off":
            return None
        plan = self.plans.get((export, False, False, tenant, None))
        if plan is None or plan.settings is not settings.current():
            plan = self.plan(export, NO_GRANTS, tenant, None)
        return slice_budget().run_one_shot(module, plan, args) if plan is not None else None

    def is_prepared(self, granted: Grants, memory: MemoryKind | None) -> bool:
        """Return whether `prepare` was called for calls of this kind."""
        return (granted.cuda, memory) in self._prepared

    def prepare(self, granted: Grants, memory: MemoryKind | None) -> None:
        """Open the device and compile what fibers need, if that was not done before, or raise why it fails. Blocks."""
        module = self._module
        if module.may_offload:
            prepare_form(module, module.offloading, resolve_memory_kind(memory), cuda=granted.cuda)
        elif module.fibers.open() is not None:
            form = Form(fibers=True)
            if granted.cuda:
                form = _fiber_form(module, module.host.share(), resolve_memory_kind(memory))
            module.form(form).is_one_shot_fiber()  # compiled code is loaded now, and not on the first caller's thread
        self._prepared.add((granted.cuda, memory))

    def prepare_pure(self) -> None:
        """Load the compiled code that the first `begin_pure` would wait for. Blocks."""
        if self._module.pure:
            load_oneshot()


def _describe_full(
    module: DeployedModule,
    export: str | None,
    args: Sequence[object],
    reactor: Reactor,
    *,
    on_device: Callable[[DeviceInfo, str], object] | None = None,
    **given: Unpack[CallInputs],
) -> FullJob:
    """Return the job of a full call as a fiber. Opens the device and compiles, if that was not done before.

    Raises:
        InvalidArgs: besides, a stream is to be this process's own.
    """
    call, host = make_call(module, export, args, **given), module.host
    if any(stream is INHERIT for stream in (call.config.stdin, call.config.stdout, call.config.stderr)):
        raise InvalidArgs(_OWN_STREAMS)
    shared = host.share() if call.granted.cuda else None
    if shared is not None and on_device is not None:
        on_device(shared.info, host.device_reason)
    return FullJob(call, module.form(_fiber_form(module, shared, call.memory)), shared, reactor)


def _fiber_form(module: DeployedModule, shared: SharedDevice | None, memory: MemoryKind) -> Form:
    """Return the form of a guest that runs as a fiber, with a device or without."""
    if shared is None:
        return Form(fibers=True)
    return Form(wants_compiled(shared), is_direct(shared, memory, module.prepared), fibers=True)


def _spawn(reactor: Reactor, job: FullJob | OneShotJob, *, long: bool = False) -> PendingInvocation:
    pending = job.future
    pending.stop_with(partial(reactor.cancel, reactor.spawn(job, long=long)))
    return pending
