"""What a store of artifacts must do, said with dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorwasm import errors
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.packing import KINDS
from tensorwasm.artifacts.values import Quota


@dataclass
class Kept:
    kind: str
    data: bytes
    refers_to: frozenset[bytes]
    made_ns: int


@dataclass
class Model:
    """One tenant. Every method returns what the store does, or the class of the error that it raises."""

    quota: Quota
    artifacts: dict[bytes, Kept] = field(default_factory=dict)
    names: dict[str, bytes] = field(default_factory=dict)

    def put(self, kind, data, refers_to, now_ns):
        digest, references = blake3(data), frozenset(refers_to)
        if kind not in KINDS:
            return errors.InvalidArgs
        if there := self.artifacts.get(digest):
            if (there.kind, there.refers_to) != (kind, references):
                return errors.InvalidArgs
            there.made_ns = now_ns
            return digest
        if not references <= self.artifacts.keys():
            return errors.ArtifactNotFound
        held_bytes = sum(len(kept.data) for kept in self.artifacts.values())
        if len(self.artifacts) == self.quota.count or held_bytes + len(data) > self.quota.artifact_bytes:
            return errors.QuotaExceeded
        self.artifacts[digest] = Kept(kind, data, references, now_ns)
        return digest

    def get(self, digest):
        kept = self.artifacts.get(digest)
        return kept.data if kept else errors.ArtifactNotFound

    def delete(self, digest):
        if digest not in self.artifacts:
            return errors.ArtifactNotFound
        referred = {other for kept in self.artifacts.values() for other in kept.refers_to}
        if digest in referred | set(self.names.values()):
            return errors.ArtifactInUse
        del self.artifacts[digest]
        return None

    def bind(self, name, digest):
        if digest not in self.artifacts:
            return errors.ArtifactNotFound
        if name not in self.names and len(self.names) == self.quota.count:
            return errors.QuotaExceeded
        self.names[name] = digest
        return None

    def resolve(self, name):
        return self.names.get(name, errors.ArtifactNotFound)

    def unbind(self, name):
        return None if self.names.pop(name, None) else errors.ArtifactNotFound

    def collect(self, before_ns):
        """Take garbage away one by one, until nothing changes, and return it."""
        gone = set()
        while True:
            needed = {*self.names.values(), *(d for kept in self.artifacts.values() for d in kept.refers_to)}
            old = {d for d, kept in self.artifacts.items() if kept.made_ns < before_ns and d not in needed}
            if not old:
                return gone
            gone |= old
            self.artifacts = {d: kept for d, kept in self.artifacts.items() if d not in old}

    def seen(self):
        """Return all that can be seen of it."""
        return {d: (kept.kind, kept.data, kept.refers_to) for d, kept in self.artifacts.items()}, dict(self.names)


def seen(store, tenant):
    """Return all that can be seen of a tenant's part of a store."""
    listed = store.list(tenant)
    return (
        {stat.digest: (stat.kind, bytes(store.get(tenant, stat.digest)), frozenset(stat.refers_to)) for stat in listed},
        dict(store.names(tenant)),
    )
