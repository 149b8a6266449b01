"""Calls in a worker's process: what they have in common, those under way, and how a short one is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tensorwasm.errors import GuestTrap
from tensorwasm.guest.sandbox.wasi_io import Directory
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.executor.local import FunctionKey
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.runtime.invoke.invocation import Invocation, PendingInvocation, configure
from tensorwasm.runtime.invoke.one_shot import OneShotPlan
from tensorwasm.runtime.workers.child.parent_link import OutputWindow
from tensorwasm.runtime.workers.frames import InvokeFrame, TargetFrame
from tensorwasm.values import Deadline, Limits


@dataclass(slots=True)
class Target:
    """What calls have in common."""

    frame: TargetFrame
    key: FunctionKey  # once the function is loaded, the very one that it is found by: then nothing is compared
    grants: Grants

    @classmethod
    def of(cls, frame: TargetFrame, module: bytes) -> Target:
        """Return the target that a frame describes, with its module."""
        grants = Grants(frame.cuda, tuple(Directory(*each) for each in frame.directories))
        key = FunctionKey(frame.tenant, frame.name, Limits(*frame.limits), module, frame.offload, frame.offload_math)
        return cls(frame, key, grants)


class ShortCall:
    """A call that is made on the thread that reads; another thread, which has taken the lead, may stop it."""

    _stop: Callable[[], object] | None = None
    _stopped = False

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set what ends its guest, which may be called twice."""
        self._stop = stop
        if self._stopped:  # looked at after it was set: one of both threads sees what the other did
            stop()

    def stop(self) -> None:
        """End its guest."""
        self._stopped = True
        if self._stop is not None:
            self._stop()

    def hush(self) -> None:
        """Do nothing: its output is sent with its outcome."""

    def credit(self, parts: int) -> None:
        """Do nothing: its output needs none."""


@dataclass(slots=True)
class RunningCall:
    """A call under way on another thread; `heard` is whether its output is still wanted as it is written."""

    number: int
    cuda: bool
    window: OutputWindow
    ticket: PendingInvocation | None = None
    heard: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hush(self) -> None:
        """Note that no more output is wanted."""
        self.heard = False
        self.window.close()

    def credit(self, parts: int) -> None:
        """Let so many more parts of the output be sent."""
        self.window.add(parts)

    def stop(self) -> None:
        """End its guest."""
        ticket = self.ticket  # another thread forgets it at the call's end
        if ticket is not None:
            ticket.stop()


def make_request(frame: InvokeFrame, target: Target, stdin: bytes, given: bytes) -> Request:
    """Return the request that frames describe."""
    key, common = target.key, target.frame
    return Request(
        module=key.module,
        export=frame.export,
        args=frame.args,
        name=key.name,
        argv=frame.argv,
        env=frame.env,
        stdin=stdin,
        input=given,
        grants=target.grants,
        tenant=key.tenant,
        weight=common.weight,
        limits=key.limits,
        deadline_s=frame.deadline_s,
        memory_kind=common.memory_kind,
        gpu_bytes=frame.gpu_bytes,
        offload=common.offload,
        offload_math=common.offload_math,
    )


def run_short(
    function: Function,
    plan: OneShotPlan,
    frame: InvokeFrame,
    target: Target,
    stdin: bytes,
    given: bytes,
    call: ShortCall,
) -> Invocation | Exception:
    """Make a call; return what came of it."""
    try:
        deadline, config = Deadline.after(frame.deadline_s), None
        if function.prepared.needs_wasi:
            env = dict(frame.env) if frame.env else None
            config = configure(function, target.grants, argv=frame.argv, env=env, stdin=stdin)
        return plan.invoke(frame.args, given, None, deadline, config, call.stop_with)
    except GuestTrap as error:
        _ = error.backtrace  # its lines are looked up here, where others do not wait for it
        return error
    except Exception as error:  # noqa: BLE001 - it is the call's outcome
        return error
