"""`Invocations`: calls functions, in this process or in a worker process, within the quotas and shares of tenants.

Guests without a device run in this process: at once on the event loop's thread (`Invocations.begin`), longer ones on
the runtime's reactor. Guests with a device, emulated or not, run in worker processes. A guest with streamed output has
a thread of its own, here or there, so that it can block.

An invocation costs the milliseconds that its guest ran or, if unknown, the time from the making of its sandbox to its
end; as device time, too, if anything was launched or a guest with a device failed: a trap at the end avoids no charge.
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

from tensorwasm.errors import Draining, QuotaExceeded
from tensorwasm.runtime.invoke.call_threads import CallThreads
from tensorwasm.runtime.invoke.invocation import Invocation, PendingInvocation, await_outcome
from tensorwasm.service.admission.admission import Admission, Admitted, GuestClass, Permit
from tensorwasm.service.functions.functions import Functions
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.service.invocations.device_call import DeviceCall
from tensorwasm.service.invocations.request import MAX_ARGS, InvocationRequest, deadline_of, options_for, worker_request
from tensorwasm.service.invocations.streaming import CapturedOutput, Channel, GuestStream
from tensorwasm.service.invocations.turns import Counts, GuestTurn, GuestTurns, sent_bytes_of
from tensorwasm.service.invocations.workers import Workers
from tensorwasm.service.usage import UsageMeter
from tensorwasm.telemetry.timeline import waiting
from tensorwasm.tenancy.fairness import GateStatistics
from tensorwasm.tenancy.quotas import HELD_NAMES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tensorwasm.runtime.invoke.invocation import CallInputs
    from tensorwasm.runtime.workers.pool import WorkerExecutor
    from tensorwasm.values import Deadline


@dataclass(frozen=True, slots=True)
class InvocationStatistics:
    """Counters since the start, and current numbers.

    Attributes:
        inline: invocations that ended without leaving the event loop's thread.
        memory_waiting: calls, of sessions too, that wait for memory now.
        memory_waits: calls that had to wait for memory.
        restarts: worker processes that replaced others.
        chunks: emitted by guests and taken by the service.
    """

    running: int
    begun: int
    inline: int
    gates: Mapping[str, GateStatistics]
    memory_waiting: int
    memory_waits: int
    restarts: int
    chunks: int


class Invocations:
    """Calls functions; `workers` runs guests with a device, and `turns` counts what each used. For one event loop."""

    def __init__(self, functions: Functions, workers: Workers, admission: Admission, ledger: UsageMeter) -> None:
        self.workers = workers
        self.admission = admission
        self._functions = functions
        self._note = ledger.note
        self._cpu = admission.guests["cpu"]
        self._threads = CallThreads()
        self._counts = Counts()
        self.turns = GuestTurns(admission, ledger.note, self._counts, self._has_gpu)

    async def invoke(self, admitted: Admitted, reference: str, request: InvocationRequest) -> Invocation:
        """Call an export of the function that a reference leads to. Cancelling the caller's task ends the guest.

        Raises:
            NotFound: there is no such function, version or alias, or it is another tenant's.
            TooManyArgs: more than 256 arguments.
            QuotaExceeded: a quota is exceeded; the message names it.
            RateLimited: too many of the tenant's invocations wait.
            InvokeTimeout: the deadline passed while the call waited or ran.
            DeviceFault: the worker process crashed; the call may be retried.
            Draining: the service is being closed.
            TensorWasmError: other errors of `tensorwasm.runtime.Function.invoke`.
        """
        resolved = self._functions.find(admitted.tenant, reference) or await self.resolve(
            admitted, reference, request.deadline
        )
        outcome = self.begin(admitted, resolved, request)
        return outcome if isinstance(outcome, Invocation) else await outcome

    def _has_gpu(self) -> bool:
        executor = self.workers.executor
        return executor is not None and any(device != "emulator" for device in executor.devices)

    async def resolve(self, admitted: Admitted, reference: str, deadline: Deadline) -> Resolved:
        """Return the loaded function of a reference, as `Functions.resolve` does; tenants share a gate fairly."""
        permit = await admitted.permit(self.admission.gates["invoke"], deadline)
        try:
            with waiting("load"):
                return await self._functions.resolve(admitted.tenant, reference, deadline)
        finally:
            permit.release(None)

    def begin(
        self, admitted: Admitted, resolved: Resolved, request: InvocationRequest
    ) -> Invocation | Coroutine[Any, Any, Invocation]:
        """Do what `invoke` does as far as possible at once; return the outcome, or a coroutine that must be awaited."""
        if len(request.args) > MAX_ARGS or request.env or request.deadline.at_ns is not None:
            request.check()
        if self._counts.draining:
            raise Draining("the service is shutting down")
        if not resolved.may_begin_here:
            return self._run_elsewhere(admitted, resolved, request)
        if self._cpu.free == self._cpu.slots or self._cpu.may_enter(admitted.tenant):
            outcome = self._run_inline(admitted, resolved, request)
            if outcome is not None:
                return outcome
            permit = admitted.try_permit(self._cpu)
            if permit is not None:
                return self._start(permit, resolved, request, deadline_of(resolved, request))
        return self._wait(admitted, resolved, request)

    async def _wait(self, admitted: Admitted, resolved: Resolved, request: InvocationRequest) -> Invocation:
        """Begin an invocation once it has a turn."""
        deadline = deadline_of(resolved, request)
        permit = await admitted.permit(self._cpu, deadline)  # released where the invocation ends
        try:
            outcome = self._run_inline(admitted, resolved, request)
        except BaseException:
            permit.release()
            raise
        if outcome is not None:
            permit.release()
            return outcome
        begun = self._start(permit, resolved, request, deadline)
        return begun if isinstance(begun, Invocation) else await begun

    def _run_inline(self, admitted: Admitted, resolved: Resolved, request: InvocationRequest) -> Invocation | None:
        """Run an invocation that ends within its slice, holding nothing; return None if it must run another way."""
        limits = admitted.policy.quotas
        if not HELD_NAMES.isdisjoint(limits):
            tenant, memory_bytes = admitted.tenant, resolved.limits.memory_bytes
            try:
                admitted.quotas.require(tenant, limits, instances=1, memory_bytes=memory_bytes)
            except QuotaExceeded as short:
                if admitted.instances.will_be_free(short, tenant, limits, memory_bytes):
                    return None
                raise
        began_s = time.perf_counter()
        try:
            outcome = resolved.function.dispatch.begin_pure(request.export, request.args, resolved.tenant)
        except BaseException:
            self._counts.begun += 1
            self._end(admitted, None, request, None, time.perf_counter() - began_s)
            raise
        if outcome is not None:
            self._counts.begun += 1
            self._counts.inline += 1
            self._end(admitted, None, request, outcome, outcome.elapsed_s)
        return outcome

    def _start(
        self, permit: Permit, resolved: Resolved, request: InvocationRequest, deadline: Deadline
    ) -> Invocation | Coroutine[Any, Any, Invocation]:
        """Begin an invocation that has a turn."""
        try:
            start = self._start_with if permit.try_hold(resolved.limits.memory_bytes) else self._start_later
        except BaseException:
            permit.release()
            raise
        return start(permit, resolved, request, deadline)

    async def _start_later(
        self, permit: Permit, resolved: Resolved, request: InvocationRequest, deadline: Deadline
    ) -> Invocation:
        """Begin an invocation that has a turn once there is memory for it."""
        try:
            await permit.hold(resolved.limits.memory_bytes, deadline)
        except BaseException:
            permit.release()
            raise
        outcome = self._start_with(permit, resolved, request, deadline)
        return outcome if isinstance(outcome, Invocation) else await outcome

    def _start_with(
        self, permit: Permit, resolved: Resolved, request: InvocationRequest, deadline: Deadline
    ) -> Invocation | Coroutine[Any, Any, Invocation]:
        """Begin an invocation that has a turn and its memory."""
        self._counts.begun += 1
        began_s = time.perf_counter()
        try:
            outcome = resolved.function.dispatch.begin(
                request.export, request.args, options_for(resolved, request, deadline)
            )
        except BaseException:
            self._end(permit.admitted, permit, request, None, time.perf_counter() - began_s)
            raise
        if isinstance(outcome, Invocation):
            self._counts.inline += 1
            self._end(permit.admitted, permit, request, outcome, outcome.elapsed_s)
            return outcome
        return self._finish(permit, request, outcome, began_s)

    async def _finish(
        self, permit: Permit, request: InvocationRequest, future: Future[Invocation], began_s: float
    ) -> Invocation:
        """Wait for an invocation that continues on the reactor."""
        outcome: Invocation | None = None
        try:
            outcome = await await_outcome(future)
            return outcome
        finally:
            spent_ns = future.spent_ns if isinstance(future, PendingInvocation) else None
            spent_s = time.perf_counter() - began_s if spent_ns is None else spent_ns / 1e9
            self._end(permit.admitted, permit, request, outcome, spent_s)

    def _end(
        self,
        admitted: Admitted,
        permit: Permit | None,
        request: InvocationRequest,
        outcome: Invocation | None,
        spent_s: float,
    ) -> None:
        """Count an invocation without a device, and release its permit; without an outcome it failed."""
        self._counts.end()
        if permit is not None:
            permit.release(spent_s * 1e3)
        elif self._cpu.free < self._cpu.slots:  # an idle gate has no shares to account for
            self._cpu.charge(admitted.tenant, admitted.policy.weight, spent_s * 1e3)
        given_bytes, sent_bytes = len(request.input) + len(request.stdin), 0
        if outcome is not None and (outcome.chunks or outcome.stdout or outcome.stderr):
            self._counts.chunks += len(outcome.chunks)
            sent_bytes = sent_bytes_of(outcome)
        self._note(admitted.tenant, 1, 1 if outcome is None else 0, int(spent_s * 1e6), 0, 0, given_bytes, sent_bytes)

    async def _run_elsewhere(self, admitted: Admitted, resolved: Resolved, request: InvocationRequest) -> Invocation:
        """Run an invocation in a worker process, or on a thread, where it may have a warm sandbox."""
        deadline = deadline_of(resolved, request)
        if resolved.in_worker:
            if resolved.on_device:
                admitted.check_budget()
            turn = await self.turns.begin(_gate(resolved), admitted, resolved, deadline)
            try:
                executor = self.workers.executor or await self.workers.open()
            except BaseException:
                self.turns.end(turn, resolved, request)
                raise
            return await self._send(executor, turn, resolved, request, deadline)
        turn = await self.turns.begin("cpu", admitted, resolved, deadline)
        try:
            pending = self._call_on_thread(resolved, request, deadline)
            turn.began_s = time.perf_counter()
            turn.outcome = await await_outcome(pending)
            return turn.outcome
        finally:
            self.turns.end(turn, resolved, request)

    def start(self, admitted: Admitted, resolved: Resolved, request: InvocationRequest) -> DeviceCall | None:
        """Begin a call in a worker process at once; return None if it has to wait, and `begin` is to be used.

        Raises what `begin` and its coroutine raise before a guest runs.
        """
        executor = self.workers.executor
        if executor is None or self._counts.draining:
            return None
        if len(request.args) > MAX_ARGS or request.env or request.deadline.at_ns is not None:
            request.check()
        if resolved.on_device:
            admitted.check_budget()
        turn = self.turns.try_begin(_gate(resolved), admitted, resolved)
        return self._send(executor, turn, resolved, request, deadline_of(resolved, request)) if turn else None

    def _send(
        self,
        executor: WorkerExecutor,
        turn: GuestTurn,
        resolved: Resolved,
        request: InvocationRequest,
        deadline: Deadline,
    ) -> DeviceCall:
        """Send a call that has a turn to a worker; the turn ends with the call, or when this raises."""

        def finish(outcome: Invocation | BaseException | None) -> None:
            turn.settle(outcome)
            self.turns.end(turn, resolved, request)

        call = DeviceCall(resolved.record.id, finish)
        try:
            turn.began_s = time.perf_counter()
            executor.send(worker_request(resolved, request, deadline, turn.permit.admitted.policy), call)
        except BaseException:
            turn.began_s = None
            call.close()
            raise
        return call

    @asynccontextmanager
    async def stream(
        self, admitted: Admitted, reference: str, request: InvocationRequest
    ) -> AsyncIterator[GuestStream]:
        """Call an export, and yield the chunks that its guest sends while it runs: ``async for chunk in stream``.

        The guest blocks while 32 chunks wait. All chunks come before `GuestStream.outcome`, which raises the guest's
        errors; other errors of `invoke` are raised on entering. Leaving the context ends the guest.
        """
        request.check()
        resolved = self._functions.find(admitted.tenant, reference) or await self.resolve(
            admitted, reference, request.deadline
        )
        if self._counts.draining:
            raise Draining("the service is shutting down")
        resolved.function.choose(request.export)
        deadline = deadline_of(resolved, request)
        if resolved.on_device:
            admitted.check_budget()
        turn = await self.turns.begin("streams", admitted, resolved, deadline)
        try:
            channel, output = Channel(deadline), CapturedOutput(resolved.limits.output_bytes)
            if resolved.in_worker:
                executor = self.workers.executor or await self.workers.open()
                work = worker_request(resolved, request, deadline, admitted.policy)
                pending = executor.submit(work, output.listener(channel))
            else:
                pending = self._call_on_thread(resolved, request, deadline, channel)
            turn.began_s = time.perf_counter()
            stream = GuestStream(channel, pending, output, self._count_chunk)
            try:
                yield stream
            finally:
                await stream.leave()
                turn.settle(stream.result)
                turn.sent_bytes = stream.sent_bytes
        finally:
            self.turns.end(turn, resolved, request)

    def _call_on_thread(
        self, resolved: Resolved, request: InvocationRequest, deadline: Deadline, channel: Channel | None = None
    ) -> PendingInvocation:
        """Call a function on a thread of this process; a streamed call sends its chunks to `channel`."""
        options = options_for(resolved, request, deadline)
        if channel is not None:
            options["on_chunk"] = channel.put
        call = partial(resolved.function.dispatch.call, request.export, request.args, **cast("CallInputs", options))
        return self._threads.submit(lambda announce: call(announce=announce))

    def _count_chunk(self) -> None:
        self._counts.chunks += 1

    def statistics(self) -> InvocationStatistics:
        """Return a snapshot."""
        return InvocationStatistics(
            self._counts.begun - self._counts.ended,
            self._counts.begun,
            self._counts.inline,
            self.admission.statistics(),
            self.admission.instances.waiting,
            self.admission.instances.waits,
            self.workers.restarts,
            self._counts.chunks,
        )

    async def close(self, limit_s: float = 0.0) -> None:
        """Refuse new invocations, wait `limit_s` at most for the running ones, and end the worker processes."""
        self._counts.draining = True
        if self._counts.ended < self._counts.begun:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._counts.idle.wait(), limit_s)
        await self.workers.close()
        self._threads.end()
        await asyncio.to_thread(self._threads.close)


def _gate(resolved: Resolved) -> GuestClass:
    """Return the class of guests in whose queue calls in worker processes wait for their turn."""
    return "gpu" if resolved.on_device else "cpu"
