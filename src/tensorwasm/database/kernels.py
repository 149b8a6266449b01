"""Published kernels with their PTX text. They belong to no tenant."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection, insert, select

from tensorwasm.database.schema import KERNELS, decode, encode, find


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """The signed manifest of a kernel, unique by name and version, and its text; immutable.

    ``sm_version`` is 90 for compute capability 9.0, ``digest`` the BLAKE3 of the text as UTF-8, 32 bytes; the text
    ``ptx`` is empty in lists.
    """

    name: str
    version: str
    sm_version: int
    digest: bytes
    signature: bytes
    publisher: str
    published_unix_ms: int
    ptx: str = field(default="", repr=False)


def insert_kernel(connection: Connection, record: KernelRecord) -> bool:
    """Add a kernel; return False, and change nothing, if there is one of that name and version."""
    here = select(KERNELS.c.name).where(KERNELS.c.name == record.name, KERNELS.c.version == record.version)
    if connection.execute(here).first() is not None:
        return False
    connection.execute(insert(KERNELS).values(encode(record)))
    return True


def find_kernel(connection: Connection, name: str, version: str) -> KernelRecord | None:
    """Return a kernel with its text; None if there is none."""
    query = select(KERNELS).where(KERNELS.c.name == name, KERNELS.c.version == version)
    return find(connection, query, lambda row: decode(KernelRecord, row))


def list_kernels(connection: Connection, offset: int, limit: int) -> tuple[KernelRecord, ...]:
    """Return kernels without their texts, by name and version."""
    manifest = [column for column in KERNELS.c if column.name != "ptx"]
    query = select(*manifest).order_by(KERNELS.c.name, KERNELS.c.version).offset(offset).limit(limit)
    return tuple(decode(KernelRecord, row, ptx="") for row in connection.execute(query))
