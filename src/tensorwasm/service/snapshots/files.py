"""Snapshots as files that come and go over the wire: sealed for a tenant, opened for a tenant, and for no other."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from tensorwasm.artifacts.keys import KeyRing
from tensorwasm.artifacts.private_files import map_scratch, scratch
from tensorwasm.artifacts.sealed.header import HEADER_BYTES, VERSION, Header, read_header
from tensorwasm.artifacts.sealed.writer import DEFAULT
from tensorwasm.artifacts.snapshot.file import renew_snapshot
from tensorwasm.artifacts.store import ContentStore, TenantView
from tensorwasm.errors import (
    ArtifactCorrupt,
    ArtifactNotFound,
    InvalidSnapshot,
    SealRefused,
    SignatureInvalid,
    TooLarge,
    UnknownKey,
)
from tensorwasm.runtime.snapshots import archive, stored
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.service.sessions.instances import Live
from tensorwasm.service.snapshot_keys import SnapshotKeys, key_missing
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from tensorwasm.runtime.snapshots.live import LiveInstance

MAX_CONTENT_BYTES: Final = 256 * MIB
"""Longest content of a file that somebody brings: what it comes to uncompressed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedSnapshot:
    """A file that was verified, read into memory; close the snapshot when done.

    Attributes:
        snapshot: what instances are restored from.
        module_hash: of the module that it is of, 32 bytes.
        content_bytes: what its content comes to uncompressed.
        version: of the format.
    """

    snapshot: Snapshot = field(repr=False)
    module_hash: bytes
    content_bytes: int
    version: int = VERSION


class Files:
    """Seals and opens files. Any thread may use it; every method blocks.

    Args:
        store: where saves are.
        seals: what signs them.
        max_content_bytes: longest content of a file that somebody brings.
    """

    def __init__(self, store: ContentStore, seals: SnapshotKeys, max_content_bytes: int = MAX_CONTENT_BYTES) -> None:
        """Take all of it; store and seals outlive it."""
        self._store = store
        self._seals = seals
        self._max_content_bytes = max_content_bytes

    def fetch(self, tenant: int, name: str, client_key: bytes = b"") -> memoryview:
        """Return the file that a name leads to, signed with a client's key as well if there is one.

        Raises:
            SnapshotKeyMissing: it is under a key that is not here.
            ArtifactCorrupt: it is gone or damaged.
            StoreUnavailable: the store cannot be reached.
        """
        try:
            data = stored.fetch(TenantView(self._store, str(tenant)), name).files[0]
            return self._sign_again(tenant, data, client_key) if client_key else data
        except UnknownKey as error:
            raise key_missing(error) from error
        except (ArtifactNotFound, SealRefused, InvalidSnapshot) as error:
            raise ArtifactCorrupt(f"the saved state cannot be read: {error.kind}") from error

    def reopen(self, tenant: int, data: memoryview) -> OpenedSnapshot:
        """Verify a file that `fetch` returned, and read it.

        Raises:
            SnapshotKeyMissing: it is under a key that is not here.
            ArtifactCorrupt: it is damaged.
            TooLarge: it has more content than may be brought.
            CapacityExhausted: the system has no memory for it.
        """
        ring = self._seals.ring(tenant)
        try:
            return self._read(data, read_header(bytes(data[:HEADER_BYTES]), ring), ring)
        except UnknownKey as error:
            raise key_missing(error) from error
        except (SealRefused, InvalidSnapshot) as error:
            raise ArtifactCorrupt(f"the saved state cannot be read: {error.kind}") from error

    def seal(self, tenant: int, live: Live, client_key: bytes = b"") -> memoryview:
        """Return an instance as a file, which stays until nobody has the view.

        Raises:
            NotCapturable: it holds what cannot be saved.
            StoreUnavailable: there is no room for a file.
        """
        ring = self._seals.ring(tenant, client_key)
        with scratch() as file:
            archive.write_live(cast("LiveInstance", live), file, ring, (), DEFAULT, None)
            return map_scratch(file)

    def open(self, tenant: int, data: memoryview, client_key: bytes = b"") -> OpenedSnapshot:
        """Verify a file that somebody brought, and read it.

        Whatever is wrong with it is one error: what is wrong is the log's to know.

        Raises:
            SignatureInvalid: this service did not sign it for this tenant, with this client's key, or it is damaged.
            TooLarge: it is signed, and has more content than may be brought.
            CapacityExhausted: the system has no memory for it.
        """
        ring = self._seals.ring(tenant, client_key)
        try:
            return self._read(data, read_header(bytes(data[:HEADER_BYTES]), ring), ring)
        except (SealRefused, InvalidSnapshot) as error:
            _log.warning("a snapshot that tenant %d brought is refused: %s: %s", tenant, error.kind, error.message)
            raise SignatureInvalid("this is no snapshot that was signed here for this tenant, or not whole") from None

    def _read(self, data: memoryview, header: Header, ring: KeyRing) -> OpenedSnapshot:
        if header.content_bytes > self._max_content_bytes:
            raise TooLarge(header.content_bytes, self._max_content_bytes)
        with archive.open_file(data, ring, (), header.module_hash) as file:
            if file.instance.parent is not None:
                raise InvalidSnapshot("it adds to another one")
        return OpenedSnapshot(archive.read_file(data, ring), header.module_hash, header.content_bytes)

    def _sign_again(self, tenant: int, data: memoryview, client_key: bytes) -> memoryview:
        mine, theirs = self._seals.ring(tenant), self._seals.ring(tenant, client_key)
        both = KeyRing.of(theirs.require_signer(), mine.require_signer(), ciphers=mine.ciphers.values())
        renewed = renew_snapshot(data, both)
        return data if renewed is None else renewed
