"""What one tenant keeps, as one value: its artifacts, their references, its names. Every rule of the store is here.

A store changes nothing but catalogs: it reads one, makes the next, and puts that in the place of the first if nobody
else did meanwhile. Bytes are written before the catalog that tells of them and erased after the one that did. So
whoever dies at whatever moment leaves the old state or the new one, and quotas are exact wherever a catalog can be
exchanged atomically.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from tensorwasm.artifacts.hashing import HASH_BYTES, blake3
from tensorwasm.artifacts.store import Digest, Quota, Usage
from tensorwasm.errors import ArtifactCorrupt, ArtifactInUse, ArtifactNotFound, InvalidArgs, QuotaExceeded

MAGIC: Final = b"TWCATLG1"
VERSION_BYTES: Final = 16
HEAD_BYTES: Final = len(MAGIC) + VERSION_BYTES + HASH_BYTES
MAX_BYTES: Final = 256 << 20
"""Of a catalog: over a million artifacts, far beyond what is quick to exchange as one."""

_Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}-[0-9a-f]{16}\Z")]  # it becomes part of a path


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An artifact as a catalog tells of it.

    Attributes:
        kind: its kind.
        size_bytes: its length.
        stored_bytes: length of what is kept of it.
        encoding: how that is packed.
        blob: key of what is kept; no two puts have the same, so that nobody erases another's.
        made_ns: when it was put, for the last time; nanoseconds since 1970.
        refers_to: the artifacts it needs.
    """

    kind: str
    size_bytes: _Size
    stored_bytes: _Size
    encoding: str
    blob: _Key
    made_ns: _Size
    refers_to: tuple[_Hash, ...]

    def same_as(self, other: Entry) -> bool:
        """Whether both tell of the same artifact."""
        return (self.kind, self.size_bytes, self.refers_to) == (other.kind, other.size_bytes, other.refers_to)


class Catalog(msgspec.Struct, frozen=True, array_like=True):
    """A tenant's artifacts by hash, and its names. A value: what changes it returns another."""

    artifacts: dict[_Hash, Entry] = {}
    names: dict[str, _Hash] = {}

    def find(self, digest: Digest) -> Entry:
        """Return an artifact.

        Raises:
            ArtifactNotFound: there is none.
        """
        if digest not in self.artifacts:
            raise ArtifactNotFound(f"no artifact {bytes(digest).hex()[:64]}")
        return self.artifacts[digest]

    def resolve(self, name: str) -> Digest:
        """Return what a name leads to.

        Raises:
            ArtifactNotFound: there is no such name.
        """
        if name not in self.names:
            raise ArtifactNotFound(f"no artifact is called {name[:64]!r}")
        return self.names[name]

    def usage(self) -> Usage:
        """Return what is kept."""
        total = sum(entry.size_bytes for entry in self.artifacts.values())
        return Usage(total, len(self.artifacts), len(self.names))

    def adding(self, digest: Digest, entry: Entry, quota: Quota) -> Catalog:
        """Return the catalog with an artifact, or with one that is there already made new and kept under this key.

        Raises:
            InvalidArgs: it is there as something else.
            ArtifactNotFound: it refers to what is not there.
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
        return Catalog({**self.artifacts, digest: entry}, self.names)

    def removing(self, digest: Digest) -> Catalog:
        """Return the catalog without an artifact.

        Raises:
            ArtifactNotFound: there is none.
            ArtifactInUse: a name or another artifact leads to it.
        """
        self.find(digest)
        if digest in self.names.values():
            raise ArtifactInUse("a name leads to this artifact")
        if any(digest in entry.refers_to for entry in self.artifacts.values()):
            raise ArtifactInUse("another artifact refers to this one")
        return self._without({digest})

    def binding(self, name: str, digest: Digest, quota: Quota) -> Catalog:
        """Return the catalog with a name that leads to an artifact.

        Raises:
            ArtifactNotFound: there is no such artifact.
            QuotaExceeded: there is no room for another name.
        """
        self.find(digest)
        if name not in self.names and len(self.names) >= quota.count:
            raise QuotaExceeded(f"{len(self.names)} names are kept: at most {quota.count}")
        return Catalog(self.artifacts, {**self.names, name: digest})

    def unbinding(self, name: str) -> Catalog:
        """Return the catalog without a name.

        Raises:
            ArtifactNotFound: there is none.
        """
        self.resolve(name)
        return Catalog(self.artifacts, {other: digest for other, digest in self.names.items() if other != name})

    def replacing(self, old: Digest, new: Digest, entry: Entry) -> Catalog:
        """Return the catalog with one artifact in the place of another, to which names and references now lead.

        Raises:
            ArtifactNotFound: the other is not there.
            InvalidArgs: the one is there already, as something else.
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
        return Catalog({**moved, new: entry}, names)

    def reached(self, roots: Iterable[Digest]) -> set[Digest]:
        """Return what is there of the roots and of all that they refer to."""
        found: set[Digest] = set()
        waiting = list(roots)
        while waiting:
            digest = waiting.pop()
            if digest in self.artifacts and digest not in found:
                found.add(digest)
                waiting.extend(self.artifacts[digest].refers_to)
        return found

    def sweeping(self, before_ns: int) -> Catalog:
        """Return the catalog without what was last put before then and is needed by no name and nothing younger."""
        young = [digest for digest, entry in self.artifacts.items() if entry.made_ns >= before_ns]
        garbage = self.artifacts.keys() - self.reached((*self.names.values(), *young))
        return self._without(garbage) if garbage else self

    def _without(self, digests: set[Digest]) -> Catalog:
        return Catalog({d: entry for d, entry in self.artifacts.items() if d not in digests}, self.names)


