"""Records of the audit log, and its notices about itself, as JSON. Parts that many records share are encoded once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from tensorwasm.tenancy.principal import Principal

MAX_BODY_BYTES: Final = 16 << 10
"""Longest record; a longer one is written without what the client chose."""

_encode = msgspec.json.Encoder().encode


class AuditRecord(msgspec.Struct, frozen=True, gc=False):
    """One call that changes something, or one that was refused for its credentials.

    Attributes:
        ts_unix_ms: when its reply was sent.
        actor: from `actor_of`; None for an unknown one.
        resource: the object of the action, such as ``function_id`` and ``tenant_id``.
        outcome: from `outcome_of`.
        latency_ms: from the request's head to its reply.
    """

    ts_unix_ms: int
    request_id: str
    actor: msgspec.Raw | None
    action: str
    resource: dict[str, Any]
    outcome: msgspec.Raw
    latency_ms: float
    peer_addr: str | None = None
    client_cert_subject: str | None = None


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the log about itself.

    Attributes:
        notice: ``opened``: a file begins; ``resumed``: a process continues one; ``torn``: an incomplete last line was
            removed; ``cut``: flushed lines are missing; ``dropped``: records were lost because the log could not keep
            up; ``suppressed``: refusals of credentials were only counted; ``removed``: the oldest file was deleted.
        count: of bytes for ``torn``, else of lines.
    """

    ts_unix_ms: int
    notice: str
    count: int = 0
    last_seq: int = 0
    last_hash: str = ""


decode_notice: Final = msgspec.json.Decoder(Notice).decode

_actors: dict[str, tuple[Principal, msgspec.Raw]] = {}
_MAX_ACTORS: Final = 4096


def actor_of(principal: Principal) -> msgspec.Raw:
    """Return a principal as it is recorded, from a cache if possible."""
    known = _actors.get(principal.id)
    if known is not None and known[0] is principal:
        return known[1]
    dev = principal.kind == "dev"
    kind = "dev" if dev else "wildcard" if principal.tenants is None else "tenant_set"
    scope = {"kind": kind, "tenants": sorted(principal.tenants or ())}
    actor = {"kind": principal.kind, "token_id": None if dev else principal.id, "scope": scope}
    if len(_actors) >= _MAX_ACTORS:
        _actors.clear()
    raw = msgspec.Raw(_encode(actor))
    _actors[principal.id] = (principal, raw)
    return raw


@lru_cache(1024)
def outcome_of(status_code: int, error_kind: str | None = None) -> msgspec.Raw:
    """Return an outcome as it is recorded, from a cache if possible."""
    outcome: dict[str, object] = {"status_code": status_code}
    return msgspec.Raw(_encode(outcome if error_kind is None else outcome | {"error_kind": error_kind}))


class RecordFrame:
    """The parts that records of one call share, made again and again by one client, encoded once.

    Attributes:
        principal: the actor.
        tenant: of the resource.
    """

    __slots__ = ("_shared", "principal", "tenant")

    def __init__(self, principal: Principal, tenant: int, action: str, resource: dict[str, str], status: int) -> None:
        """Take what an `AuditRecord` has of a call that succeeds; the resource is without its tenant."""
        self.principal, self.tenant = principal, tenant
        shared = {"action": action, "resource": {"tenant_id": tenant, **resource}, "outcome": outcome_of(status)}
        self._shared = b',"actor":%b,%b,"latency_ms":' % (bytes(actor_of(principal)), _encode(shared)[1:-1])

    def encode(self, ts_unix_ms: int, request_id: str, latency_ms: float, peer_addr: str) -> bytes:
        """Return the record of a request as `encode` does, in half of the time; the certificate is none."""
        fields = ts_unix_ms, request_id.encode("ascii"), self._shared, latency_ms, _encode(peer_addr)
        return b'{"ts_unix_ms":%d,"request_id":"%b"%b%r,"peer_addr":%b,"client_cert_subject":null}' % fields


def encode(record: AuditRecord | Notice | bytes) -> bytes:
    """Return a record as a JSON object, without what the client chose if it is too long or cannot be encoded.

    Bytes are one already.
    """
    if isinstance(record, bytes):
        return record
    try:
        body = _encode(record)
    except (UnicodeError, TypeError, ValueError, OverflowError):
        body = b""
    if (body and len(body) <= MAX_BODY_BYTES) or isinstance(record, Notice):
        return body
    spare = AuditRecord(
        record.ts_unix_ms,
        _ascii(record.request_id),
        record.actor if record.actor is not None and len(bytes(record.actor)) <= MAX_BODY_BYTES // 2 else None,
        _ascii(record.action),
        {"omitted": True},
        record.outcome,
        record.latency_ms,
    )
    return _encode(spare)


def _ascii(text: str) -> str:
    return text[:256].encode("ascii", "backslashreplace").decode()
