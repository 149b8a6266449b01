"""The port of a place where artifacts are kept: catalogs that are exchanged atomically, and bytes under keys.

A place knows nothing of kinds, hashes, references or quotas. Its keys are ours; a tenant is untrusted text.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tensorwasm.artifacts.store import Buffer

Version: TypeAlias = bytes | str | None
"""Which catalog it is; None where there is none yet."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A catalog as it lies there.

    Attributes:
        version: by which to exchange it.
        data: its bytes, None if there is none yet; no bytes at all are damage.
    """

    version: Version
    data: bytes | None


NOTHING: Final = Loaded(None, None)


class Backend(Protocol):
    """A place. All methods may block, and are called from any thread; several processes may use the same place.

    Every method raises `StoreUnavailable` where the place does not answer, refuses or is full.
    """

    @property
    def truth(self) -> Backend:
        """The place that counts: itself, unless there are copies in front of another."""
        ...

    def tenants(self) -> Iterable[str]:
        """Return whoever has a catalog."""
        ...

    def load(self, tenant: str, known: Version) -> Loaded | None:
        """Return a tenant's catalog, None if it is the known one still."""
        ...

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """Put a catalog in the place of the known one, durably, and return its version; None if that was not there.

        After `StoreUnavailable` either may be there.
        """
        ...

    def write(self, tenant: str, key: str, data: Buffer) -> AbstractContextManager[None]:
        """Keep some bytes, durably, under a key that nobody has used.

        Until the context ends they are no leftover, whatever the catalog says. They stay when it ends with an error.
        """
        ...

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """Return the bytes under a key, None if there are none. They never change; they may be a mapping.

        If they are not as many as were written, what is returned is not they, and nothing is read for its length.
        """
        ...

    def used_ns(self, tenant: str, key: str) -> int | None:
        """Return when they were last read, None where that is not recorded."""
        ...

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """Take bytes away; keys that are not there are no mistake."""
        ...

    def set_aside(self, tenant: str, key: str) -> None:
        """Take damaged bytes out of the way, and keep them for a while where somebody could look at them."""
        ...

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """Return keys that no writer holds: those that no catalog read later tells of are garbage."""
        ...

    def clear_aside(self, tenant: str, before_ns: int) -> int:
        """Take away what was set aside before then, and return how much that was."""
        ...


_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def folder_of(tenant: str) -> str:
    """Return a tenant's name as part of a path: of ``a-z``, ``0-9``, ``-`` and ``_``; no two tenants have the same."""
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"_{byte:02x}" for byte in tenant.encode())


def tenant_of(folder: str) -> str | None:
    """Return the tenant whose folder it is, None if it is nobody's."""
    head, *parts = folder.split("_")
    try:
        tail = (bytes.fromhex(part[:2]) + part[2:].encode() for part in parts)
        tenant = b"".join((head.encode(), *tail)).decode()
    except ValueError:
        return None
    return tenant if tenant and folder_of(tenant) == folder else None
