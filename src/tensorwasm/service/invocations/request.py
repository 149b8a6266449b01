"""`InvocationRequest`: one call of a function, and the forms in which guests receive it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from tensorwasm.errors import InvokeTimeout, TooManyArgs
from tensorwasm.runtime.executor.request import Argument, Request
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.service.functions.checks import check_environment
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.tenancy.quotas import TenantPolicy
from tensorwasm.values import NEVER, Deadline

if TYPE_CHECKING:
    from tensorwasm.runtime.invoke.invocation import CallOptions

MAX_ARGS: Final = 256

_DEVICE: Final = Grants(cuda=True)
_NOTHING: Final = Grants()


class InvocationRequest(msgspec.Struct, frozen=True):
    """One call of an export. A struct, because making one costs a tenth of a frozen dataclass, and each call makes one.

    Attributes:
        export: None takes ``_start``, or ``main`` where there is no ``_start``.
        input: what the guest reads with ``read-input``.
        env: added to the function's environment, and overrides it.
        argv: arguments of WASI, the program's name first; None gives the function's name.
        deadline: without one the function's timeout or the operator's default holds.
    """

    export: str | None = None
    args: tuple[Argument, ...] = ()
    input: bytes = b""
    stdin: bytes = b""
    env: tuple[tuple[str, str], ...] = ()
    argv: tuple[str, ...] | None = None
    deadline: Deadline = NEVER

    def __repr__(self) -> str:
        return f"InvocationRequest(export={self.export!r}, {len(self.args)} arguments)"

    def check(self) -> None:
        """Raise TooManyArgs, InvalidArgs for an invalid environment, or InvokeTimeout if the deadline has passed."""
        if len(self.args) > MAX_ARGS:
            raise TooManyArgs(f"{len(self.args)} arguments: at most {MAX_ARGS}")
        if self.env:
            check_environment(self.env)
        if self.deadline.at_ns is not None and self.deadline.expired():
            raise InvokeTimeout("the deadline passed before the function was called")


def deadline_of(resolved: Resolved, request: InvocationRequest) -> Deadline:
    """Return the deadline of an invocation that begins now; its function's limits apply besides."""
    if request.deadline.at_ns is not None:
        return request.deadline
    return Deadline(time.monotonic_ns() + resolved.default_ns)


def options_for(resolved: Resolved, request: InvocationRequest, deadline: Deadline) -> CallOptions:
    """Return keyword arguments of `tensorwasm.runtime.api.function.Function.invoke`."""
    options: CallOptions = {"deadline": deadline, "tenant": resolved.tenant}
    if request.input:
        options["input"] = request.input
    if request.stdin:
        options["stdin"] = request.stdin
    if request.argv is not None:
        options["argv"] = request.argv
    if request.env or resolved.options.env:
        options["env"] = dict(resolved.options.env) | dict(request.env)
    return options


def worker_request(resolved: Resolved, request: InvocationRequest, deadline: Deadline, policy: TenantPolicy) -> Request:
    """Return the request in the form that worker processes take."""
    options = resolved.options
    env = tuple((dict(options.env) | dict(request.env)).items()) if options.env or request.env else ()
    return Request(
        module=resolved.module,
        export=request.export,
        args=request.args,
        name=resolved.record.name,
        argv=request.argv,
        env=env,
        stdin=request.stdin,
        input=request.input,
        grants=_DEVICE if resolved.cuda else _NOTHING,
        tenant=resolved.tenant,
        limits=resolved.limits,
        deadline_s=deadline.remaining_s(),
        memory_kind=options.memory_kind,
        gpu_bytes=policy.quotas.get("gpu_bytes"),
        weight=policy.weight,
        offload=options.offload,
        offload_math=options.offload_math,
    )
