"""What a job asks: checked before it is accepted, kept encoded until it runs."""

from __future__ import annotations

from typing import Final

import msgspec

from tensorwasm.errors import BodyTooLarge, InvalidArgs
from tensorwasm.guest.engine import codec
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.executor.request import Argument
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs.options import REQUEST_BYTES
from tensorwasm.values import Deadline


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """An `InvocationRequest` at rest: with the time that each attempt has in place of a deadline."""

    export: str | None
    args: tuple[Argument, ...]
    input: bytes
    stdin: bytes
    env: tuple[tuple[str, str], ...]
    argv: tuple[str, ...] | None
    timeout_s: float | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Kept)


def check_ask(function: Function, ask: InvocationRequest) -> None:
    """Hold a call against what may be asked, and the signature of the export that it is for.

    Raises:
        TooManyArgs: more than 256 arguments.
        MissingExport: no such function.
        InvalidArgs: the arguments do not fit, or the environment cannot be passed on.
    """
    ask.check()
    plan = function.prepared.module.plan(function.choose(ask.export))
    codec.encode(plan.params, ask.args)


def encode_ask(ask: InvocationRequest, timeout_s: float | None) -> bytes:
    """Return a call as bytes; its deadline is left out.

    Args:
        ask: the call.
        timeout_s: seconds that each attempt has; None for as long as the function usually has.

    Raises:
        BodyTooLarge: they are too many.
        InvalidArgs: an argument is neither a number nor a text.
    """
    kept = _Kept(ask.export, tuple(ask.args), ask.input, ask.stdin, ask.env, ask.argv, timeout_s)
    try:
        data = _ENCODER.encode(kept)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgs("an argument is neither a number nor a text") from None
    if len(data) > REQUEST_BYTES:
        raise BodyTooLarge(f"a job's call has at most {REQUEST_BYTES} bytes")
    return data


def decode_ask(data: bytes) -> InvocationRequest:
    """Return the call of some bytes of `encode_ask`, whose time begins now."""
    kept = _DECODER.decode(data)
    deadline = Deadline.after(kept.timeout_s)
    return InvocationRequest(kept.export, kept.args, kept.input, kept.stdin, kept.env, kept.argv, deadline)
