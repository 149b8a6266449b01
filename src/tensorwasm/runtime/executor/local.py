"""`LocalExecutor`: runs requests in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import msgspec

from tensorwasm.errors import CapacityExhausted, GuestTrap, OutputClosed
from tensorwasm.gpu.limits.accounts import Accounts
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.runtime.deploy.lru_cache import LruCache
from tensorwasm.runtime.executor.request import ExecutorStatistics, Request, RunningCalls, check_request
from tensorwasm.runtime.invoke.call_threads import CallThreads, run_call, start_call
from tensorwasm.runtime.invoke.deployed_module import check_export
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.runtime.invoke.invocation import (
    Announce,
    CallOptions,
    Invocation,
    Listener,
    OutputName,
    PendingInvocation,
)
from tensorwasm.runtime.invoke.one_shot import OneShotPlan
from tensorwasm.values import Deadline, Limits, MemoryKind, OffloadMath, OffloadMode
from tensorwasm.yielding import begin_yielding

PLACES: Final = 32
"""Calls that run at a time in one process; more wait."""

FUNCTIONS: Final = 4096
"""Functions that are kept loaded, of at most `KEPT_MODULE_BYTES` of modules."""

SLOW_S: Final = 0.02
SLOW_CALLS: Final = 3
SLOW_FOR_S: Final = 1.0
"""A function of which so many calls in a row took so long, with a device, has its next ones as fibers, for so long."""


class FunctionKey(msgspec.Struct, frozen=True, cache_hash=True):
    """What a loaded function is found by."""

    tenant: str
    name: str
    limits: Limits
    module: bytes
    offload: OffloadMode = "off"
    offload_math: OffloadMath = "exact"


class LocalExecutor:
    """Runs requests in this process: with a device as fibers, which hold no thread while they wait, others on threads.

    Those with a listener have a thread each, because a listener may block it, which delays its own guest alone; so have
    those whose loops run elsewhere, which may wait long for processors. It takes any number of requests, of which
    `places` without a device run at a time. Cancelling ends a guest on a thread at its next loop or call, a fiber at
    its next turn; where there are no fibers it does not end a guest with a device. The runtime outlives the executor.
    """

    def __init__(self, runtime: Runtime, places: int = PLACES) -> None:
        self._runtime = runtime
        self._pool = ThreadPoolExecutor(places, thread_name_prefix="tensorwasm-call", initializer=begin_yielding)
        self._threads = CallThreads()
        self._functions: LruCache[tuple[FunctionKey, Function]] = LruCache(FUNCTIONS)
        self._lock = threading.Lock()
        self._running = RunningCalls()
        self._accounts: Accounts | None = None
        self._fibers: set[Future[Invocation]] = set()
        self._short = max(1, places // 2)  # calls that may still be made on this executor's threads as short ones
        self._led = [None] * max(1, places // 2)  # the same on threads of others: one is taken for each
        self._caps: dict[str, int | None] = {}  # of the accounts that were opened, by tenant
        self._closed = False

    def submit(self, request: Request, listener: Listener | None = None) -> PendingInvocation:
        """Take a request and return at once; see `tensorwasm.runtime.executor.request.Executor.submit`."""
        check_request(request)
        pending = PendingInvocation()
        with self._lock:
            if self._closed:
                raise CapacityExhausted("the executor is closed")
            self._running.enter(request.tenant, pending)
            start_call(self._pool, pending, self._run, request, Deadline.after(request.deadline_s), listener, pending)
        return pending

    def statistics(self) -> ExecutorStatistics:
        """Return a snapshot."""
        return self._running.statistics(self.charges())

    def charges(self) -> dict[str, tuple[int, int]]:
        """Return device and pinned host bytes by tenant, for those who hold any."""
        if self._accounts is None:
            return {}
        return {
            each.tenant: (each.device_bytes, each.pinned_bytes)
            for each in self._accounts.statistics()
            if each.device_bytes or each.pinned_bytes
        }

    def close(self) -> None:
        """Let what was taken end, and release the threads. Idempotent."""
        with self._lock:
            self._closed = True
        self._pool.shutdown()
        self._threads.close()
        for pending in tuple(self._fibers):
            with suppress(CancelledError):
                pending.exception()

    def _run(self, request: Request, deadline: Deadline, listener: Listener | None, pending: PendingInvocation) -> None:
        if pending.hook.stopped:
            pending.settle(GuestTrap("the call was stopped before it began", "cancelled"))
            return
        try:
            began_ns = time.monotonic_ns()
            function = self._load(request, pending.hook)
            if deadline.at_ns is not None:  # what it took to compile is not the guest's time
                deadline = Deadline(deadline.at_ns + time.monotonic_ns() - began_ns)
            given = _arguments(request, deadline, listener)
            if request.on_device:
                self._admit(request.tenant, request.gpu_bytes)
            if request.grants.cuda and listener is None:
                if not self._run_short(function, request, given, pending):
                    options = cast("CallOptions", given)
                    self._watch(function.dispatch.submit(request.export, request.args, options), pending)
                return

            def call(announce: Announce) -> Invocation:
                return function.dispatch.call(request.export, request.args, announce=announce, **given)

            if listener is not None or request.offload != "off":
                self._threads.submit(call, pending)
            else:
                run_call(call, pending)
        except CancelledError:
            pending.settle(GuestTrap("the call was stopped before it began", "cancelled"))
        except Exception as error:  # noqa: BLE001 - it is the call's outcome
            pending.settle(error)

    def begin_short(
        self,
        key: FunctionKey,
        export: str | None,
        grants: Grants,
        memory_kind: MemoryKind | None,
        gpu_bytes: int | None,
        now_s: float,
    ) -> tuple[FunctionKey, Function, OneShotPlan] | None:
        """Return a function and its plan if its next call with a device can be made on this thread, as a short one.

        That is so if it is loaded and one-shot, is seldom slow, and few others are made so. `end_short` is to be called
        after it. The key is equal to the given one; looked up by that one, the function is found without comparing
        modules. Raises what opening the tenant's account raises.
        """
        with self._lock:
            found = self._functions.get(key)
        if found is None or now_s < found[1].slow_until_s:
            return None
        plan = found[1].dispatch.find_plan(export, grants, key.tenant, memory_kind)
        if plan is None:
            return None
        if self._caps.get(key.tenant, -1) != gpu_bytes:
            self._admit(key.tenant, gpu_bytes)
        try:
            self._led.pop()
        except IndexError:
            return None
        return *found, plan

    def end_short(self, function: Function, began_s: float) -> None:
        """Note that a short call has ended, which began at a time of the monotonic clock."""
        self._led.append(None)
        _note_length(function, began_s)

    def _run_short(
        self, function: Function, request: Request, given: dict[str, Any], pending: PendingInvocation
    ) -> bool:
        """Make a one-shot call on this thread, if its function is seldom slow and few others do; return whether it was.

        A fiber changes threads eight times for a call, which takes longer than most kernels.
        """
        dispatch = function.dispatch
        if dispatch.plan(request.export, request.grants, request.tenant, request.memory_kind) is None:
            return False
        began_s = time.monotonic()
        with self._lock:
            if began_s < function.slow_until_s or not self._short:
                return False
            self._short -= 1
        try:
            pending.waits = True
            run_call(lambda announce: dispatch.call(request.export, request.args, announce=announce, **given), pending)
        finally:
            with self._lock:
                self._short += 1
            _note_length(function, began_s)
        return True

    def _watch(self, fiber: Future[Invocation], pending: PendingInvocation) -> None:
        """Settle a request with its fiber's outcome."""
        self._fibers.add(pending)
        pending.add_done_callback(self._fibers.discard)  # not a function that holds it: cycles are seldom collected
        fiber.add_done_callback(partial(_pass_on, pending))
        pending.stop_with(fiber.cancel)

    def _admit(self, tenant: str, gpu_bytes: int | None) -> None:
        """Open a tenant's account, with a request's cap, unless that was the last cap of the tenant's."""
        if self._caps.get(tenant, -1) == gpu_bytes:
            return
        accounts = self._accounts = self._runtime.share().accounts
        accounts.register(tenant, self._runtime.gpu_bytes if gpu_bytes is None else gpu_bytes)
        self._caps[tenant] = gpu_bytes

    def _load(self, request: Request, work: StopHook) -> Function:
        """Return the compiled module; of several requests that need it at once, one compiles."""
        key = FunctionKey(
            request.tenant, request.name, request.limits, request.module, request.offload, request.offload_math
        )
        with self._lock:
            found = self._functions.get(key)
        if found is not None:
            return found[1]
        check = partial(check_export, export=request.export)
        made = self._runtime.load(
            request.module,
            request.name,
            request.limits,
            request.tenant,
            offload=request.offload,
            offload_math=request.offload_math,
            check=check,
            work=work,
        )
        with self._lock:
            found = self._functions.get(key)
            if found is None:
                self._functions.put(key, (key, made), len(request.module))
        return made if found is None else found[1]


