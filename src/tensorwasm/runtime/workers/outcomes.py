"""Outcomes and devices as frames, and back: results, errors of our tree, and what a worker says of its device.

The kind of an error is looked up in a table of the tree's own classes; an unknown kind is a bug. A result is checked
against its types, because what reads it later does not check again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

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
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.resources.guarded_compiler import KernelTarget
from tensorwasm.gpu.session import SessionStatistics
from tensorwasm.guest.engine.traps import MAX_FILE
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.runtime.executor.request import MAX_COUNT
from tensorwasm.runtime.invoke.deployed_module import DEFAULT_EXPORTS
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    BrokenFrame,
    DoneFrame,
    FailedFrame,
    GpuUsage,
    OffloadUsage,
    ReadyFrame,
    TrapFrame,
)
from tensorwasm.settings import package_version
from tensorwasm.values import MOST_EVIDENCE, DeviceInfo, OffloadUse

_MESSAGE_CHARACTERS: Final = 4096
_WORD_CHARACTERS: Final = 64
_OF_WORKERS: Final = frozenset(f"{errors.__name__}.{part}" for part in ("base", "caller", "guest", "host", "sealed"))
"""Modules of the errors that end calls. A worker cannot answer one about a client's identity or another server."""

_INTEGER_BITS: Final = {"i32": 32, "i64": 64}

_NO_INFO: Final = frozenset({"protocol", "version", "shared_base", "assembler", "pid"})
_DEVICE_FIELDS: Final = tuple(each for each in ReadyFrame.__struct_fields__ if each not in _NO_INFO)


def clean(text: str, most: int = _MESSAGE_CHARACTERS) -> str:
    """Return a text for people without control characters, so many characters of it at most."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:most])


def _pick(found: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}


def describe_device(device: Device) -> ReadyFrame:
    """Return the frame that describes a worker's device."""
    return ReadyFrame(
        protocol=PROTOCOL,
        version=package_version(),
        shared_base=device.shared_base,
        assembler=device.assembler,
        pid=os.getpid(),
        **_pick(device.info, _DEVICE_FIELDS),
    )


def rebuild_target(ready: ReadyFrame) -> KernelTarget | None:
    """Return what kernels for a worker's device are compiled for, None if it compiles none."""
    if not ready.assembler:
        return None
    return KernelTarget(ready.compute_capability, ready.ptx_version, ready.shared_base, ready.assembler)


def rebuild_device(ready: ReadyFrame) -> DeviceInfo:
    """Return the device that a worker describes, its texts cleaned."""
    texts = {"name": clean(ready.name), "driver": clean(ready.driver)}
    return DeviceInfo(**_pick(ready, _DEVICE_FIELDS) | texts)


def describe_error(request: int, error: BaseException) -> FailedFrame:
    """Return the frame for the error that ended a call; one that is not of our tree is a bug here."""
    if not isinstance(error, TensorWasmError):
        error = InternalError(f"{type(error).__name__}: {error}")
    carried = _pick(error, (name for name, _ in _carried(type(error))))
    details = {name: value[:_WORD_CHARACTERS] if isinstance(value, str) else value for name, value in carried.items()}
    stack = error.backtrace if isinstance(error, GuestTrap) else ()
    use = _describe_offload(error.offload) if isinstance(error.offload, OffloadUse) else None
    return FailedFrame(request, error.kind, clean(error.message), details, tuple(map(_describe_frame, stack)), use)


def _describe_frame(frame: Frame) -> TrapFrame:
    offset = min(frame.offset, MAX_COUNT)  # the engine gives the highest number where it knows none
    return TrapFrame(frame.function, frame.name, offset, frame.file, frame.line)


def rebuild_error(failed: FailedFrame) -> TensorWasmError:
    """Return the error that a frame describes; raise `BrokenFrame` if it does not carry what one of its kind does."""
    made = _CLASSES.get(failed.kind)
    if made is None:
        return InternalError(f"a worker answered the unknown error {clean(failed.kind)!r}: {clean(failed.message)}")
    error = made.__new__(made, clean(failed.message))  # without __init__: the text is complete
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
    if failed.offload is not None:
        error.offload = _rebuild_offload(failed.offload)
    return error


CARRIED: Final[dict[type[TensorWasmError], tuple[tuple[str, type], ...]]] = {
    GuestTrap: (("trap", str),),
    GuestExit: (("code", int),),
    MalformedPtx: (("line", int), ("column", int)),
    TooLarge: (("requested_bytes", int), ("limit_bytes", int)),
    RateLimited: (("retry_after_s", int),),
}
"""What errors of a class and its subclasses carry besides their text. Output is sent before the error."""


