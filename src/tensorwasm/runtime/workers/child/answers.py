"""What came of a call, as frames to the process that has asked for it."""

from __future__ import annotations

from collections.abc import Iterator

from tensorwasm.errors import CallerError, DeviceLost, HostError, InvokeTimeout, LimitError
from tensorwasm.gpu.session import SessionStatistics
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.workers.conversation.outbox import split
from tensorwasm.runtime.workers.frames import PART_BYTES, BrokenFrame, OutputFrame, OutputName, WorkerFrame
from tensorwasm.runtime.workers.outcomes import describe_error, describe_result
from tensorwasm.runtime.workers.wire import encode


def encode_outcome(number: int, outcome: Invocation | BaseException, sickness: str = "") -> bytes:
    """Return the frames of an outcome, the output first, given why the device does not answer, empty if it does."""
    if sickness:
        outcome = _judge(outcome, sickness)
    try:
        if (
            isinstance(outcome, Invocation)
            and len(outcome.stdout) <= PART_BYTES
            and not (outcome.stderr or outcome.chunks)
        ):
            wrote = encode(OutputFrame(number, "stdout", outcome.stdout)) if outcome.stdout else b""
            return wrote + encode(describe_result(number, outcome))
        return b"".join(map(encode, _describe_outcome(number, outcome)))
    except BrokenFrame as broken:
        return encode(describe_error(number, broken))


def _describe_outcome(number: int, outcome: Invocation | BaseException) -> Iterator[WorkerFrame]:
    written: tuple[tuple[OutputName, bytes], ...] = (
        ("stdout", getattr(outcome, "stdout", b"")),
        ("stderr", getattr(outcome, "stderr", b"")),
    )
    for name, data in written:
        for part in split(data):
            yield OutputFrame(number, name, part)
    if isinstance(outcome, Invocation):
        for chunk in outcome.chunks:
            for part in split(chunk):
                yield OutputFrame(number, "chunk", part)
        yield describe_result(number, outcome)
    else:
        yield describe_error(number, outcome)


def _judge(outcome: Invocation | BaseException, sickness: str) -> Invocation | BaseException:
    """Return what came of a call that had the grant of a device, which is lost.

    A guest whose kernels the device lost sees a code and goes on as if it had failed itself; that is no outcome to
    blame on it. What was refused, ran out of time or did nothing with the device stands.
    """
    if isinstance(outcome, CallerError | LimitError | HostError | InvokeTimeout):
        return outcome
    if isinstance(outcome, Invocation) and outcome.gpu is not None and not _used(outcome.gpu):
        return outcome
    lost = DeviceLost(f"the device was lost before the call had ended: {sickness}")
    lost.stdout, lost.stderr = getattr(outcome, "stdout", b""), getattr(outcome, "stderr", b"")
    return lost


def _used(gpu: SessionStatistics) -> bool:
    """Return whether a guest had anything to do with its device."""
    return bool(gpu.kernels_launched or gpu.kernels or gpu.allocations or gpu.release_failures or gpu.abandoned)
