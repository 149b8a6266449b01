"""The interface of a storage backend: catalogs that are exchanged atomically, and bytes under keys.

A backend knows nothing of kinds, hashes, references or quotas. Its keys are ours; a tenant is untrusted text.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

from tensorwasm.artifacts.values import Buffer

Version: TypeAlias = bytes | str | None
"""Version of a catalog; None where there is none yet."""


@dataclass(frozen=True, slots=True)
class StoredCatalog:
    """A catalog as it is stored, with the version by which to exchange it.

    Without data (None) there is no catalog yet; empty data is damage.
    """

    version: Version
    data: bytes | None


NOTHING: Final = StoredCatalog(None, None)


class Backend(Protocol):
    """A storage backend. All methods may block, and are called from any thread; several processes may share it.

    Every method raises `StoreUnavailable` where the storage does not answer, refuses or is full.
    """

    @property
    def origin(self) -> Backend:
        """The backend that holds the originals: itself, unless it is a cache in front of another."""
        return self

    def tenants(self) -> Iterable[str]:
        """Return the tenants that have a catalog."""

    def load(self, tenant: str, known: Version) -> StoredCatalog | None:
        """Return a tenant's catalog, None if it still is the known one."""

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """Replace the known catalog durably and return the new version; None if another was there.

        After `StoreUnavailable` either may be there.
        """

    def write(self, tenant: str, key: str, data: Buffer) -> AbstractContextManager[None]:
        """Keep bytes durably under a new key.

        Until the context ends they are no leftover, whatever the catalog says. They stay if it ends with an error.
        """

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """Return the bytes under a key, None if there are none. They never change; they may be a mapping.

        If their length is not ``stored_bytes``, other bytes are returned, and no more than ``stored_bytes`` are read.
        """

    def used_ns(self, tenant: str, key: str) -> int | None:
        """Return when the bytes were last read, None where that is not recorded."""

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """Delete bytes; missing keys are no error."""

    def quarantine(self, tenant: str, key: str) -> None:
        """Move damaged bytes out of the way, and keep them for examination until `clear_quarantine`."""

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """Return the keys that no writer holds: those that are in no catalog loaded later are garbage."""

    def clear_quarantine(self, tenant: str, before_ns: int) -> int:
        """Delete what was quarantined before that time, and return how many items that was."""


_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


@lru_cache(1024)
def folder_of(tenant: str) -> str:
    """Return a tenant's name as part of a path, made of ``a-z``, ``0-9``, ``-`` and ``_``; it is unique."""
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"_{byte:02x}" for byte in tenant.encode())


def tenant_of(folder: str) -> str | None:
    """Return the tenant whose folder it is; None if it is no tenant's."""
    head, *parts = folder.split("_")
    try:
        tail = (bytes.fromhex(part[:2]) + part[2:].encode() for part in parts)
        tenant = b"".join((head.encode(), *tail)).decode()
    except ValueError:
        tenant = ""
    return tenant if tenant and folder_of(tenant) == folder else None