def _carried(made: type[TensorWasmError]) -> tuple[tuple[str, type], ...]:
    return next((CARRIED[each] for each in made.__mro__ if each in CARRIED), ())


def _tree(root: type[TensorWasmError]) -> Iterator[type[TensorWasmError]]:
    for child in root.__subclasses__():
        yield from _tree(child)
    yield root


def _by_kind() -> dict[str, type[TensorWasmError]]:
    """Return the classes by kind; of two of one kind the subclass, because the other only groups."""
    found: dict[str, type[TensorWasmError]] = {}
    for each in _tree(TensorWasmError):
        if each.__module__ in _OF_WORKERS:
            found.setdefault(each.kind, each)
    # The parent decides whether the worker is replaced, and then makes a DeviceFault of a DeviceLost.
    return found | {DeviceLost.kind: DeviceLost, InternalError.kind: InternalError}


_CLASSES: Final = _by_kind()

COUNTS: Final = tuple(name for name in SessionStatistics._fields if name != "abandoned")
"""The figures of a GPU session, in the order in which a frame has them."""


def describe_result(request: int, outcome: Invocation) -> DoneFrame:
    """Return the frame for a call's result, apart from its output."""
    return DoneFrame(
        request,
        outcome.export,
        outcome.values,
        outcome.result_types,  # type: ignore[arg-type]  # a module has no others
        outcome.exit_code,
        outcome.elapsed_s,
        _describe_gpu(outcome.gpu) if outcome.gpu is not None else None,
        outcome.stdout_truncated,
        outcome.stderr_truncated,
        outcome.device_s,
        _describe_offload(outcome.offload) if outcome.offload is not None else None,
    )


def rebuild_result(
    done: DoneFrame, wanted: str | None, stdout: bytes, stderr: bytes, chunks: tuple[bytes, ...]
) -> Invocation:
    """Return the result that a frame describes, of the export that was asked for, with the output that came before.

    Raises `BrokenFrame` if it is no result of that call.
    """
    if done.export != wanted and (wanted is not None or done.export not in DEFAULT_EXPORTS):
        raise BrokenFrame("the result of another export")
    if done.values and len(done.values) != len(done.result_types):
        raise BrokenFrame(f"{len(done.values)} values of {len(done.result_types)} types")
    for kind, value in zip(done.result_types, done.values, strict=False):
        _require_fit(kind, value)
    return Invocation(
        done.export,
        done.values,
        done.result_types,
        done.exit_code,
        stdout,
        stderr,
        chunks,
        done.elapsed_s,
        _rebuild_gpu(done.gpu) if done.gpu is not None else None,
        done.stdout_truncated,
        done.stderr_truncated,
        done.device_s,
        _rebuild_offload(done.offload) if done.offload is not None else None,
    )


def _require_fit(kind: str, value: float) -> None:
    if kind in _INTEGER_BITS:
        end = 1 << (_INTEGER_BITS[kind] - 1)
        fits = isinstance(value, int) and -end <= value < end
    else:  # an f32 is small enough to be rendered as one; a wrong last bit is harmless
        fits = isinstance(value, float) and (kind != "f32" or not math.isfinite(value) or abs(value) < 2.0**128)
    if not fits:
        raise BrokenFrame(f"a value that is no {kind}")


@lru_cache(maxsize=64)
def _describe_gpu(gpu: SessionStatistics) -> GpuUsage:
    """Return a session's figures as a frame has them; many sessions have equal ones."""
    return GpuUsage(tuple(getattr(gpu, name) for name in COUNTS), gpu.abandoned)


@lru_cache(maxsize=64)
def _rebuild_gpu(gpu: GpuUsage) -> SessionStatistics:
    if len(gpu.counts) != len(COUNTS):
        raise BrokenFrame("other figures of a GPU session than there are")
    return SessionStatistics(**dict(zip(COUNTS, gpu.counts, strict=True)), abandoned=gpu.abandoned)


_REASONS: Final = tuple(reason.name.lower() for reason in DeclineReason)


def _describe_offload(use: OffloadUse) -> OffloadUsage:
    counts = dict(use.declined)
    declined = tuple(counts.get(reason, 0) for reason in _REASONS)
    return OffloadUsage(use.taken, use.compared, use.seconds, use.moved_bytes, declined, use.mismatches)


def _rebuild_offload(usage: OffloadUsage) -> OffloadUse:
    if len(usage.declined) != len(_REASONS):
        raise BrokenFrame("other reasons of loops than there are")
    declined = tuple((reason, count) for reason, count in zip(_REASONS, usage.declined, strict=True) if count)
    mismatches = tuple(clean(each, MOST_EVIDENCE) for each in usage.mismatches)
    return OffloadUse(usage.taken, usage.compared, usage.seconds, usage.moved_bytes, declined, mismatches)
