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
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tensorwasm.errors import Draining
from tensorwasm.runtime.executor.local import CallThreads
from tensorwasm.runtime.invoke.invocation import Invocation, PendingInvocation, await_outcome
from tensorwasm.service.admission.admission import Admission, Admitted, GuestClass, Permit
from tensorwasm.service.functions.functions import Functions
from tensorwasm.service.functions.resolution import Resolved
from tensorwasm.service.invocations.channel import Channel
from tensorwasm.service.invocations.request import InvocationRequest, ends_at, options_for, request_for
from tensorwasm.service.invocations.spending import Spending, UsageLedger, sent_bytes_of
from tensorwasm.service.invocations.streaming import Gathered, GuestStream
from tensorwasm.service.invocations.workers import Workers
from tensorwasm.tenancy.fairness import GateStatistics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tensorwasm.runtime.invoke.call import CallInputs
    from tensorwasm.values import Deadline


@dataclass(frozen=True, slots=True)
class InvocationStatistics:
    """A snapshot.

    Attributes:
        running: invocations that have begun and not ended.
        begun: invocations since the start.
        at_once: those of them that ended without leaving the event loop's thread.
        gates: of guests, by class.
        memory_waiting: calls, those of sessions too, that wait for memory.
        memory_waits: calls that had to.
        restarts: worker processes that were started in the place of others.
        chunks: that guests emitted and the service took.
    """

    running: int
    begun: int
    at_once: int
    gates: Mapping[str, GateStatistics]
    memory_waiting: int
    memory_waits: int
    restarts: int
    chunks: int


