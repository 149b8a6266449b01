"""`GuestTurns`: what a call in a worker process or on a thread holds until its end, and what it is charged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tensorwasm.errors import TensorWasmError
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.service.admission.admission import Admission, Admitted, GuestClass, Permit
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.values import Deadline, OffloadUse


@dataclass(slots=True)
class Counts:
    """Counters of all invocations of a process, and whether it takes no more: then `idle` is set with the last one."""

    begun: int = 0
    ended: int = 0
    inline: int = 0
    chunks: int = 0
    draining: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """Count an invocation that has ended."""
        self.ended += 1
        if self.draining and self.ended == self.begun:
            self.idle.set()


@dataclass(slots=True)
class GuestTurn:
    """An invocation on a thread or in a worker.

    Attributes:
        outcome: its result; None if it failed, or has none yet.
        sent_bytes: of its output, what was streamed.
        began_s: when its guest was submitted.
        offload: what became of its loops, whether it failed or not.
    """

    permit: Permit
    outcome: Invocation | None = None
    sent_bytes: int = 0
    began_s: float | None = None
    offload: OffloadUse | None = None

    def settle(self, outcome: Invocation | BaseException | None) -> None:
        """Note how the invocation has ended: with a result, with an error, or None if its client has left."""
        if isinstance(outcome, Invocation):
            self.outcome, self.offload = outcome, outcome.offload
        elif isinstance(outcome, TensorWasmError) and isinstance(outcome.offload, OffloadUse):
            self.offload = outcome.offload


class GuestTurns:
    """Begins and ends turns. For one event loop.

    Args:
        admission: has the gates and quotas.
        note: counts usage, as `tensorwasm.service.usage.UsageMeter.note`.
        counts: of all invocations.
        has_gpu: returns whether workers have a GPU, and not only emulators; asked once there are workers.

    Attributes:
        observe: is given the seconds for which each call with kernels has waited for its device.
        note_offload: is given the tenant, the function's ID, and what became of its loops.
    """

    def __init__(
        self, admission: Admission, note: Callable[..., None], counts: Counts, has_gpu: Callable[[], bool]
    ) -> None:
        self._admission, self._note, self._counts, self._has_gpu = admission, note, counts, has_gpu
        self.observe: Callable[[float], object] = _ignore
        self.note_offload: Callable[[int, str, OffloadUse], object] = _ignore

    async def begin(self, kind: GuestClass, admitted: Admitted, resolved: Resolved, deadline: Deadline) -> GuestTurn:
        """Wait for a turn, and take the instance's quotas; `end` gives both back."""
        gate = self._admission.guests[kind]
        permit = admitted.try_permit(gate) or await admitted.permit(gate, deadline)
        try:
            if not permit.try_hold(resolved.limits.memory_bytes):
                await permit.hold(resolved.limits.memory_bytes, deadline)
        except BaseException:
            permit.release()
            raise
        self._counts.begun += 1
        return GuestTurn(permit)

    def try_begin(self, kind: GuestClass, admitted: Admitted, resolved: Resolved) -> GuestTurn | None:
        """Do the same without waiting; return None if there is something to wait for."""
        permit = admitted.try_permit(self._admission.guests[kind])
        if permit is None:
            return None
        try:
            held = permit.try_hold(resolved.limits.memory_bytes)
        except BaseException:
            permit.release()
            raise
        if not held:
            permit.release()
            return None
        self._counts.begun += 1
        return GuestTurn(permit)

    def end(self, turn: GuestTurn, resolved: Resolved, request: InvocationRequest) -> None:
        """End a turn, and count its usage."""
        spent_ms: float | None = 0.0
        try:
            spent_ms = self._settle(turn.permit.admitted.tenant, resolved, request, turn)
            self._counts.end()
        finally:
            turn.permit.release(spent_ms)

    def _settle(self, tenant: int, resolved: Resolved, request: InvocationRequest, turn: GuestTurn) -> float | None:
        """Count an invocation's usage; return its milliseconds, None if its guest did not begin."""
        outcome, given_bytes = turn.outcome, len(request.input) + len(request.stdin)
        if turn.offload is not None:
            self.note_offload(tenant, resolved.record.id, turn.offload)
        if outcome is not None:
            self._counts.chunks += len(outcome.chunks)
            spent_s, sent_bytes = outcome.elapsed_s, sent_bytes_of(outcome) + turn.sent_bytes
            launches = outcome.gpu.kernels_launched if outcome.gpu is not None else 0
            on_device = launches > 0
            if on_device:
                self.observe(outcome.device_s + outcome.offload_s)
        elif turn.began_s is not None:
            spent_s, sent_bytes, launches = time.perf_counter() - turn.began_s, turn.sent_bytes, 0
            on_device = resolved.on_device
            if resolved.options.offload == "auto" and not resolved.cuda:
                on_device = self._has_gpu()  # without one its loops run on all cores
        else:
            self._note(tenant, 1, 1, 0, 0, 0, given_bytes)
            return None
        spent_us = int(spent_s * 1e6)
        gpu_us = spent_us if on_device else 0
        if outcome is not None and on_device and not resolved.cuda:
            gpu_us = int(outcome.offload_s * 1e6)  # the guest itself has used no device
        if on_device:
            self._admission.quotas.charge(tenant, gpu_us=gpu_us, launches=launches)
        self._note(tenant, 1, int(outcome is None), spent_us, gpu_us, launches, given_bytes, sent_bytes)
        return spent_s * 1e3


def _ignore(*_: object) -> None:
    """Observe nothing."""


def sent_bytes_of(outcome: Invocation) -> int:
    """Return the length of all output that an outcome contains."""
    chunks = outcome.chunks
    return len(outcome.stdout) + len(outcome.stderr) + (sum(map(len, chunks)) if chunks else 0)
