"""Snapshots in JSON."""

from __future__ import annotations

from typing import Final

import msgspec

from tensorwasm.database.snapshots import SnapshotRecord
from tensorwasm.server.wire.functions import Millis
from tensorwasm.server.wire.output import Bytes64
from tensorwasm.service.snapshots.snapshots import Restored

_LOW_BITS: Final = (1 << 53) - 1
"""What every client reads exactly: JavaScript's numbers are doubles."""


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A request that says all there is in its path and head."""


class SnapshotBody(msgspec.Struct):
    """A snapshot that is kept.

    Attributes:
        id: UUID.
        tenant_id: whose it is.
        function_id: what was saved.
        version: of the function.
        session_id: which session was saved, whether or not it is there still.
        content_hash: BLAKE3 of the state, 64 hex digits.
        size_bytes: length of the file.
        created_unix_ms: when it was saved.
    """

    id: str
    tenant_id: int
    function_id: str
    version: int
    session_id: str | None
    content_hash: str
    size_bytes: int
    created_unix_ms: Millis

    @classmethod
    def of(cls, record: SnapshotRecord) -> SnapshotBody:
        """Return the service's."""
        return cls(
            record.id,
            record.tenant,
            record.function_id,
            record.version,
            record.session_id,
            record.content_hash.hex(),
            record.size_bytes,
            record.created_unix_ms,
        )


class SnapshotPage(msgspec.Struct):
    """Some snapshots, oldest first.

    Attributes:
        snapshots: them.
        next: what `after` is to be for those that follow; null if there are none.
    """

    snapshots: list[SnapshotBody]
    next: str | None


class CaptureSnapshot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is to be saved and handed out: a session, or a new instance of a function.

    Attributes:
        function_id: the function's ID, or `ID@VERSION` or `ID@ALIAS`; not needed for a session.
        session_id: the session; without, a new instance once its start function has run.
    """

    function_id: str | None = None
    session_id: str | None = None


class CapturedSnapshot(msgspec.Struct):
    """A snapshot that is handed out.

    Attributes:
        function_id: what it is of.
        snapshot_b64: the file.
        signed: always true.
    """

    function_id: str
    snapshot_b64: Bytes64
    signed: bool = True


class RestoreSnapshot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A snapshot that is brought.

    Attributes:
        snapshot_b64: the file.
        function_id: which function it goes on in; without, the newest of the tenant's with its module.
    """

    snapshot_b64: Bytes64
    function_id: str | None = None


class RestoredSnapshot(msgspec.Struct):
    """A session that goes on where a snapshot was.

    Attributes:
        tenant_id: whose it is.
        instance_id: ID of the session.
        instance_number: the low 53 bits of that ID.
        function_id: what it runs.
        total_uncompressed_bytes: what the file came to.
        version: of its format.
    """

    tenant_id: int
    instance_id: str
    instance_number: int
    function_id: str
    total_uncompressed_bytes: int
    version: int

    @classmethod
    def of(cls, restored: Restored) -> RestoredSnapshot:
        """Return the service's."""
        record = restored.session.record
        number = int(record.id.replace("-", ""), 16) & _LOW_BITS
        return cls(record.tenant, record.id, number, record.function_id, restored.content_bytes, restored.version)
