"""The protocol between parent and worker: the frames that each may send.

Large data goes in parts of at most `PART_BYTES`, for which small frames do not wait long. What the calls of a function
have in common is sent once, so that a call is a few dozen bytes. `tensorwasm.runtime.workers.wire` has the encoding.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tensorwasm.errors import MAX_NAME
from tensorwasm.guest.engine.traps import MAX_FILE, MAX_FRAMES
from tensorwasm.ptx import MAX_PTX_BYTES
from tensorwasm.ptx.guarded import Width
from tensorwasm.runtime.executor.request import MAX_COUNT, NAME_CHARACTERS, TENANT_PATTERN, Argument
from tensorwasm.runtime.offload import MAX_JOB_BYTES
from tensorwasm.values import (
    MAX_WEIGHT,
    MOST_EVIDENCE,
    MOST_MISMATCHES,
    Isolation,
    MemoryKind,
    OffloadMath,
    OffloadMode,
)

PROTOCOL: Final = 13
PART_BYTES: Final = 64 << 10
"""Most bytes in one part: what ``emit-chunk`` takes at once, so that a chunk is one frame."""

WINDOW: Final = 32
"""Parts of a call's output that a worker sends before its listener has taken any; then its guest waits for credit."""

Identity = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]
Number = int | float
Word = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=NAME_CHARACTERS)]
Tenant = Annotated[str, Meta(max_length=64, pattern=rf"^{TENANT_PATTERN}\Z")]
Evidence = Annotated[str, Meta(max_length=MOST_EVIDENCE)]
Part = Annotated[bytes, Meta(min_length=1, max_length=PART_BYTES)]
OutputName = Literal["stdout", "stderr", "chunk"]


class BrokenFrame(Exception):
    """What was read is no valid frame. Never leaves this package."""


class WorkerFrame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all frames: immutable, with exactly their fields."""


class SetupFrame(WorkerFrame, frozen=True):
    """To a worker, first: its options."""

    protocol: Count  # `PROTOCOL` of the sender
    device: Word  # ``emulator`` or ``cuda:N``
    multiprocessors: Identity | None  # its share of the device's, None for all
    # Where the share lies, `tensorwasm.values.SmPlacement` as unit and what is before; None for anywhere.
    place: tuple[Identity, tuple[Identity, ...]] | None
    isolation: Isolation  # what keeps kernels apart in the worker's process
    asks: bool  # whether the parent compiles guarded kernels
    jit: bool  # whether the device's driver may compile PTX of guests in the worker's process
    places: Identity  # calls at a time
    beat_s: float  # seconds between its heartbeats


class BlobFrame(WorkerFrame, frozen=True):
    """To a worker: parts of so many bytes, all together, will follow under a number, which is never used again."""

    blob: Identity
    size_bytes: Count


class BlobPartFrame(WorkerFrame, frozen=True):
    """To a worker: the next bytes of a blob."""

    blob: Identity
    data: Part


class ForgetFrame(WorkerFrame, frozen=True):
    """To a worker: a blob or a target that is not needed again. Calls that were sent before go on."""

    number: Identity


class TargetFrame(WorkerFrame, frozen=True):
    """To a worker: what calls have in common; `tensorwasm.runtime.executor.request.Request` documents the fields."""

    target: Identity  # of the numbers of blobs, and like these never used again
    module: Identity  # number of a complete blob
    name: Name
    cuda: bool
    weight: Weight
    directories: tuple[tuple[Name, Name, bool], ...]
    tenant: Tenant
    limits: tuple[Count, Count, Count, Count, float, Count, Count]
    memory_kind: MemoryKind | None
    offload: OffloadMode
    offload_math: OffloadMath


class InvokeFrame(WorkerFrame, frozen=True):
    """To a worker: make a call; `tensorwasm.runtime.executor.request.Request` documents the fields."""

    request: Identity  # the number of its outcome, never used twice
    target: Identity  # number of a target
    export: Name | None
    args: tuple[Argument, ...]
    deadline_s: float | None  # seconds left
    gpu_bytes: Count | None
    stream: bool = False  # output is wanted as it is written
    argv: tuple[Name, ...] | None = None
    env: tuple[tuple[Name, Name], ...] = ()
    stdin: Identity | None = None  # number of a complete blob, which is forgotten with this; None for nothing
    input: Identity | None = None  # the same


class CancelFrame(WorkerFrame, frozen=True):
    """To a worker: the output of a call, which may have been answered meanwhile, is not wanted any more."""

    request: Identity  # the call's number
    stop: bool  # nor is its outcome


class CreditFrame(WorkerFrame, frozen=True):
    """To a worker: so many more parts of the output of a call, which may have been answered meanwhile, may be sent."""

    request: Identity
    parts: Annotated[int, Meta(ge=1, le=WINDOW)]


class TurnFrame(WorkerFrame, frozen=True):
    """To a worker: as `tensorwasm.gpu.limits.turns.TurnOrder` has it."""

    contested: bool
    number: Count
    tenant: Tenant | None  # None if it is nobody's turn there
    length_ns: Count


class KernelFrame(WorkerFrame, frozen=True):
    """To a worker: what an ask is for.

    A kernel is as `tensorwasm.gpu.resources.kernel_store.encode` has it, a plan a packed
    `tensorwasm.runtime.offload.plan_job.PlanOutcome`.
    """

    ask: Identity
    blob: Identity  # number of a complete blob, which is forgotten with this


class StopFrame(WorkerFrame, frozen=True):
    """To a worker: leave."""


class ReadyFrame(WorkerFrame, frozen=True):
    """From a worker, first: it can be used; its device as in `tensorwasm.values.DeviceInfo`."""

    protocol: Count  # `PROTOCOL` of the sender
    version: Word  # of the package
    kind: Literal["emulator", "cuda"]
    ordinal: Count
    name: Text
    compute_capability: tuple[Count, Count]
    ptx_version: tuple[Count, Count]
    memory_bytes: Count
    multiprocessors: Count
    max_shared_bytes: Count
    concurrent_managed_access: bool
    driver: Text
    shared_base: Count = 0  # of `tensorwasm.gpu.device.port.Device`, as the next
    assembler: Word = ""
    pid: Count = 0  # the process's number, 0 for one that is not to be shown


class UnfitFrame(WorkerFrame, frozen=True):
    """From a worker, instead of `ReadyFrame`: why it cannot be used."""

    kind: Word
    message: Text


class Charge(WorkerFrame, frozen=True):
    """What a tenant holds on the worker's device."""

    tenant: Tenant
    device_bytes: Count
    pinned_bytes: Count


