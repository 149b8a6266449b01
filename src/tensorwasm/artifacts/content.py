"""The store: catalogs and bytes in some place, every rule in `catalog`."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from tensorwasm.artifacts import audit, catalog, packing
from tensorwasm.artifacts.backend import NOTHING, Backend, Version
from tensorwasm.artifacts.catalog import Catalog, Entry
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.kinds import find_kind
from tensorwasm.artifacts.recent import Recent
from tensorwasm.artifacts.store import (
    MAX_NAME_BYTES,
    MAX_REFERENCES,
    MAX_TENANT_BYTES,
    Buffer,
    Collected,
    Digest,
    Progress,
    Quota,
    Renew,
    Renewal,
    Stat,
    Usage,
    Verification,
    checked_text,
)
from tensorwasm.errors import (
    ArtifactCorrupt,
    ArtifactNotFound,
    CallerError,
    CapacityExhausted,
    InvalidArgs,
    LimitError,
    QuotaExceeded,
    TooLarge,
)

_TRIES: Final = 200  # exchanges lost to other processes before one is given up
_LONGEST_PAUSE_S: Final = 0.25
_KNOWN_TENANTS: Final = 256  # whose catalogs are kept decoded
_COPIES: Final = 8  # more than there are layers: damaged ones are set aside one by one


class ContentStore:
    """Artifacts in one place, as `Store` says.

    Args:
        backend: the place.
        quota: what a tenant may keep.
        recent_bytes: memory for what was read lately; 0 reads and hashes everything each time.
        now_ns: the clock, nanoseconds since 1970. Machines that share a place should agree on it to within a grace.
    """

    def __init__(
        self,
        backend: Backend,
        quota: Callable[[str], Quota] = lambda _tenant: Quota(),
        *,
        recent_bytes: int = 0,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open the store; nothing is read yet."""
        self._backend = backend
        self._quota = quota
        self._now_ns = now_ns
        self._recent = Recent(recent_bytes)
        self._turns: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._known: OrderedDict[str, tuple[Version, Catalog]] = OrderedDict()
        self._lock = Lock()  # of the two above

    def put(self, tenant: str, kind: str, data: Buffer, refers_to: Iterable[Digest] = ()) -> Digest:
        """As `Store.put`."""
        view = memoryview(data).cast("B")
        digest, entry = self._describe(kind, view, refers_to)
        if not self._make_new(tenant, digest, entry):
            self._load(tenant)[1].adding(digest, entry, self._quota(tenant))  # what is refused is not written first
            self._write(tenant, digest, entry, view, lambda old, new: old.adding(digest, new, self._quota(tenant)))
        return digest

    def _describe(self, kind: str, view: memoryview, refers_to: Iterable[Digest]) -> tuple[Digest, Entry]:
        limit_bytes = find_kind(kind).max_bytes
        if view.nbytes > limit_bytes:
            raise TooLarge(view.nbytes, limit_bytes)
        references = tuple(sorted({bytes(digest) for digest in refers_to}))
        if len(references) > MAX_REFERENCES:
            raise InvalidArgs(f"an artifact refers to at most {MAX_REFERENCES} others, not {len(references)}")
        return blake3(view), Entry(kind, view.nbytes, 0, "raw", "", self._now_ns(), references)

    def _make_new(self, tenant: str, digest: Digest, entry: Entry) -> bool:
        """Make an artifact that is there and whole new, and return whether it was."""
        there = self._load(tenant)[1].artifacts.get(digest)
        if there is None or not there.same_as(entry):
            return False
        try:
            self._fetch(tenant, digest)
        except (ArtifactCorrupt, ArtifactNotFound):
            return False

        def touching(old: Catalog) -> Catalog:
            found = old.artifacts.get(digest)
            if found is None or not found.same_as(entry):
                return old
            return old.adding(digest, catalog.renewed(found, self._now_ns()), self._quota(tenant))

        before, after = self._change(tenant, touching)
        return before is not after

    def _write(
        self, tenant: str, digest: Digest, entry: Entry, view: memoryview, change: Callable[[Catalog, Entry], Catalog]
    ) -> None:
        """Write an artifact's bytes, then change the catalog so that it tells of them."""
        key = f"{digest.hex()}-{secrets.token_hex(8)}"
        encoding, packed = packing.pack(find_kind(entry.kind), view)
        stored_bytes = memoryview(packed).nbytes
        with self._backend.write(tenant, key, packed):
            try:
                before, after = self._change(
                    tenant, lambda old: change(old, catalog.packed(entry, encoding, stored_bytes, key, self._now_ns()))
                )
            except (CallerError, LimitError):  # it was refused, for certain: after any other error the catalog may tell
                self._backend.erase(tenant, (key,))
                raise
        self._erase(tenant, catalog.blobs_gone(before, after))

    def get(self, tenant: str, digest: Digest) -> memoryview:
        """As `Store.get`."""
        entry = self._load(tenant)[1].find(digest)
        return self._recent.read((tenant, entry.blob), lambda: self._fetch(tenant, digest))

    def _fetch(self, tenant: str, digest: Digest) -> memoryview:
        """Return an artifact's bytes from the first copy that is whole, and set those before it aside."""
        missed = ""
        for _ in range(_COPIES):
            entry = self._load(tenant)[1].find(digest)
            packed = self._backend.read(tenant, entry.blob, entry.stored_bytes)
            if packed is None and missed == entry.blob:  # else another put has taken its place: look again
                break
            if packed is None:
                missed = entry.blob
                continue
            try:
                return packing.unpack(find_kind(entry.kind), entry.encoding, entry.size_bytes, digest, packed)
            except ArtifactCorrupt:
                self._backend.set_aside(tenant, entry.blob)
        raise ArtifactCorrupt(f"what was kept for {digest.hex()} was damaged or is gone; putting it again mends it")

    def stat(self, tenant: str, digest: Digest) -> Stat:
        """As `Store.stat`."""
        return self._stat(tenant, digest, self._load(tenant)[1].find(digest))

    def list(self, tenant: str) -> tuple[Stat, ...]:
        """As `Store.list`."""
        artifacts = self._load(tenant)[1].artifacts
        return tuple(self._stat(tenant, digest, artifacts[digest]) for digest in sorted(artifacts))

    def _stat(self, tenant: str, digest: Digest, entry: Entry) -> Stat:
        used_ns = self._backend.used_ns(tenant, entry.blob)
        return Stat(
            digest,
            entry.kind,
            entry.size_bytes,
            entry.stored_bytes,
            entry.made_ns,
            max(entry.made_ns, used_ns or 0),
            entry.refers_to,
        )

    def delete(self, tenant: str, digest: Digest) -> None:
        """As `Store.delete`."""
        before, after = self._change(tenant, lambda old: old.removing(digest))
        self._erase(tenant, catalog.blobs_gone(before, after))

    def bind(self, tenant: str, name: str, digest: Digest) -> None:
        """As `Store.bind`."""
        checked_text("a name", name, MAX_NAME_BYTES)
        self._change(tenant, lambda old: old.binding(name, bytes(digest), self._quota(tenant)))

    def resolve(self, tenant: str, name: str) -> Digest:
        """As `Store.resolve`."""
        return self._load(tenant)[1].resolve(name)

    def unbind(self, tenant: str, name: str) -> None:
        """As `Store.unbind`."""
        self._change(tenant, lambda old: old.unbinding(name))

    def names(self, tenant: str) -> Mapping[str, Digest]:
        """As `Store.names`."""
        return dict(sorted(self._load(tenant)[1].names.items()))

    def tenants(self) -> tuple[str, ...]:
        """As `Store.tenants`."""
        return tuple(sorted(self._backend.tenants()))

    def usage(self, tenant: str) -> Usage:
        """As `Store.usage`."""
        return self._load(tenant)[1].usage()

    def collect(self, grace_s: float, progress: Progress | None = None) -> Collected:
        """As `Store.collect`."""
        before_ns = catalog.horizon_ns(self._now_ns(), grace_s)
        return audit.collect(self.tenants(), lambda tenant: self._collect(tenant, before_ns), progress)

    def _collect(self, tenant: str, before_ns: int) -> Collected:
        # Listed before the catalog is read: what is published in between is told of, and what is not is held.
        idle = self._backend.leftovers(tenant)
        before, after = self._change(tenant, lambda old: old.sweeping(before_ns))
        taken = [digest for digest in before.artifacts if digest not in after.artifacts]
        garbage = set(idle) - {entry.blob for entry in before.artifacts.values()}
        self._erase(tenant, (*catalog.blobs_gone(before, after), *garbage))
        return Collected(
            tuple((tenant, digest) for digest in taken),
            sum(before.artifacts[digest].size_bytes for digest in taken),
            len(garbage) + self._backend.clear_aside(tenant, before_ns),
        )

    def verify(self, progress: Progress | None = None) -> Verification:
        """As `Store.verify`."""
        return audit.verify(self._backend.truth, progress)

    def renew(self, kinds: Collection[str], renew: Renew, progress: Progress | None = None) -> Renewal:
        """As `Store.renew`."""
        return audit.renew(self, kinds, renew, progress, self._replace)

    def _replace(self, tenant: str, old: Stat, data: Buffer) -> None:
        """Put other bytes in the place of an artifact's."""
        view = memoryview(data).cast("B")
        digest, entry = self._describe(old.kind, view, old.refers_to)
        self._write(tenant, digest, entry, view, lambda there, new: there.replacing(old.digest, digest, new))

    def _load(self, tenant: str) -> tuple[Version, Catalog]:
        """Return a tenant's catalog as it is now."""
        checked_text("a tenant", tenant, MAX_TENANT_BYTES)
        with self._lock:
            known = self._known.get(tenant)
        loaded = self._backend.load(tenant, known[0] if known else None)
        if loaded is None and known is not None:
            return known
        loaded = loaded or NOTHING
        found = (loaded.version, catalog.decode(loaded.data))
        self._know(tenant, found)
        return found

    def _know(self, tenant: str, found: tuple[Version, Catalog]) -> None:
        with self._lock:
            self._known[tenant] = found
            self._known.move_to_end(tenant)
            if len(self._known) > _KNOWN_TENANTS:
                self._known.popitem(last=False)

    def _change(self, tenant: str, change: Callable[[Catalog], Catalog]) -> tuple[Catalog, Catalog]:
        """Exchange a tenant's catalog for another, again and again until nobody was quicker, and return both."""
        with self._lock:
            turn = self._turns.setdefault(tenant, Lock())
        with turn:  # threads of one process would only cost each other tries
            for attempt in range(_TRIES):
                version, before = self._load(tenant)
                after = change(before)
                if after is before:
                    return before, before
                data = catalog.encode(after, secrets.token_bytes(catalog.VERSION_BYTES))
                if len(data) > catalog.MAX_BYTES:
                    raise QuotaExceeded(f"a catalog of {len(data)} bytes: at most {catalog.MAX_BYTES}")
                if swapped := self._backend.swap(tenant, version, data):
                    self._know(tenant, (swapped, after))
                    return before, after
                time.sleep(secrets.randbelow(1000) / 1000 * min(_LONGEST_PAUSE_S, 1e-4 * 2**attempt))
        raise CapacityExhausted("too many others change this tenant's artifacts at once")

    def _erase(self, tenant: str, keys: Collection[str]) -> None:
        """Take away bytes of which no catalog tells any more; if that fails, `collect` finds them."""
        for key in keys:
            self._recent.drop((tenant, key))
        if keys:
            self._backend.erase(tenant, keys)