def packed(entry: Entry, encoding: str, stored_bytes: int, blob: str, made_ns: int) -> Entry:
    """Return an entry that tells of bytes that were just written."""
    return Entry(entry.kind, entry.size_bytes, stored_bytes, encoding, blob, made_ns, entry.refers_to)


def renewed(entry: Entry, made_ns: int) -> Entry:
    """Return an entry as if it was put now; never older than it was, for clocks that were set back."""
    return msgspec.structs.replace(entry, made_ns=max(made_ns, entry.made_ns))


def blobs_gone(before: Catalog, after: Catalog) -> tuple[str, ...]:
    """Return the keys of which only the first catalog tells."""
    kept = {entry.blob for entry in after.artifacts.values()}
    return tuple(entry.blob for entry in before.artifacts.values() if entry.blob not in kept)


def horizon_ns(now_ns: int, grace_s: float) -> int:
    """Return the time before which things are old.

    Raises:
        InvalidArgs: the grace is negative or no number of seconds.
    """
    if not math.isfinite(grace_s) or grace_s < 0:
        raise InvalidArgs(f"a grace period is in seconds, 0 or more, not {grace_s:g}")
    return now_ns - math.floor(grace_s * 1e9)


def encode(catalog: Catalog, version: bytes) -> bytes:
    """Return a catalog's bytes.

    Args:
        catalog: the catalog.
        version: 16 bytes that no other has, by which it is known to be there still.
    """
    body = msgspec.msgpack.encode(catalog)
    return _head(version, body) + body


def _head(version: bytes, body: bytes | memoryview) -> bytes:
    return b"".join((MAGIC, version, blake3(b"".join((version, body)))))


def version_of(data: bytes | memoryview) -> bytes:
    """Return a catalog's version; of what is no catalog, something that none has."""
    return bytes(data[len(MAGIC) : len(MAGIC) + VERSION_BYTES]) if bytes(data[: len(MAGIC)]) == MAGIC else b""


def decode(data: bytes | None) -> Catalog:
    """Return the catalog that some bytes are; None is that of a tenant who never kept anything.

    Raises:
        ArtifactCorrupt: they are damaged. Nothing of the tenant's can be told from them then.
    """
    if data is None:
        return EMPTY
    view = memoryview(data)
    body = view[HEAD_BYTES:]
    if bytes(view[:HEAD_BYTES]) != _head(version_of(view), body):
        raise ArtifactCorrupt("the catalog of a tenant's artifacts is damaged")
    try:
        return msgspec.msgpack.decode(body, type=Catalog)
    except msgspec.MsgspecError:
        raise ArtifactCorrupt("the catalog of a tenant's artifacts is none of this version") from None


EMPTY: Final = Catalog()