class BeatFrame(WorkerFrame, frozen=True):
    """From a worker, every few seconds: it is alive."""

    number: Identity  # 1, 2, 3 and so on
    charges: tuple[Charge, ...]  # tenants that hold anything


class LongWorkFrame(WorkerFrame, frozen=True):
    """From a worker: kernels of a tenant run so long that nobody can load code meanwhile."""

    tenant: Tenant


class WishFrame(WorkerFrame, frozen=True):
    """From a worker: these tenants, and no others, keep the device busy there; with their weights."""

    tenants: dict[Tenant, Weight]


class TurnEndFrame(WorkerFrame, frozen=True):
    """From a worker: a turn is over. If ``late``, something that was begun in it runs on, and another tells its end."""

    number: Identity
    late: bool = False


class AskFrame(WorkerFrame, frozen=True):
    """From a worker: a kernel is wanted, compiled; parts of its text, all together of that size, follow."""

    ask: Identity  # never used twice
    tenant: Tenant  # who has a call under way there
    entry: Name
    architecture: tuple[Count, Count]
    width: Width
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_PTX_BYTES)]


class PlanAskFrame(WorkerFrame, frozen=True):
    """From a worker: a plan is wanted; parts of the `PlanJob`, all together of that size, follow."""

    ask: Identity  # of the same numbers
    tenant: Tenant  # who has had a call there
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_JOB_BYTES)]


Asked = AskFrame | PlanAskFrame


class AskPartFrame(WorkerFrame, frozen=True):
    """From a worker: the next bytes of the text of a kernel, or of a job."""

    ask: Identity
    data: Part


class OutputFrame(WorkerFrame, frozen=True):
    """From a worker: what a guest wrote; for ``chunk`` exactly one chunk."""

    request: Identity
    name: OutputName
    data: Part


class GpuUsage(WorkerFrame, frozen=True):
    """What a guest held on the device at its end, as `tensorwasm.gpu.session.SessionStatistics` has it."""

    counts: tuple[Count, ...]  # in the order of `tensorwasm.runtime.workers.outcomes.COUNTS`
    abandoned: bool


class OffloadUsage(WorkerFrame, frozen=True):
    """What became of a guest's loops that can run elsewhere, as `tensorwasm.values.OffloadUse` has it."""

    taken: Count
    compared: Count
    seconds: Annotated[float, Meta(ge=0)]
    moved_bytes: Count
    declined: tuple[Count, ...]  # in the order of `tensorwasm.offload.declined.DeclineReason`
    mismatches: Annotated[tuple[Evidence, ...], Meta(max_length=MOST_MISMATCHES)]


class DoneFrame(WorkerFrame, frozen=True):
    """From a worker: a call's result, after all its output."""

    request: Identity
    export: Name
    values: tuple[Number, ...]
    result_types: tuple[Literal["i32", "i64", "f32", "f64"], ...]
    exit_code: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
    elapsed_s: Annotated[float, Meta(ge=0)]
    gpu: GpuUsage | None
    stdout_truncated: bool
    stderr_truncated: bool
    device_s: Annotated[float, Meta(ge=0)] = 0.0
    offload: OffloadUsage | None = None


class TrapFrame(WorkerFrame, frozen=True):
    """One function on the stack of a guest that trapped, as `tensorwasm.errors.Frame` has it."""

    function: Count
    name: Annotated[str, Meta(max_length=MAX_NAME)]
    offset: Count
    file: Annotated[str, Meta(max_length=MAX_FILE)]
    line: Count


class FailedFrame(WorkerFrame, frozen=True):
    """From a worker: a call's error, after all its output."""

    request: Identity
    kind: Word  # of an error of ours
    message: Text  # for people
    # What an error of that kind carries, by name.
    details: dict[Word, Word | Count] = msgspec.field(default_factory=dict)
    stack: Annotated[tuple[TrapFrame, ...], Meta(max_length=MAX_FRAMES)] = ()  # of a trap, innermost first
    offload: OffloadUsage | None = None


class NoKernelFrame(WorkerFrame, frozen=True):
    """To a worker: why there is no kernel for an ask."""

    ask: Identity
    failure: FailedFrame  # whose ``request`` means nothing


class SickFrame(WorkerFrame, frozen=True):
    """From a worker: its device is lost. It answers what it has and takes nothing more."""

    message: Text
