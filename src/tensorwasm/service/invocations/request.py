"""`InvocationRequest`: what a caller wants of a function, and what becomes of it on the way to a guest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from tensorwasm.errors import InvokeTimeout, TooManyArgs
from tensorwasm.runtime.executor.request import Argument, Request
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.service.functions.options import check_environment
from tensorwasm.service.functions.resolution import Resolved
from tensorwasm.values import NEVER, Deadline

if TYPE_CHECKING:
    from tensorwasm.runtime.invoke.call import CallOptions

MAX_ARGS: Final = 256

_DEVICE: Final = Grants(cuda=True)


class InvocationRequest(msgspec.Struct, frozen=True):
    """One call of an export. A struct, because making one costs a tenth of a frozen dataclass, and each call has one.

    Attributes:
        export: None takes ``_start``, and where there is none, ``main``.
        args: its arguments, at most 256.
        input: what the guest reads with ``read-input``.
        stdin: all of standard input.
        env: environment besides the function's, and before it.
        argv: arguments of WASI, the program's name first; None gives the function's name.
        deadline: when it must have ended. With none, the function's time holds, or the operator's usual one.
    """

    export: str | None = None
    args: tuple[Argument, ...] = ()
    input: bytes = b""
    stdin: bytes = b""
    env: tuple[tuple[str, str], ...] = ()
    argv: tuple[str, ...] | None = None
    deadline: Deadline = NEVER

    def __repr__(self) -> str:
        return f"Ask(export={self.export!r}, {len(self.args)} arguments)"

    def check(self) -> None:
        """Hold it against what may be asked.

        Raises:
            TooManyArgs: more than 256 arguments.
            InvalidArgs: the environment cannot be passed on.
            InvokeTimeout: its deadline has passed.
        """
        if len(self.args) > MAX_ARGS:
            raise TooManyArgs(f"{len(self.args)} arguments: at most {MAX_ARGS}")
        if self.env:
            check_environment(self.env)
        if self.deadline.at_ns is not None and self.deadline.expired():
            raise InvokeTimeout("the deadline passed before the function was called")

    @property
    def given_bytes(self) -> int:
        """Bytes that the guest is given."""
        return len(self.input) + len(self.stdin)


def ends_at(resolved: Resolved, ask: InvocationRequest) -> Deadline:
    """Return when an invocation that begins now must have ended; its function's limits come on top."""
    if ask.deadline.at_ns is not None:
        return ask.deadline
    return Deadline(time.monotonic_ns() + resolved.usual_ns)


def options_for(resolved: Resolved, ask: InvocationRequest, deadline: Deadline) -> CallOptions:
    """Return keyword arguments of `tensorwasm.runtime.api.function.Function.invoke`."""
    options: CallOptions = {"deadline": deadline, "tenant": resolved.tenant}
    if ask.input:
        options["input"] = ask.input
    if ask.stdin:
        options["stdin"] = ask.stdin
    if ask.argv is not None:
        options["argv"] = ask.argv
    if ask.env or resolved.options.env:
        options["env"] = dict(resolved.options.env) | dict(ask.env)
    return options


def request_for(resolved: Resolved, ask: InvocationRequest, deadline: Deadline, gpu_bytes: int | None) -> Request:
    """Return the request that a worker process is given."""
    return Request(
        module=resolved.module,
        export=ask.export,
        args=tuple(ask.args),
        name=resolved.record.name,
        argv=ask.argv,
        env=tuple((dict(resolved.options.env) | dict(ask.env)).items()),
        stdin=ask.stdin,
        input=ask.input,
        grants=_DEVICE,
        tenant=resolved.tenant,
        limits=resolved.limits,
        deadline_s=deadline.remaining_s(),
        memory_kind=resolved.options.memory_kind,
        gpu_bytes=gpu_bytes,
    )
