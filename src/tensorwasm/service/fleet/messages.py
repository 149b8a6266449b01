"""Messages between a front and the primary, of one release or of two that follow one another."""

from __future__ import annotations

from typing import Final

import msgspec

from tensorwasm.service.invocations.streaming import Status

PROTOCOL: Final = 1

LabelledValue = tuple[tuple[str, ...], float]
LabelledCounts = tuple[tuple[str, ...], list[float]]


class FleetMessage(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What one process tells the other; each message is answered by another one."""


class Hello(FleetMessage, frozen=True):
    """A front's first message: its process, and the release of these messages."""

    pid: int
    protocol: int = PROTOCOL


class Done(FleetMessage, frozen=True):
    """What was told is done."""


class Failed(FleetMessage, frozen=True):
    """What was told could not be done; the reason is for the log."""

    reason: str


class StreamEnded(msgspec.Struct, frozen=True, gc=False):
    """How a stream of a front ended; fields as of `tensorwasm.service.invocations.streaming.StreamEnding`."""

    tenant: int
    request_id: str
    reference: str
    status: Status
    reason: str
    message: str


class UsedByTenant(msgspec.Struct, frozen=True, gc=False):
    """What a tenant used in an hour: amounts in the order of `tensorwasm.database.usage.AMOUNTS`."""

    hour_unix_ms: int
    tenant: int
    amounts: list[int]


class FrontReport(FleetMessage, frozen=True):
    """What a front leaves to the primary to write; acknowledged once audit records and usage are on the disk.

    Attributes:
        audit: records, encoded.
        dropped: records that were lost for lack of room since the last report.
        suppressed: records without an actor that were only counted.
        hurry: the front is about to end, and waits for the acknowledgement.
        usage: of tenants, since the last report.
        reporter: who reports the usage, the same for each front that takes another's place.
        mark: of this report of usage: one that is repeated has the same.
        ended: streams that ended.
    """

    audit: list[bytes] = []
    dropped: int = 0
    suppressed: int = 0
    hurry: bool = False
    usage: list[UsedByTenant] = []
    reporter: str = ""
    mark: str = ""
    ended: list[StreamEnded] = []


class Changed(FleetMessage, frozen=True):
    """What fronts must read again; it is acknowledged once nothing older is used.

    Attributes:
        identities: whether tokens or tenants changed.
        functions: IDs of functions that changed.
        names: tenants and names by which another function may be found now.
    """

    identities: bool = False
    functions: list[str] = []
    names: list[tuple[int, str]] = []


class EvictIdle(FleetMessage, frozen=True):
    """Asks the primary to evict an idle session of a tenant, or of any for None: a call of a front waits for memory."""

    tenant: int | None


class Evicted(FleetMessage, frozen=True):
    """Whether a session has left memory."""

    found: bool


class Settle(FleetMessage, frozen=True):
    """Asks a front for an answer, behind everything that it has reported before."""


class AskMetrics(FleetMessage, frozen=True):
    """Asks a front for its metrics."""


class TakenMetrics(FleetMessage, frozen=True):
    """The metrics of one process, by family: values of counters and gauges, counts of histograms."""

    values: dict[str, list[LabelledValue]]
    histograms: dict[str, list[LabelledCounts]]


class Leaving(FleetMessage, frozen=True):
    """A front's last message: it calls no function any more. Its metrics, as of `TakenMetrics`."""

    metrics: TakenMetrics


AnyMessage = (
    Hello | Leaving | Done | Failed | FrontReport | Changed | EvictIdle | Evicted | Settle | AskMetrics | TakenMetrics
)
