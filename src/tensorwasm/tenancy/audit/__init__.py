"""The audit log: who changed what, as lines of JSON chained by hashes, so that what is missing or changed shows.

How a server uses it, at the end of each request whose route has an action, and of each that is refused with 401::

    audit = open_audit(settings, data)
    audit.append(
        AuditRecord(
            now_unix_ms, request_id, actor_of(principal), route.action, {"function_id": id, "tenant_id": tenant},
            outcome_of(status, error_kind), latency_ms, peer, certificate_subject,
        )
    )
    await asyncio.to_thread(audit.close)      # at the end; `audit.reopen()` when SIGHUP says that the file was moved

Bodies, results and credentials have no place in a record.
"""

from tensorwasm.tenancy.audit.log import AuditLog, AuditStatistics, log_path, open_audit
from tensorwasm.tenancy.audit.record import AuditRecord, actor_of, outcome_of
from tensorwasm.tenancy.audit.rotation import log_files
from tensorwasm.tenancy.audit.verification import Finding, Verification, verify

__all__ = [
    "AuditLog",
    "AuditRecord",
    "AuditStatistics",
    "Finding",
    "Verification",
    "actor_of",
    "log_files",
    "log_path",
    "open_audit",
    "outcome_of",
    "verify",
]
