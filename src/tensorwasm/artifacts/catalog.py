"""What one tenant keeps, as one value: its artifacts, their references, its names. Every rule of the store is here.

A store changes nothing but catalogs: it reads one, makes the next, and exchanges the first for it if no other change
was made meanwhile. Bytes are written before the catalog that contains them and erased after the one that did. So a
process that dies at any moment leaves the old state or the new one, and quotas are exact wherever a catalog can be
exchanged atomically.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from tensorwasm.artifacts.hashing import HASH_BYTES, blake3
from tensorwasm.artifacts.values import Digest, Quota, TenantUsage
from tensorwasm.errors import ArtifactCorrupt, ArtifactInUse, ArtifactNotFound, InvalidArgs, QuotaExceeded

MAGIC: Final = b"TWCATLG1"
VERSION_BYTES: Final = 16
HEAD_BYTES: Final = len(MAGIC) + VERSION_BYTES + HASH_BYTES
MAX_BYTES: Final = 256 << 20
"""Of a catalog: over a million artifacts, far beyond what is quick to exchange as one."""

_Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}-[0-9a-f]{16}\Z")]  # it becomes part of a path


class CatalogEntry(msgspec.Struct, frozen=True, array_like=True):
    """An artifact in a catalog.

    Attributes:
        blob: key of its bytes; each put has its own, so that no put erases another's bytes.
        made_ns: when it was last put; nanoseconds since 1970.
        refers_to: the artifacts it needs.
    """

    kind: str
    size_bytes: _Size
    stored_bytes: _Size
    encoding: str
    blob: _Key
    made_ns: _Size
    refers_to: tuple[_Hash, ...]

    def same_as(self, other: CatalogEntry) -> bool:
        """Whether both describe the same artifact."""
        return (self.kind, self.size_bytes, self.refers_to) == (other.kind, other.size_bytes, other.refers_to)

    def renewed(self, made_ns: int) -> CatalogEntry:
        """Return the entry as if put at that time; never older than it was, in case a clock was set back."""
        return msgspec.structs.replace(self, made_ns=max(made_ns, self.made_ns))


class TenantCatalog(msgspec.Struct, frozen=True, array_like=True):
    """A tenant's artifacts by hash, and its names. It is immutable: a change returns another catalog.

    `ArtifactNotFound` says that an artifact or a name is not there.
    """

    artifacts: dict[_Hash, CatalogEntry] = {}
    names: dict[str, _Hash] = {}

    def find(self, digest: Digest) -> CatalogEntry:
        """Return an artifact."""
        if digest not in self.artifacts:
            raise ArtifactNotFound(f"no artifact {bytes(digest).hex()[:64]}")
        return self.artifacts[digest]

    def resolve(self, name: str) -> Digest:
        """Return the artifact that a name refers to."""
        if name not in self.names:
            raise ArtifactNotFound(f"no artifact is called {name[:64]!r}")
        return self.names[name]

    def usage(self) -> TenantUsage:
        """Return what is kept."""
        total = sum(entry.size_bytes for entry in self.artifacts.values())
        return TenantUsage(total, len(self.artifacts), len(self.names))

    def adding(self, digest: Digest, entry: CatalogEntry, quota: Quota) -> TenantCatalog:
        """Return the catalog with an artifact added, or with this entry for one that is there already.

        Raises:
            InvalidArgs: it is there as something else.
            QuotaExceeded: there is no room for it.
        """
        if there := self.artifacts.get(digest):
            if not there.same_as(entry):
                raise InvalidArgs(f"these bytes are kept already, as a {there.kind} or with other references")
        else:
            for other in entry.refers_to:
                self.find(other)
            used = self.usage()
            if used.count >= quota.count:
                raise QuotaExceeded(f"{used.count} artifacts are kept: at most {quota.count}")
            if used.artifact_bytes + entry.size_bytes > quota.artifact_bytes:
                raise QuotaExceeded(
                    f"{used.artifact_bytes} bytes are kept and {entry.size_bytes} more asked for: "
                    f"at most {quota.artifact_bytes}"
                )
        return TenantCatalog({**self.artifacts, digest: entry}, self.names)

    def removing(self, digest: Digest) -> TenantCatalog:
        """Return the catalog without an artifact; ArtifactInUse if a name or another artifact refers to it."""
        self.find(digest)
        if digest in self.names.values():
            raise ArtifactInUse("a name refers to this artifact")
        if any(digest in entry.refers_to for entry in self.artifacts.values()):
            raise ArtifactInUse("another artifact refers to this one")
        return self._without({digest})

    def binding(self, name: str, digest: Digest, quota: Quota) -> TenantCatalog:
        """Return the catalog with a name that refers to an artifact; QuotaExceeded if there is no room for another."""
        self.find(digest)
        if name not in self.names and len(self.names) >= quota.count:
            raise QuotaExceeded(f"{len(self.names)} names are kept: at most {quota.count}")
        return TenantCatalog(self.artifacts, {**self.names, name: digest})

    def unbinding(self, name: str) -> TenantCatalog:
        """Return the catalog without a name."""
        self.resolve(name)
        return TenantCatalog(self.artifacts, {other: digest for other, digest in self.names.items() if other != name})

    def replacing(self, old: Digest, new: Digest, entry: CatalogEntry) -> TenantCatalog:
        """Return the catalog with one artifact in the place of another, for names and references too.

        InvalidArgs if the new one is there already, as something else.
        """
        entry = msgspec.structs.replace(entry, refers_to=self.find(old).refers_to)
        if (there := self.artifacts.get(new)) and not there.same_as(entry):
            raise InvalidArgs("the new bytes are kept already, as another kind or with other references")
        moved = {
            digest: msgspec.structs.replace(other, refers_to=tuple(new if d == old else d for d in other.refers_to))
            if old in other.refers_to
            else other
            for digest, other in self.artifacts.items()
            if digest != old
        }
        names = {name: new if digest == old else digest for name, digest in self.names.items()}
        return TenantCatalog({**moved, new: entry}, names)

    def reached(self, roots: Iterable[Digest]) -> set[Digest]:
        """Return the existing artifacts among the roots and all that they refer to."""
        found: set[Digest] = set()
        waiting = list(roots)
        while waiting:
            digest = waiting.pop()
            if digest in self.artifacts and digest not in found:
                found.add(digest)
                waiting.extend(self.artifacts[digest].refers_to)
        return found

    def sweeping(self, before_ns: int) -> TenantCatalog:
        """Return the catalog without what was last put before that time and no name and no younger artifact needs."""
        young = [digest for digest, entry in self.artifacts.items() if entry.made_ns >= before_ns]
        garbage = self.artifacts.keys() - self.reached((*self.names.values(), *young))
        return self._without(garbage) if garbage else self

    def _without(self, digests: set[Digest]) -> TenantCatalog:
        return TenantCatalog({d: entry for d, entry in self.artifacts.items() if d not in digests}, self.names)


EMPTY: Final = TenantCatalog()
_decode = msgspec.msgpack.Decoder(TenantCatalog).decode


def blobs_gone(before: TenantCatalog, after: TenantCatalog) -> tuple[str, ...]:
    """Return the keys that only the first catalog has."""
    kept = {entry.blob for entry in after.artifacts.values()}
    return tuple(entry.blob for entry in before.artifacts.values() if entry.blob not in kept)


def encode(catalog: TenantCatalog, version: bytes) -> bytes:
    """Return a catalog's bytes under a version: 16 bytes that no other catalog has."""
    body = msgspec.msgpack.encode(catalog)
    return _head(version, body) + body


def _head(version: bytes, body: bytes | memoryview) -> bytes:
    return b"".join((MAGIC, version, blake3(b"".join((version, body)))))


def version_of(data: bytes | memoryview) -> bytes:
    """Return the version of a catalog's bytes; of other bytes, one that no catalog has."""
    return bytes(data[len(MAGIC) : len(MAGIC) + VERSION_BYTES]) if bytes(data[: len(MAGIC)]) == MAGIC else b""


def decode(data: bytes | None) -> TenantCatalog:
    """Return the catalog that some bytes are, None an empty one; ArtifactCorrupt if they are damaged."""
    if data is None:
        return EMPTY
    view = memoryview(data)
    body = view[HEAD_BYTES:]
    if bytes(view[:HEAD_BYTES]) != _head(version_of(view), body):
        raise ArtifactCorrupt("the catalog of a tenant's artifacts is damaged")
    try:
        return _decode(body)
    except msgspec.MsgspecError:
        raise ArtifactCorrupt("the catalog of a tenant's artifacts is none of this version") from None