class Invocations:
    """Calls functions. For one event loop.

    Args:
        functions: finds them.
        workers: run guests with a device.
        admission: the gate.
        ledger: takes what was used.
    """

    def __init__(self, functions: Functions, workers: Workers, admission: Admission, ledger: UsageLedger) -> None:
        self.workers = workers
        self._functions = functions
        self._admission = admission
        self._quotas = admission.quotas
        self._note = ledger.note
        self._cpu = admission.guests["cpu"]
        self._threads = CallThreads()
        self._begun = self._ended = self._at_once = self._chunks = 0
        self._draining = False
        self._idle = asyncio.Event()

    # ---------------------------------------------------------------- in one piece

    async def invoke(self, admitted: Admitted, reference: str, ask: InvocationRequest) -> Invocation:
        """Call an export of what a reference leads to. Cancelling the caller's task ends the guest.

        Raises:
            NotFound: there is no such function, version or alias, or it is another tenant's.
            TooManyArgs: more than 256 arguments.
            QuotaExceeded: over a quota; names it.
            RateLimited: too many of the tenant's invocations wait.
            InvokeTimeout: the deadline passed, while it waited or while it ran.
            DeviceFault: the worker process went down; it may be tried again.
            Draining: the service is going down.
            TensorWasmError: what else `tensorwasm.runtime.Function.invoke` raises.
        """
        resolved = self._functions.find(admitted.tenant, reference) or await self.resolve(
            admitted, reference, ask.deadline
        )
        outcome = self.begin(admitted, resolved, ask)
        return outcome if isinstance(outcome, Invocation) else await outcome

    async def resolve(self, admitted: Admitted, reference: str, deadline: Deadline) -> Resolved:
        """Return what a reference leads to, loaded; a tenant's floods of these wait for its own.

        Raises:
            TensorWasmError: what `Functions.resolve` raises.
        """
        permit = await admitted.permit(self._admission.gates["invoke"], deadline)
        try:
            return await self._functions.resolve(admitted.tenant, reference, deadline)
        finally:
            permit.release(None)

    def begin(
        self, admitted: Admitted, resolved: Resolved, ask: InvocationRequest
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
        if not resolved.inline:
            return (self._on_worker if resolved.cuda else self._on_thread)(admitted, resolved, ask)
        if self._cpu.may_enter(admitted.tenant):
            outcome = self._run_at_once(admitted, resolved, ask)
            if outcome is not None:
                return outcome
            permit = admitted.try_permit(self._cpu)
            if permit is not None:
                return self._start(permit, admitted, resolved, ask)
        return self._wait(admitted, resolved, ask)

    async def _wait(self, admitted: Admitted, resolved: Resolved, ask: InvocationRequest) -> Invocation:
        """Begin an invocation once it is its turn."""
        deadline = ends_at(resolved, ask)
        permit = await admitted.permit(self._cpu, deadline)  # it is released where the invocation ends
        try:
            outcome = self._run_at_once(admitted, resolved, ask)
        except BaseException:
            permit.release()
            raise
        if outcome is not None:
            permit.release()
            return outcome
        begun = self._start(permit, admitted, resolved, ask, deadline)
        return begun if isinstance(begun, Invocation) else await begun

    def _run_at_once(self, admitted: Admitted, resolved: Resolved, ask: InvocationRequest) -> Invocation | None:
        """Run an invocation that ends within its slice; None if it has to go another way.

        Nothing is held for it, but it must be allowed.
        """
        if not admitted.may_begin(resolved.limits.memory_bytes):
            return None
        began_s = time.perf_counter()
        try:
            outcome = resolved.function.dispatch.begin_pure(ask.export, ask.args, resolved.tenant)
        except BaseException:
            self._count(admitted, ask, None, time.perf_counter() - began_s)
            raise
        if outcome is not None:
            self._at_once += 1
            self._count(admitted, ask, outcome, outcome.elapsed_s)
        return outcome

    def _count(self, admitted: Admitted, ask: InvocationRequest, outcome: Invocation | None, spent_s: float) -> None:
        """Count an invocation that is over and held nothing."""
        self._begun += 1
        self._count_end()
        self._cpu.charge(admitted.tenant, admitted.policy.weight, spent_s * 1e3)
        self._account(admitted.tenant, ask, outcome, spent_s)

    def _start(
        self,
        permit: Permit,
        admitted: Admitted,
        resolved: Resolved,
        ask: InvocationRequest,
        deadline: Deadline | None = None,
    ) -> Invocation | Coroutine[Any, Any, Invocation]:
        """Begin an invocation whose turn it is, and whose time began before if there is a deadline."""
        deadline = ends_at(resolved, ask) if deadline is None else deadline
        try:
            held = permit.try_hold(resolved.limits.memory_bytes)
        except BaseException:
            permit.release()
            raise
        start = self._start_with if held else self._start_later
        return start(permit, admitted.tenant, resolved, ask, deadline)

    async def _start_later(
        self, permit: Permit, tenant: int, resolved: Resolved, ask: InvocationRequest, deadline: Deadline
    ) -> Invocation:
        """Begin an invocation whose turn it is once there is memory for it."""
        try:
            await permit.hold(resolved.limits.memory_bytes, deadline)
        except BaseException:
            permit.release()
            raise
        outcome = self._start_with(permit, tenant, resolved, ask, deadline)
        return outcome if isinstance(outcome, Invocation) else await outcome

    def _start_with(
        self, permit: Permit, tenant: int, resolved: Resolved, ask: InvocationRequest, deadline: Deadline
    ) -> Invocation | Coroutine[Any, Any, Invocation]:
        """Begin an invocation whose turn it is and which holds what it takes."""
        self._begun += 1
        began_s = time.perf_counter()
        try:
            options = options_for(resolved, ask, deadline)
            outcome = resolved.function.dispatch.begin(ask.export, ask.args, options)
        except BaseException:
            self._end(permit, tenant, ask, None, time.perf_counter() - began_s)
            raise
        if isinstance(outcome, Invocation):
            self._at_once += 1
            self._end(permit, tenant, ask, outcome, outcome.elapsed_s)
            return outcome
        return self._finish(permit, tenant, ask, outcome, began_s)

    async def _finish(
        self, permit: Permit, tenant: int, ask: InvocationRequest, future: Future[Invocation], began_s: float
    ) -> Invocation:
        """Wait for an invocation that went on elsewhere."""
        outcome: Invocation | None = None
        try:
            outcome = await await_outcome(future)
            return outcome
        finally:
            spent_ns = future.spent_ns if isinstance(future, PendingInvocation) else None
            passed_s = time.perf_counter() - began_s
            self._end(permit, tenant, ask, outcome, passed_s if spent_ns is None else spent_ns / 1e9)

    def _end(
        self, permit: Permit, tenant: int, ask: InvocationRequest, outcome: Invocation | None, spent_s: float
    ) -> None:
        """Give back what an invocation on the reactor held; without an outcome it failed."""
        self._count_end()
        permit.release(spent_s * 1e3)
        self._account(tenant, ask, outcome, spent_s)

    def _account(self, tenant: int, ask: InvocationRequest, outcome: Invocation | None, spent_s: float) -> None:
        """Note what an invocation used of the processor; without an outcome it failed."""
        if outcome is None:
            self._note(tenant, 1, 1, int(spent_s * 1e6), 0, 0, ask.given_bytes)
        else:
            self._chunks += len(outcome.chunks)
            self._note(tenant, 1, 0, int(spent_s * 1e6), 0, 0, ask.given_bytes, sent_bytes_of(outcome))

    # ---------------------------------------------------------------- elsewhere

    async def _on_thread(self, admitted: Admitted, resolved: Resolved, ask: InvocationRequest) -> Invocation:
        """Run an invocation on a thread, where it may have a warm sandbox."""
        deadline = ends_at(resolved, ask)
        async with self._turn("cpu", admitted, resolved, ask, deadline) as turn:
            pending = self._submit_to_thread(resolved, ask, deadline)
            turn.begin()
            turn.outcome = await await_outcome(pending)
            return turn.outcome

    async def _on_worker(self, admitted: Admitted, resolved: Resolved, ask: InvocationRequest) -> Invocation:
        """Run an invocation in a worker process."""
        deadline = ends_at(resolved, ask)
        admitted.check_budget()
        async with self._turn("gpu", admitted, resolved, ask, deadline) as turn:
            request = request_for(resolved, ask, deadline, admitted.policy.quotas.get("gpu_bytes"))
            pending = await self.workers.submit(request)
            turn.begin()
            turn.outcome = await await_outcome(pending)
            return turn.outcome

    # ---------------------------------------------------------------- in pieces

    @asynccontextmanager
    async def stream(self, admitted: Admitted, reference: str, ask: InvocationRequest) -> AsyncIterator[GuestStream]:
        """Call an export, and give what its guest sends while it runs: ``async for chunk in stream``.

        The guest waits while 32 chunks do. Every chunk that it sent comes before its outcome, `GuestStream.outcome`.
        Leaving the context ends the guest.

        Raises:
            TensorWasmError: on entering, what `invoke` raises before a guest runs; what a guest does wrong is the
                stream's outcome.
        """
        ask.check()
        resolved = self._functions.find(admitted.tenant, reference) or await self.resolve(
            admitted, reference, ask.deadline
        )
        if self._draining:
            raise Draining("the service is going down")
        resolved.function.choose(ask.export)
        deadline = ends_at(resolved, ask)
        if resolved.cuda:
            admitted.check_budget()
        async with self._turn("streams", admitted, resolved, ask, deadline) as turn:
            channel, gathered = Channel(deadline), Gathered(resolved.limits.output_bytes)
            if resolved.cuda:
                request = request_for(resolved, ask, deadline, admitted.policy.quotas.get("gpu_bytes"))
                pending = await self.workers.submit(request, gathered.listener(channel))
            else:
                pending = self._submit_to_thread(resolved, ask, deadline, channel)
            turn.begin()
            stream = GuestStream(channel, pending, gathered, self._count_chunk)
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
        call = partial(resolved.function.dispatch.call, ask.export, ask.args, **cast("CallInputs", options))
        return self._threads.submit(lambda announce: call(announce=announce))

    # ---------------------------------------------------------------- accounts

    @asynccontextmanager
    async def _turn(
        self,
        kind: GuestClass,
        admitted: Admitted,
        resolved: Resolved,
        ask: InvocationRequest,
        deadline: Deadline,
    ) -> AsyncIterator[Spending]:
        """Wait for a turn, hold what an invocation takes, and note what it used."""
        permit = await admitted.permit(self._admission.guests[kind], deadline)
        spent_ms: float | None = 0.0
        try:
            await permit.hold(resolved.limits.memory_bytes, deadline)
            self._begun += 1
            turn = Spending()
            try:
                yield turn
            finally:
                spent_ms = self._settle(admitted.tenant, resolved, ask, turn)
                self._count_end()
        finally:
            permit.release(spent_ms)

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
            self._admission.statistics(),
            self._admission.instances.waiting,
            self._admission.instances.waits,
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
