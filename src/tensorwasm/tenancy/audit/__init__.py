"""The audit log: who changed what, as JSON lines chained by hashes, so that missing and changed lines are detected.

A server writes a record at the end of each request whose route has an action, and of each one refused with 401. Records
contain no bodies, results or credentials.
"""

from tensorwasm.tenancy.audit.chain import AuditFinding, AuditVerification, verify
from tensorwasm.tenancy.audit.log import AuditLog, AuditStatistics, log_path, open_audit
from tensorwasm.tenancy.audit.records import AuditRecord, RecordFrame, actor_of, encode, outcome_of
from tensorwasm.tenancy.audit.sinks import log_files

__all__ = [
    "AuditFinding",
    "AuditLog",
    "AuditRecord",
    "AuditStatistics",
    "AuditVerification",
    "RecordFrame",
    "actor_of",
    "encode",
    "log_files",
    "log_path",
    "open_audit",
    "outcome_of",
    "verify",
]
