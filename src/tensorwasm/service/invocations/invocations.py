"""`Invocations`: functions called, here or in a worker process, each tenant within its quotas and its share.

Guests without a device run in this process. One that ends within half a millisecond never leaves the event loop's
thread, and nothing is awaited for it (`Invocations.begin`); others go on with the runtime's reactor. Guests with a
device, emulated or not, run in worker processes. A guest whose output is streamed has a thread of its own, here or
there, so that it can be made to wait.

What an invocation costs a tenant is the time that its guest ran, in milliseconds, or where nobody measures that, the
time from its sandbox's making to its end; with a device, if anything was launched, that counts as time of the device.
Nobody knows what a guest launched that failed, so all of its time counts as such: a trap at the end buys nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from tensorwasm.errors import Draining
from tensorwasm.runtime.executor.threads import Threads
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.invoke.pending import PendingInvocation, await_outcome
from tensorwasm.service.functions.functions import Functions
from tensorwasm.service.functions.resolution import Resolved
from tensorwasm.service.invocations.channel import Channel
from tensorwasm.service.invocations.instance_queue import InstanceQueue
from tensorwasm.service.invocations.request import InvocationRequest, ends_at, options_for, request_for
from tensorwasm.service.invocations.spending import Policy, Spending, UsageLedger, sent_bytes_of
from tensorwasm.service.invocations.streaming import Gathered, GuestStream
from tensorwasm.service.invocations.workers import Workers
from tensorwasm.tenancy.fairness import FairGate, GateStatistics
from tensorwasm.tenancy.quotas import Holding, Quotas

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tensorwasm.runtime.invoke.call import Given
    from tensorwasm.values import Deadline

CPU_TURNS: Final = 64
"""Guests without a device at a time: of those that run long each gets a slice in turn."""

GPU_TURNS: Final = 32
"""Guests with a device at a time."""

STREAMS: Final = 256
"""Guests at a time whose output is streamed. They have turns of their own: a slow client holds up nobody else."""

EXPECTED_MS: Final = 1.0
"""What a turn is taken to cost until that is known."""


@dataclass(frozen=True, slots=True)
class InvocationStatistics:
    """A snapshot.

    Attributes:
        running: invocations that have begun and not ended.
        begun: invocations since the start.
        at_once: those of them that ended without leaving the event loop's thread.
        cpu: the gate of guests without a device.
        gpu: the gate of guests with one.
        streams: the gate of guests whose output is streamed.
        memory_waiting: calls, those of sessions too, that wait for memory.
        memory_waits: calls that had to.
        restarts: worker processes that were started in the place of others.
        chunks: that guests emitted and the service took.
    """

    running: int
    begun: int
    at_once: int
    cpu: GateStatistics
    gpu: GateStatistics
    streams: GateStatistics
    memory_waiting: int
    memory_waits: int
    restarts: int
    chunks: int


class Invocations:
    """Calls functions. For one event loop.

    Args:
        functions: finds them.
        workers: run guests with a device.
        quotas: of tenants.
        policy: returns what holds for a tenant; called for every invocation.
        ledger: told what was used.
        instances: what guests hold, where others wait for it too; None for one of its own.
        cpu_turns: guests without a device at a time.
        gpu_turns: guests with a device at a time.
    """

    def __init__(
        self,
        functions: Functions,
        workers: Workers,
        quotas: Quotas,
        policy: Callable[[int], Policy],
        ledger: UsageLedger,
        *,
        instances: InstanceQueue | None = None,
        cpu_turns: int = CPU_TURNS,
        gpu_turns: int = GPU_TURNS,
    ) -> None:
        """Start nothing yet."""
        self.workers = workers
        self._functions = functions
        self._quotas = quotas
        self._instances = instances or InstanceQueue(quotas)
        self._policy = policy
        self._note = ledger.note
        self._cpu = FairGate(cpu_turns, yields=True)
        self._gpu = FairGate(gpu_turns, yields=True)
        self._streams = FairGate(STREAMS, yields=True)
        self._threads = Threads()
        self._begun = self._ended = self._at_once = self._chunks = 0
        self._draining = False
        self._idle = asyncio.Event()

    # ---------------------------------------------------------------- in one piece

    async def invoke(self, tenant: int, reference: str, ask: InvocationRequest) -> Invocation:
        """Call an export of what a reference leads to. Cancelling the caller's task ends the guest.

        Raises:
            NotFound: there is no such function, version or alias, or it is another tenant's.
            TooManyArgs: more than 256 arguments.
            QuotaExceeded: over a quota; names it.
            RateLimited: too many of the tenant's invocations wait.
            InvokeTimeout: the deadline passed, while it waited or while it ran.
            DeviceFault: the worker process went down; it may be tried again.
            Draining: the service is going down.
            TensorWasmError: what else `tensorwasm.runtime.api.function.Function.invoke` raises.
        """
        find, resolve = self._functions.find, self._functions.resolve
        resolved = find(tenant, reference) or await resolve(tenant, reference, ask.deadline)
        outcome = self.begin(tenant, resolved, ask)
        return outcome if isinstance(outcome, Invocation) else await outcome

    def begin(
        self, tenant: int, resolved: Resolved, ask: InvocationRequest
    ) -> Invocation | Coroutine[Any, Any, Invocation]:
        """Do what `invoke` does, as far as it can be done at once.

        Returns:
            What came of it, or a coroutine, which must be awaited, that returns it.

        Raises:
            TensorWasmError: what `invoke` raises.
        """
        ask.check()
        if self._draining:
            raise Draining("the service is going down")
        policy = self._policy(tenant)
        if not resolved.inline:
            return (self._on_worker if resolved.cuda else self._on_thread)(tenant, resolved, ask, policy)
        if self._cpu.may_enter(tenant):
            outcome = self._run_at_once(tenant, resolved, ask, policy)
            if outcome is not None:
                return outcome
            if self._cpu.try_enter(tenant, policy.weight):
                return self._start(tenant, resolved, ask, policy)
        return self._wait(tenant, resolved, ask, policy)

    async def _wait(self, tenant: int, resolved: Resolved, ask: InvocationRequest, policy: Policy) -> Invocation:
        """Begin an invocation once it is its turn."""
        deadline = ends_at(resolved, ask)
        turn = self._cpu.turn(tenant, policy.weight, EXPECTED_MS, deadline)
        await turn.__aenter__()  # it is left where the invocation ends, which may be elsewhere
        try:
            outcome = self._run_at_once(tenant, resolved, ask, policy)
        except BaseException:
            self._cpu.leave(tenant, 0.0)
            raise
        if outcome is not None:
            self._cpu.leave(tenant, 0.0)
            return outcome
        begun = self._start(tenant, resolved, ask, policy, deadline)
        return begun if isinstance(begun, Invocation) else await begun

    def _run_at_once(
        self, tenant: int, resolved: Resolved, ask: InvocationRequest, policy: Policy
    ) -> Invocation | None:
        """Run an invocation that is over before anybody else could notice; None if it has to go another way.

        Nothing is held for it, but it must be allowed.
        """
        memory_bytes = resolved.limits.memory_bytes
        if not self._instances.allows(tenant, policy.quotas, memory_bytes):
            return None
        began_s = time.perf_counter()
        try:
            outcome = resolved.function.dispatch.begin_pure(ask.export, ask.args, resolved.tenant)
        except BaseException:
            self._count(tenant, ask, policy, None, time.perf_counter() - began_s)
            raise
        if outcome is not None:
            self._at_once += 1
            self._count(tenant, ask, policy, outcome, outcome.elapsed_s)
        return outcome

    def _count(
        self, tenant: int, ask: InvocationRequest, policy: Policy, outcome: Invocation | None, spent_s: float
    ) -> None:
        """Count an invocation that is over and held nothing."""
        self._begun += 1
        self._count_end()
        self._cpu.charge(tenant, policy.weight, spent_s * 1e3)
        self._account(tenant, ask, outcome, spent_s)

    def _start(
        self, tenant: int, resolved: Resolved, ask: InvocationRequest, policy: Policy, deadline: Deadline | None = None
    ) -> Invocation | Coroutine[Any, Any, Invocation]:
        """Begin an invocation whose turn it is, and whose time began before if there is a deadline."""
        deadline = ends_at(resolved, ask) if deadline is None else deadline
        try:
            held = self._instances.try_hold(tenant, policy.quotas, resolved.limits.memory_bytes)
        except BaseException:
            self._cpu.leave(tenant, 0.0)
            raise
        if held is None:
            return self._start_later(tenant, resolved, ask, policy, deadline)
        return self._start_with(held, tenant, resolved, ask, deadline)

    async def _start_later(
        self, tenant: int, resolved: Resolved, ask: InvocationRequest, policy: Policy, deadline: Deadline
    ) -> Invocation:
        """Begin an invocation whose turn it is once there is memory for it."""
        try:
            held = await self._instances.hold(tenant, policy.quotas, resolved.limits.memory_bytes, deadline)
        except BaseException:
            self._cpu.leave(tenant, 0.0)
            raise
        outcome = self._start_with(held, tenant, resolved, ask, deadline)
        return outcome if isinstance(outcome, Invocation) else await outcome

    def _start_with(
        self, held: Holding, tenant: int, resolved: Resolved, ask: InvocationRequest, deadline: Deadline
    ) -> Invocation | Coroutine[Any, Any, Invocation]:
        """Begin an invocation whose turn it is and which holds what it takes."""
        self._begun += 1
        began_s = time.perf_counter()
        function = resolved.function
        try:
            options = options_for(resolved, ask, deadline)
            outcome = function.dispatch.begin(ask.export, ask.args, options)
        except BaseException:
            self._end(tenant, ask, held, None, time.perf_counter() - began_s)
            raise
        if isinstance(outcome, Invocation):
            self._at_once += 1
            self._end(tenant, ask, held, outcome, outcome.elapsed_s)
            return outcome
        return self._finish(tenant, ask, held, outcome, began_s)

    async def _finish(
        self, tenant: int, ask: InvocationRequest, held: Holding, future: Future[Invocation], began_s: float
    ) -> Invocation:
        """Wait for an invocation that went on elsewhere."""
        outcome: Invocation | None = None
        try:
            outcome = await await_outcome(future)
            return outcome
        finally:
            spent_ns = future.spent_ns if isinstance(future, PendingInvocation) else None
            passed_s = time.perf_counter() - began_s
            self._end(tenant, ask, held, outcome, passed_s if spent_ns is None else spent_ns / 1e9)

    def _end(
        self, tenant: int, ask: InvocationRequest, held: Holding, outcome: Invocation | None, spent_s: float
    ) -> None:
        """Give back what an invocation on the reactor held; without an outcome it failed."""
        self._instances.release(tenant, held)
        self._count_end()
        self._cpu.leave(tenant, spent_s * 1e3)
        self._account(tenant, ask, outcome, spent_s)

    def _account(self, tenant: int, ask: InvocationRequest, outcome: Invocation | None, spent_s: float) -> None:
        """Note what an invocation used of the processor; without an outcome it failed."""
        given_bytes = len(ask.input) + len(ask.stdin)
        if outcome is None:
            self._note(tenant, 1, 1, int(spent_s * 1e6), 0, 0, given_bytes)
        else:
            self._chunks += len(outcome.chunks)
            self._note(tenant, 1, 0, int(spent_s * 1e6), 0, 0, given_bytes, sent_bytes_of(outcome))

    # ---------------------------------------------------------------- elsewhere

    async def _on_thread(self, tenant: int, resolved: Resolved, ask: InvocationRequest, policy: Policy) -> Invocation:
        """Run an invocation on a thread, where it may have a warm sandbox."""
        deadline = ends_at(resolved, ask)
        async with self._turn(self._cpu, tenant, resolved, ask, policy, deadline) as turn:
            ticket = self._submit_to_thread(resolved, ask, deadline)
            turn.begin()
            turn.outcome = await await_outcome(ticket)
            return turn.outcome

    async def _on_worker(self, tenant: int, resolved: Resolved, ask: InvocationRequest, policy: Policy) -> Invocation:
        """Run an invocation in a worker process."""
        deadline = ends_at(resolved, ask)
        self._quotas.check_budget(tenant, policy.quotas)
        async with self._turn(self._gpu, tenant, resolved, ask, policy, deadline) as turn:
            request = request_for(resolved, ask, deadline, policy.quotas.get("gpu_bytes"))
            ticket = await self.workers.submit(request)
            turn.begin()
            turn.outcome = await await_outcome(ticket)
            return turn.outcome

    # ---------------------------------------------------------------- in pieces

    @asynccontextmanager
    async def stream(self, tenant: int, reference: str, ask: InvocationRequest) -> AsyncIterator[GuestStream]:
        """Call an export, and give what its guest sends while it runs: ``async for chunk in stream``.

        The guest waits while 32 chunks do. Every chunk that it sent comes before its outcome, `GuestStream.outcome`.
        Leaving the context ends the guest.

        Raises:
            TensorWasmError: on entering, what `invoke` raises before a guest runs; what a guest does wrong is the
                stream's outcome.
        """
        ask.check()
        find, resolve = self._functions.find, self._functions.resolve
        resolved = find(tenant, reference) or await resolve(tenant, reference, ask.deadline)
        if self._draining:
            raise Draining("the service is going down")
        resolved.function.choose(ask.export)
        policy, deadline = self._policy(tenant), ends_at(resolved, ask)
        if resolved.cuda:
            self._quotas.check_budget(tenant, policy.quotas)
        async with self._turn(self._streams, tenant, resolved, ask, policy, deadline) as turn:
            channel, gathered = Channel(deadline), Gathered(resolved.limits.output_bytes)
            if resolved.cuda:
                request = request_for(resolved, ask, deadline, policy.quotas.get("gpu_bytes"))
                ticket = await self.workers.submit(request, gathered.listener(channel))
            else:
                ticket = self._submit_to_thread(resolved, ask, deadline, channel)
            turn.begin()
            stream = GuestStream(channel, ticket, gathered, self._count_chunk)
            try:
                yield stream
            finally:
                await stream.leave()
                turn.outcome, turn.sent_bytes = stream.result, stream.sent_bytes

    def _submit_to_thread(
        self, resolved: Resolved, ask: InvocationRequest, deadline: Deadline, channel: Channel | None = None
    ) -> PendingInvocation:
        options = options_for(resolved, ask, deadline)
        if channel is not None:
            options["on_chunk"] = channel.put
        call = partial(resolved.function.dispatch.call, ask.export, ask.args, **cast("Given", options))
        return self._threads.submit(lambda announce: call(announce=announce))

    # ---------------------------------------------------------------- accounts

    @asynccontextmanager
    async def _turn(
        self,
        gate: FairGate,
        tenant: int,
        resolved: Resolved,
        ask: InvocationRequest,
        policy: Policy,
        deadline: Deadline,
    ) -> AsyncIterator[Spending]:
        """Wait for a turn, hold what an invocation takes, and note what it used."""
        async with gate.turn(tenant, policy.weight, EXPECTED_MS, deadline) as place:
            held = await self._instances.hold(tenant, policy.quotas, resolved.limits.memory_bytes, deadline)
            self._begun += 1
            turn = Spending()
            try:
                yield turn
            finally:
                self._instances.release(tenant, held)
                place.spent = self._settle(tenant, resolved, ask, turn)
                self._count_end()

    def _settle(self, tenant: int, resolved: Resolved, ask: InvocationRequest, turn: Spending) -> float | None:
        """Note what an invocation used; return what its turn cost, None if its guest did not begin."""
        outcome, given_bytes = turn.outcome, ask.given_bytes
        if outcome is not None:
            self._chunks += len(outcome.chunks)
            spent_s, sent_bytes = outcome.elapsed_s, sent_bytes_of(outcome) + turn.sent_bytes
            launches = outcome.gpu.kernels_launched if outcome.gpu is not None else 0
            on_device = launches > 0
        elif turn.began_s is not None:
            spent_s, sent_bytes, launches = time.perf_counter() - turn.began_s, turn.sent_bytes, 0
            on_device = resolved.cuda
        else:
            self._note(tenant, 1, 1, 0, 0, 0, given_bytes)
            return None
        spent_us = int(spent_s * 1e6)
        gpu_us = spent_us if on_device else 0
        if on_device:
            self._quotas.charge(tenant, gpu_us=gpu_us, launches=launches)
        self._note(tenant, 1, int(outcome is None), spent_us, gpu_us, launches, given_bytes, sent_bytes)
        return spent_s * 1e3

    def _count_chunk(self) -> None:
        self._chunks += 1

    def _count_end(self) -> None:
        self._ended += 1
        if self._draining and self._ended == self._begun:
            self._idle.set()

    def statistics(self) -> InvocationStatistics:
        """Return a snapshot."""
        return InvocationStatistics(
            self._begun - self._ended,
            self._begun,
            self._at_once,
            self._cpu.statistics(),
            self._gpu.statistics(),
            self._streams.statistics(),
            self._instances.waiting,
            self._instances.waits,
            self.workers.restarts,
            self._chunks,
        )

    async def close(self, limit_s: float = 0.0) -> None:
        """Take nothing new, wait until all has ended, and end the worker processes.

        Args:
            limit_s: seconds after which what has not ended is no longer waited for.
        """
        self._draining = True
        if self._ended < self._begun:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), limit_s)
        await self.workers.close()
        self._threads.end()
        await asyncio.to_thread(self._threads.close)
