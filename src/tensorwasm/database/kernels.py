"""Kernels that were published, with their text. They belong to nobody in particular."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from tensorwasm.database.schema import KERNELS


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """What was signed of a kernel, and its text. It never changes.

    Attributes:
        name: with the version, what it is known by.
        version: likewise.
        sm_version: compute capability that it was written for, 90 for 9.0.
        digest: BLAKE3 of the text as UTF-8, 32 bytes.
        signature: 32 bytes.
        publisher: who says that they made it.
        published_unix_ms: when, as they say.
        ptx: the text; empty in lists.
    """

    name: str
    version: str
    sm_version: int
    digest: bytes
    signature: bytes
    publisher: str
    published_unix_ms: int
    ptx: str = field(default="", repr=False)


_MANIFEST = tuple(column for column in KERNELS.c if column.name != "ptx")


def insert_kernel(connection: Connection, record: KernelRecord) -> bool:
    """Add a kernel; return False, and change nothing, if there is one of that name and version."""
    here = select(KERNELS.c.name).where(KERNELS.c.name == record.name, KERNELS.c.version == record.version)
    if connection.execute(here).first() is not None:
        return False
    connection.execute(
        insert(KERNELS).values(
            name=record.name,
            version=record.version,
            sm_version=record.sm_version,
            digest=record.digest,
            signature=record.signature,
            publisher=record.publisher,
            published_unix_ms=record.published_unix_ms,
            ptx=record.ptx,
        )
    )
    return True


def find_kernel(connection: Connection, name: str, version: str) -> KernelRecord | None:
    """Return a kernel with its text, None if there is none."""
    query = select(KERNELS).where(KERNELS.c.name == name, KERNELS.c.version == version)
    found = connection.execute(query).first()
    return None if found is None else _kernel(found, found.ptx)


def list_kernels(connection: Connection, offset: int, limit: int) -> tuple[KernelRecord, ...]:
    """Return kernels without their texts, by name and version."""
    query = select(*_MANIFEST).order_by(KERNELS.c.name, KERNELS.c.version).offset(offset).limit(limit)
    return tuple(_kernel(row, "") for row in connection.execute(query))


def _kernel(row: Row[Any], ptx: str) -> KernelRecord:
    return KernelRecord(
        name=row.name,
        version=row.version,
        sm_version=row.sm_version,
        digest=bytes(row.digest),
        signature=bytes(row.signature),
        publisher=row.publisher,
        published_unix_ms=row.published_unix_ms,
        ptx=ptx,
    )
