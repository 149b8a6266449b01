"""Outcomes as frames and back: a result becomes an `Invocation`, an error one of our tree, and nothing else anything.

The kind of an error is looked up in a table of the tree's own classes; a kind that is not there is a bug, whoever's it
is. A result is held to what its types say, because what reads it later does not look again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from tensorwasm import errors
from tensorwasm.errors import (
    MAX_NAME,
    DeviceLost,
    Frame,
    GuestExit,
    GuestTrap,
    InternalError,
    MalformedPtx,
    RateLimited,
    TensorWasmError,
    TooLarge,
    plain,
)
from tensorwasm.gpu.session import SessionStatistics
from tensorwasm.guest.engine.traps import MAX_FILE
from tensorwasm.runtime.executor.request import MAX_COUNT
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.invoke.loaded_module import DEFAULT_EXPORTS
from tensorwasm.runtime.workers.frames import BrokenFrame, Done, Failed, Gpu, StackFrame

_MESSAGE_CHARACTERS: Final = 4096
_WORD_CHARACTERS: Final = 64
_OF_WORKERS: Final = frozenset(f"{errors.__name__}.{part}" for part in ("base", "caller", "guest", "host", "sealed"))
"""Where the errors are that end calls. A worker has no say about who a client is, or about another server."""

_INTEGER_BITS: Final = {"i32": 32, "i64": 64}


def describe_error(request: int, error: BaseException) -> Failed:
    """Return the frame for the error that ended a call; one that is not of our tree is a bug here."""
    if not isinstance(error, TensorWasmError):
        error = InternalError(f"{type(error).__name__}: {error}")
    carried = {name: getattr(error, name) for name, _ in _carried(type(error))}
    details = {name: value[:_WORD_CHARACTERS] if isinstance(value, str) else value for name, value in carried.items()}
    stack = error.backtrace if isinstance(error, GuestTrap) else ()
    return Failed(request, error.kind, clean(error.message), details, tuple(map(_describe_frame, stack)))


def _describe_frame(frame: Frame) -> StackFrame:
    offset = min(frame.offset, MAX_COUNT)  # the engine says the highest number where it knows none
    return StackFrame(frame.function, frame.name, offset, frame.file, frame.line)


def clean(text: str) -> str:
    """Return a text for people without control characters, at most 4096 characters of it."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:_MESSAGE_CHARACTERS])


def rebuild_error(failed: Failed) -> TensorWasmError:
    """Return the error that a frame describes.

    Raises:
        BrokenFrame: the error does not carry what one of its kind does.
    """
    made = _CLASSES.get(failed.kind)
    if made is None:
        return InternalError(f"a worker answered the unknown error {clean(failed.kind)!r}: {clean(failed.message)}")
    error = made.__new__(made, clean(failed.message))  # not made anew: its text is complete, whatever it was made from
    carried = _carried(made)
    if failed.details.keys() != {name for name, _ in carried}:
        raise BrokenFrame(f"a {failed.kind} with other details")
    for name, kind in carried:
        value = failed.details[name]
        if not isinstance(value, kind):
            raise BrokenFrame(f"a {failed.kind} whose {name} is no {kind.__name__}")
        setattr(error, name, clean(value) if isinstance(value, str) else value)
    if failed.stack and isinstance(error, GuestTrap):
        error.backtrace = tuple(
            Frame(each.function, plain(each.name, MAX_NAME), each.offset, plain(each.file, MAX_FILE), each.line)
            for each in failed.stack
        )
    elif failed.stack:
        raise BrokenFrame(f"a {failed.kind} with a stack")
    return error


CARRIED: Final[dict[type[TensorWasmError], tuple[tuple[str, type], ...]]] = {
    GuestTrap: (("trap", str),),
    GuestExit: (("code", int),),
    MalformedPtx: (("line", int), ("column", int)),
    TooLarge: (("requested_bytes", int), ("limit_bytes", int)),
    RateLimited: (("retry_after_s", int),),
}
"""What errors of a class carry beside their text, subclasses' included. Output goes ahead of the error."""