def _note_length(function: Function, began_s: float) -> None:
    """Note how long a call took that held a thread, which began at a time of the monotonic clock."""
    ended_s = time.monotonic()
    if ended_s - began_s <= SLOW_S:
        function.slow_calls = 0
        return
    function.slow_calls += 1
    if function.slow_calls >= SLOW_CALLS:
        function.slow_calls, function.slow_until_s = 0, ended_s + SLOW_FOR_S


def _pass_on(pending: PendingInvocation, done: Future[Invocation]) -> None:
    try:
        pending.settle(done.result())
    except CancelledError:
        pending.settle(GuestTrap("the call was stopped", "cancelled"))
    except Exception as error:  # noqa: BLE001 - it is the call's outcome
        pending.settle(error)


def _arguments(request: Request, deadline: Deadline, listener: Listener | None) -> dict[str, Any]:
    """Return a request, and the sinks of its listener, as keywords of `Function.invoke`."""
    sinks: dict[str, Any] = {}
    if listener is not None:
        sinks = {
            "stdout": _sink(listener, "stdout"),
            "stderr": _sink(listener, "stderr"),
            "on_chunk": partial(listener, "chunk"),
        }
    return sinks | {
        "argv": request.argv,
        "env": dict(request.env),
        "stdin": request.stdin,
        "input": request.input,
        "grants": request.grants,
        "tenant": request.tenant,
        "memory_kind": request.memory_kind,
        "deadline": deadline,
    }


def _sink(listener: Listener, name: OutputName) -> Callable[[bytes], None]:
    def take(data: bytes) -> None:
        if not listener(name, data):
            raise OutputClosed(f"the guest's {name} is not read any more")

    return take
