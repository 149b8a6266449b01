"""The artifact store: catalogs and bytes in a backend, with every rule in `catalog`.

An artifact is bytes of some kind that belong to one tenant and are identified within it by their BLAKE3 hash. Names
refer to artifacts and artifacts refer to each other; an artifact that no name reaches is garbage once it is old enough.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from tensorwasm.artifacts import catalog, maintenance, packing
from tensorwasm.artifacts.backends.port import NOTHING, Backend, Version
from tensorwasm.artifacts.caches import ReadCache
from tensorwasm.artifacts.catalog import CatalogEntry, TenantCatalog
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.packing import find_kind
from tensorwasm.artifacts.values import (
    MAX_NAME_BYTES,
    MAX_REFERENCES,
    MAX_TENANT_BYTES,
    Buffer,
    CollectionReport,
    Digest,
    Progress,
    Quota,
    Renew,
    RenewalReport,
    Stat,
    TenantUsage,
    VerificationReport,
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

_DEFAULT_QUOTA: Final = Quota()
_TRIES: Final = 200  # exchanges lost to other processes before a change is given up
_LONGEST_PAUSE_S: Final = 0.25
_KNOWN_TENANTS: Final = 256  # whose catalogs are kept decoded
_COPIES: Final = 8  # more than there are layers of caches: damaged copies are quarantined one by one


class ContentStore:
    """Artifacts of many tenants in one backend. All methods may block, and may be called from any thread and process.

    Two tenants that put the same bytes have two artifacts: neither learns of the other's by a result, a charge or
    the time that something takes.

    Every method raises `StoreUnavailable` (out of reach, or full), `ArtifactCorrupt` (a tenant's catalog is damaged),
    `UnsafeFile` (others can write to where it is), `InvalidArgs` (an impossible tenant, kind or name) and
    `ArtifactNotFound` (this tenant has no such artifact or name), every change also `CapacityExhausted` (too many
    others change the same tenant's artifacts at once). A change that raised `StoreUnavailable` may have been made;
    any other error changed nothing.
    """

    def __init__(
        self,
        backend: Backend,
        quota: Quota = _DEFAULT_QUOTA,
        *,
        cap: Callable[[str], int | None] = lambda _tenant: None,
        recent_bytes: int = 0,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open the store; nothing is read yet.

        ``quota`` is each tenant's; ``cap`` returns how many bytes one of them may keep instead, None for the quota's,
        and is called on any thread. ``recent_bytes`` is memory for recently read artifacts; 0 reads and hashes at each
        `get`. ``now_ns`` returns nanoseconds since 1970; machines that share a backend should agree on it to within a
        grace.
        """
        self._backend = backend
        self._default_quota, self._cap = quota, cap
        self._now_ns = now_ns
        self._recent = ReadCache(recent_bytes)
        self._turns: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._known: OrderedDict[str, tuple[Version, TenantCatalog]] = OrderedDict()
        self._lock = Lock()  # of the two above

    def put(self, tenant: str, kind: str, data: Buffer, refers_to: Iterable[Digest] = ()) -> Digest:
        """Keep bytes, which must not change meanwhile, and return their hash; they are durable when this returns.

        Putting the same bytes again costs nothing, makes them new for `collect`, and repairs them if damaged.

        Raises:
            QuotaExceeded: the tenant has no room for it.
            TooLarge: longer than its kind may be.
            InvalidArgs: the same bytes are kept as another kind or with other references; or too many references.
        """
        view = memoryview(data).cast("B")
        digest, entry = self._describe(kind, view, refers_to)
        if not self._make_new(tenant, digest, entry):
            self._load(tenant)[1].adding(digest, entry, self._quota(tenant))  # what is refused is not written first
            self._write(tenant, entry, view, lambda old, new: old.adding(digest, new, self._quota(tenant)))
        return digest

    def _describe(self, kind: str, view: memoryview, refers_to: Iterable[Digest]) -> tuple[Digest, CatalogEntry]:
        limit_bytes = find_kind(kind).max_bytes
        if view.nbytes > limit_bytes:
            raise TooLarge(view.nbytes, limit_bytes)
        references = tuple(sorted({bytes(digest) for digest in refers_to}))
        if len(references) > MAX_REFERENCES:
            raise InvalidArgs(f"an artifact refers to at most {MAX_REFERENCES} others, not {len(references)}")
        digest = blake3(view)
        key = f"{digest.hex()}-{secrets.token_hex(8)}"
        return digest, CatalogEntry(kind, view.nbytes, 0, "raw", key, self._now_ns(), references)

    def _make_new(self, tenant: str, digest: Digest, entry: CatalogEntry) -> bool:
        """Give an intact artifact that exists the time of now; return False if there is none."""
        there = self._load(tenant)[1].artifacts.get(digest)
        if there is None or not there.same_as(entry):
            return False
        try:
            self._fetch(tenant, digest)
        except (ArtifactCorrupt, ArtifactNotFound):
            return False

        def renew(old: TenantCatalog) -> TenantCatalog:
            found = old.artifacts.get(digest)
            if found is None or not found.same_as(entry):
                return old
            return old.adding(digest, found.renewed(self._now_ns()), self._quota(tenant))

        before, after = self._change(tenant, renew)
        return before is not after

    def _write(
        self,
        tenant: str,
        entry: CatalogEntry,
        view: memoryview,
        change: Callable[[TenantCatalog, CatalogEntry], TenantCatalog],
    ) -> None:
        """Write an artifact's bytes, then change the catalog so that it has them."""
        encoding, packed = packing.pack(find_kind(entry.kind), view)
        stored = msgspec.structs.replace(entry, stored_bytes=memoryview(packed).nbytes, encoding=encoding)
        with self._backend.write(tenant, entry.blob, packed):
            try:
                before, after = self._change(tenant, lambda old: change(old, stored.renewed(self._now_ns())))
            except (CallerError, LimitError):  # certainly refused: after any other error the catalog may have it
                self._backend.erase(tenant, (entry.blob,))
                raise
        self._erase(tenant, catalog.blobs_gone(before, after))

    def get(self, tenant: str, digest: Digest) -> memoryview:
        """Return an artifact's bytes, read-only, after verifying their hash.

        They may be a file mapping, which stays whole until the view is gone, whatever happens to the artifact.
        ArtifactCorrupt if it is damaged; what is left of it was quarantined.
        """
        return self._recent.read((tenant, self._load(tenant)[1].find(digest).blob), lambda: self._fetch(tenant, digest))

    def _fetch(self, tenant: str, digest: Digest) -> memoryview:
        """Return an artifact's bytes from the first intact copy, and quarantine those before it."""
        missed = ""
        for _ in range(_COPIES):
            entry = self._load(tenant)[1].find(digest)
            packed = self._backend.read(tenant, entry.blob, entry.stored_bytes)
            if packed is None and missed == entry.blob:  # otherwise another put replaced it: read the catalog again
                break
            if packed is None:
                missed = entry.blob
                continue
            try:
                return packing.unpack(find_kind(entry.kind), entry.encoding, entry.size_bytes, digest, packed)
            except ArtifactCorrupt:
                self._backend.quarantine(tenant, entry.blob)
        raise ArtifactCorrupt(f"what was stored for {digest.hex()} is damaged or missing; putting it again repairs it")

    def stat(self, tenant: str, digest: Digest) -> Stat:
        """Return what is known of an artifact."""
        return self._stat(tenant, digest, self._load(tenant)[1].find(digest))

    def list(self, tenant: str) -> tuple[Stat, ...]:
        """Return all of a tenant's artifacts, by hash."""
        artifacts = self._load(tenant)[1].artifacts
        return tuple(self._stat(tenant, digest, artifacts[digest]) for digest in sorted(artifacts))

    def _stat(self, tenant: str, digest: Digest, entry: CatalogEntry) -> Stat:
        used_ns = max(entry.made_ns, self._backend.used_ns(tenant, entry.blob) or 0)
        return Stat(digest, entry.kind, entry.size_bytes, entry.stored_bytes, entry.made_ns, used_ns, entry.refers_to)

    def delete(self, tenant: str, digest: Digest) -> None:
        """Delete an artifact now, however new it is; ArtifactInUse if a name or another artifact refers to it."""
        before, after = self._change(tenant, lambda old: old.removing(digest))
        self._erase(tenant, catalog.blobs_gone(before, after))

    def bind(self, tenant: str, name: str, digest: Digest) -> None:
        """Make a name refer to an artifact, and no longer to its previous one; QuotaExceeded if there are too many."""
        _require_text("a name", name, MAX_NAME_BYTES)
        self._change(tenant, lambda old: old.binding(name, bytes(digest), self._quota(tenant)))

    def resolve(self, tenant: str, name: str) -> Digest:
        """Return the artifact that a name refers to."""
        return self._load(tenant)[1].resolve(name)

    def unbind(self, tenant: str, name: str) -> None:
        """Delete a name."""
        self._change(tenant, lambda old: old.unbinding(name))

    def names(self, tenant: str) -> Mapping[str, Digest]:
        """Return all of a tenant's names and their artifacts."""
        return dict(sorted(self._load(tenant)[1].names.items()))

    def tenants(self) -> tuple[str, ...]:
        """Return the tenants that have ever kept something."""
        return tuple(sorted(self._backend.tenants()))

    def usage(self, tenant: str) -> TenantUsage:
        """Return what a tenant keeps."""
        return self._load(tenant)[1].usage()

    def collect(self, grace_s: float, progress: Progress | None = None) -> CollectionReport:
        """Remove artifacts that no name reaches, directly or through references, and that are older than the grace.

        Younger artifacts keep what they refer to. What is put meanwhile stays: a caller that puts and then binds has
        the grace for it. Leftovers of dead writers are removed too. What cannot be read becomes a finding. Progress
        counts tenants.
        """
        if not math.isfinite(grace_s) or grace_s < 0:
            raise InvalidArgs(f"a grace period is in seconds, 0 or more, not {grace_s:g}")
        before_ns = self._now_ns() - math.floor(grace_s * 1e9)
        return maintenance.collect(self.tenants(), lambda tenant: self._collect(tenant, before_ns), progress)

    def _collect(self, tenant: str, before_ns: int) -> CollectionReport:
        # Listed before the catalog is read: what is published in between is in the catalog, what is not is held.
        idle = self._backend.leftovers(tenant)
        before, after = self._change(tenant, lambda old: old.sweeping(before_ns))
        taken = [digest for digest in before.artifacts if digest not in after.artifacts]
        garbage = set(idle) - {entry.blob for entry in before.artifacts.values()}
        self._erase(tenant, (*catalog.blobs_gone(before, after), *garbage))
        return CollectionReport(
            tuple((tenant, digest) for digest in taken),
            sum(before.artifacts[digest].size_bytes for digest in taken),
            len(garbage) + self._backend.clear_quarantine(tenant, before_ns),
        )

    def verify(self, progress: Progress | None = None) -> VerificationReport:
        """Read and hash everything; nothing is changed or quarantined, and no finding ends it.

        It reads the original (the disk, the object store), not the copies in front of it. Progress counts bytes.
        """
        return maintenance.verify(self._backend.origin, progress)

    def renew(self, kinds: Collection[str], renew: Renew, progress: Progress | None = None) -> RenewalReport:
        """Replace the bytes of artifacts, for example with the same content under a new signature.

        Each artifact changes atomically: the new bytes are there, names and references lead to them and the old ones
        are gone, or nothing is different. Quotas do not apply. If interrupted, it may be started again. Progress
        counts bytes.
        """
        todo = [(tenant, stat) for tenant in self.tenants() for stat in self.list(tenant) if stat.kind in kinds]

        def renew_one(tenant: str, old: Digest) -> bool:
            stat = self.stat(tenant, old)  # not an earlier one: renewing another may have changed its references
            if (data := renew(tenant, self.get(tenant, old))) is None:
                return False
            view = memoryview(data).cast("B")
            digest, entry = self._describe(stat.kind, view, stat.refers_to)
            self._write(tenant, entry, view, lambda there, new: there.replacing(old, digest, new))
            return True

        return maintenance.renew(todo, renew_one, progress)

    def _load(self, tenant: str) -> tuple[Version, TenantCatalog]:
        """Return a tenant's catalog as it is now."""
        _require_text("a tenant", tenant, MAX_TENANT_BYTES)
        with self._lock:
            known = self._known.get(tenant)
        loaded = self._backend.load(tenant, known[0] if known else None)
        if loaded is None and known is not None:
            return known
        loaded = loaded or NOTHING
        found = (loaded.version, catalog.decode(loaded.data))
        self._remember(tenant, found)
        return found

    def _quota(self, tenant: str) -> Quota:
        most_bytes = self._cap(tenant)
        return self._default_quota if most_bytes is None else Quota(most_bytes, self._default_quota.count)

    def _remember(self, tenant: str, found: tuple[Version, TenantCatalog]) -> None:
        with self._lock:
            self._known[tenant] = found
            self._known.move_to_end(tenant)
            if len(self._known) > _KNOWN_TENANTS:
                self._known.popitem(last=False)

    def _change(
        self, tenant: str, change: Callable[[TenantCatalog], TenantCatalog]
    ) -> tuple[TenantCatalog, TenantCatalog]:
        """Exchange a tenant's catalog, repeatedly until no other change intervenes; return the old and the new one."""
        with self._lock:
            turn = self._turns.setdefault(tenant, Lock())
        with turn:  # threads of one process would only cost each other attempts
            for attempt in range(_TRIES):
                version, before = self._load(tenant)
                after = change(before)
                if after is before:
                    return before, before
                data = catalog.encode(after, secrets.token_bytes(catalog.VERSION_BYTES))
                if len(data) > catalog.MAX_BYTES:
                    raise QuotaExceeded(f"a catalog of {len(data)} bytes: at most {catalog.MAX_BYTES}")
                if swapped := self._backend.swap(tenant, version, data):
                    self._remember(tenant, (swapped, after))
                    return before, after
                time.sleep(secrets.randbelow(1000) / 1000 * min(_LONGEST_PAUSE_S, 1e-4 * 2**attempt))
        raise CapacityExhausted("too many others change this tenant's artifacts at once")

    def _erase(self, tenant: str, keys: Collection[str]) -> None:
        """Erase bytes that no catalog has any more; if that fails, `collect` finds them."""
        for key in keys:
            self._recent.drop((tenant, key))
        if keys:
            self._backend.erase(tenant, keys)


def _require_text(what: str, text: str, limit_bytes: int) -> None:
    """Check that a tenant or a name is 1 to ``limit_bytes`` long in UTF-8, or raise InvalidArgs."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        length = 0
    if not 1 <= length <= limit_bytes:
        raise InvalidArgs(f"{what} is 1 to {limit_bytes} bytes of UTF-8, not {text[:32]!r}")


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant's part of a store: its methods without the tenant, which cannot be mixed up any more."""

    store: ContentStore
    tenant: str

    def put(self, kind: str, data: Buffer, refers_to: Iterable[Digest] = ()) -> Digest:
        """As `ContentStore.put`."""
        return self.store.put(self.tenant, kind, data, refers_to)

    def get(self, digest: Digest) -> memoryview:
        """As `ContentStore.get`."""
        return self.store.get(self.tenant, digest)

    def stat(self, digest: Digest) -> Stat:
        """As `ContentStore.stat`."""
        return self.store.stat(self.tenant, digest)

    def delete(self, digest: Digest) -> None:
        """As `ContentStore.delete`."""
        self.store.delete(self.tenant, digest)

    def bind(self, name: str, digest: Digest) -> None:
        """As `ContentStore.bind`."""
        self.store.bind(self.tenant, name, digest)

    def resolve(self, name: str) -> Digest:
        """As `ContentStore.resolve`."""
        return self.store.resolve(self.tenant, name)

    def unbind(self, name: str) -> None:
        """As `ContentStore.unbind`."""
        self.store.unbind(self.tenant, name)