def _carried(made: type[TensorWasmError]) -> tuple[tuple[str, type], ...]:
    return next((CARRIED[each] for each in made.__mro__ if each in CARRIED), ())


def _tree(root: type[TensorWasmError]) -> Iterator[type[TensorWasmError]]:
    for child in root.__subclasses__():
        yield from _tree(child)
    yield root


def _by_kind() -> dict[str, type[TensorWasmError]]:
    """Return the classes by kind. Of two with one kind the more special counts: the general one only groups."""
    found: dict[str, type[TensorWasmError]] = {}
    for each in _tree(TensorWasmError):
        if each.__module__ in _OF_WORKERS:
            found.setdefault(each.kind, each)
    # Whether its worker is replaced is for the supervisor to know, which makes a DeviceFault of it.
    return found | {DeviceLost.kind: DeviceLost, InternalError.kind: InternalError}


_CLASSES: Final = _by_kind()


def describe_result(request: int, outcome: Invocation) -> Done:
    """Return the frame for a call's result, apart from its output."""
    return Done(
        request=request,
        export=outcome.export,
        values=outcome.values,
        result_types=outcome.result_types,  # type: ignore[arg-type]  # the codec decodes these four types only
        exit_code=outcome.exit_code,
        elapsed_s=outcome.elapsed_s,
        gpu=_describe_gpu(outcome.gpu) if outcome.gpu is not None else None,
        stdout_truncated=outcome.stdout_truncated,
        stderr_truncated=outcome.stderr_truncated,
    )


def rebuild_result(
    done: Done, wanted: str | None, stdout: bytes, stderr: bytes, chunks: tuple[bytes, ...]
) -> Invocation:
    """Return the result that a frame describes.

    Args:
        done: the frame.
        wanted: the export that was asked for, None for the usual ones.
        stdout: what came before.
        stderr: what came before.
        chunks: what came before.

    Raises:
        BrokenFrame: it is no result of that call.
    """
    if done.export not in (DEFAULT_EXPORTS if wanted is None else (wanted,)):
        raise BrokenFrame("the result of another export")
    if done.values and len(done.values) != len(done.result_types):
        raise BrokenFrame(f"{len(done.values)} values of {len(done.result_types)} types")
    for kind, value in zip(done.result_types, done.values, strict=False):
        _require_fit(kind, value)
    return Invocation(
        export=done.export,
        values=done.values,
        result_types=done.result_types,
        exit_code=done.exit_code,
        stdout=stdout,
        stderr=stderr,
        chunks=chunks,
        elapsed_s=done.elapsed_s,
        gpu=_rebuild_gpu(done.gpu) if done.gpu is not None else None,
        stdout_truncated=done.stdout_truncated,
        stderr_truncated=done.stderr_truncated,
    )


def _require_fit(kind: str, value: float) -> None:
    bits = _INTEGER_BITS.get(kind)
    if bits is None:
        fits = isinstance(value, float) and (kind != "f32" or _is_f32(value))
    else:
        fits = isinstance(value, int) and -(1 << (bits - 1)) <= value < 1 << (bits - 1)
    if not fits:
        raise BrokenFrame(f"a value that is no {kind}")


def _is_f32(value: float) -> bool:
    """Return whether a number is small enough for the type's text to be made; a wrong last bit harms nobody."""
    return not math.isfinite(value) or abs(value) < 2.0**128


_COUNTS: Final = frozenset(SessionStatistics._fields) - {"abandoned"}


def _describe_gpu(found: SessionStatistics) -> Gpu:
    return Gpu({name: getattr(found, name) for name in sorted(_COUNTS)}, found.abandoned)


def _rebuild_gpu(gpu: Gpu) -> SessionStatistics:
    if gpu.counts.keys() != _COUNTS:
        raise BrokenFrame("other figures of a GPU session than there are")
    return SessionStatistics(**gpu.counts, abandoned=gpu.abandoned)
