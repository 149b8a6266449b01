"""Usage in JSON."""

from __future__ import annotations

import msgspec

from tensorwasm.database.usage import UsageAmounts
from tensorwasm.server.wire.functions import Millis
from tensorwasm.service.usage import UsageReport


class AmountsBody(msgspec.Struct):
    """What was used.

    Attributes:
        requests: calls of functions that ended.
        errors: those of them that failed.
        cpu_us: microseconds that guests ran.
        gpu_us: microseconds that guests ran that launched kernels.
        launches: of kernels.
        bytes_in: that guests were given.
        bytes_out: that guests gave.
    """

    requests: int
    errors: int
    cpu_us: int
    gpu_us: int
    launches: int
    bytes_in: int
    bytes_out: int

    @classmethod
    def of(cls, used: UsageAmounts) -> AmountsBody:
        """Return the service's."""
        return cls(used.requests, used.errors, used.cpu_us, used.gpu_us, used.launches, used.bytes_in, used.bytes_out)


class HourBody(msgspec.Struct):
    """What was used in an hour.

    Attributes:
        hour_unix_ms: when it began.
        used: in it.
    """

    hour_unix_ms: Millis
    used: AmountsBody


class QuotaBody(msgspec.Struct):
    """A quota.

    Attributes:
        used: what of it is held now, or was used up within an hour, in this server.
        limit: the most; null without one.
    """

    used: int
    limit: int | None


class UsageBody(msgspec.Struct):
    """What a tenant used.

    Attributes:
        tenant_id: who.
        since_unix_ms: from the beginning of this hour.
        until_unix_ms: to the beginning of this one.
        hours: those in which anything was used, in order.
        total: of all of them.
        quotas: what there is of each now, by name.
    """

    tenant_id: int
    since_unix_ms: Millis
    until_unix_ms: Millis
    hours: list[HourBody]
    total: AmountsBody
    quotas: dict[str, QuotaBody]

    @classmethod
    def of(cls, report: UsageReport, quotas: dict[str, QuotaBody]) -> UsageBody:
        """Return the service's."""
        hours = [HourBody(hour, AmountsBody.of(used)) for hour, used in report.hours]
        return cls(
            report.tenant, report.since_unix_ms, report.until_unix_ms, hours, AmountsBody.of(report.total), quotas
        )
