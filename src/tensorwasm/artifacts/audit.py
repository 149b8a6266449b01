"""Work on all of a store that goes on whatever it comes upon: collecting, reading it again, renewing what is signed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from tensorwasm.artifacts import catalog, packing
from tensorwasm.artifacts.backend import NOTHING, Backend
from tensorwasm.artifacts.catalog import Catalog, Entry
from tensorwasm.artifacts.kinds import KINDS, find_kind
from tensorwasm.artifacts.store import (
    Buffer,
    Collected,
    Digest,
    Finding,
    Progress,
    Renew,
    Renewal,
    Stat,
    Store,
    Verification,
)
from tensorwasm.errors import ArtifactCorrupt, ArtifactNotFound, StoreUnavailable, TensorWasmError

UNREACHABLE: Final = "no name leads to it"


def collect(tenants: Collection[str], collect_one: Callable[[str], Collected], progress: Progress | None) -> Collected:
    """Collect tenant by tenant, as `Store.collect` says."""
    done: list[Collected] = []
    findings: list[Finding] = []
    for number, tenant in enumerate(tenants, 1):
        try:
            done.append(collect_one(tenant))
        except TensorWasmError as error:
            findings.append(Finding(tenant, None, _state(error), error.message))
        if progress:
            progress(number, len(tenants))
    return Collected(
        tuple(artifact for one in done for artifact in one.artifacts),
        sum(one.artifact_bytes for one in done),
        sum(one.leftovers for one in done),
        tuple(findings),
    )


def verify(backend: Backend, progress: Progress | None) -> Verification:
    """Read and hash everything in a place, as `Store.verify` says."""
    findings: list[Finding] = []
    catalogs: dict[str, Catalog] = {}
    for tenant in sorted(backend.tenants()):
        try:
            catalogs[tenant] = _catalog(backend, tenant)
        except TensorWasmError as error:
            findings.append(Finding(tenant, None, _state(error), error.message))
    total_bytes = sum(kept.usage().artifact_bytes for kept in catalogs.values())
    count = done_bytes = 0
    for tenant, kept in catalogs.items():
        reached = kept.reached(kept.names.values())
        findings.extend(
            Finding(tenant, digest, "dangling", f"the name {name[:64]!r} leads to it, and it is not there")
            for name, digest in kept.names.items()
            if digest not in kept.artifacts
        )
        for digest, entry in kept.artifacts.items():
            findings.extend(_look_at(backend, tenant, kept, digest, entry))
            if digest not in reached:
                findings.append(Finding(tenant, digest, "unreachable", UNREACHABLE))
            count += 1
            done_bytes += entry.size_bytes
            if progress:
                progress(done_bytes, total_bytes)
    return Verification(count, done_bytes, tuple(findings))


def _look_at(backend: Backend, tenant: str, kept: Catalog, digest: Digest, entry: Entry) -> Iterator[Finding]:
    if missing := [other.hex() for other in entry.refers_to if other not in kept.artifacts]:
        yield Finding(tenant, digest, "dangling", f"it refers to {', '.join(missing)}, which is not there")
    if entry.kind not in KINDS:
        yield Finding(tenant, digest, "corrupt", f"there is no kind {entry.kind[:32]!r}")
        return
    try:
        packed = backend.read(tenant, entry.blob, entry.stored_bytes)
        if packed is None and _gone(backend, tenant, digest):  # deleted since the catalog was read
            return
        if packed is None:
            yield Finding(tenant, digest, "missing", "its bytes are gone, or were found damaged and set aside")
            return
        packing.unpack(find_kind(entry.kind), entry.encoding, entry.size_bytes, digest, packed)
    except TensorWasmError as error:
        yield Finding(tenant, digest, _state(error), error.message)


def _gone(backend: Backend, tenant: str, digest: Digest) -> bool:
    """Whether an artifact has been deleted or put anew meanwhile, which is no fault."""
    entry = _catalog(backend, tenant).artifacts.get(digest)
    return entry is None or backend.read(tenant, entry.blob, entry.stored_bytes) is not None


def _catalog(backend: Backend, tenant: str) -> Catalog:
    return catalog.decode((backend.load(tenant, None) or NOTHING).data)


def _state(error: TensorWasmError) -> str:
    return "corrupt" if isinstance(error, ArtifactCorrupt) else "unreadable"


def renew(
    store: Store,
    kinds: Collection[str],
    renew_one: Renew,
    progress: Progress | None,
    replace: Callable[[str, Stat, Buffer], None],
) -> Renewal:
    """Put new bytes in the place of some artifacts, as `Store.renew` says.

    Args:
        store: whose artifacts.
        kinds: which of them.
        renew_one: returns the new bytes.
        progress: is told how far it has come.
        replace: puts a tenant's artifact's new bytes in its place.
    """
    todo = [
        (tenant, stat.digest) for tenant in store.tenants() for stat in store.list(tenant) if stat.kind in set(kinds)
    ]
    total_bytes = sum(store.stat(tenant, digest).size_bytes for tenant, digest in todo)
    renewed = kept = done_bytes = 0
    findings: list[Finding] = []
    for tenant, digest in todo:
        try:
            stat = store.stat(tenant, digest)  # now: renewing another may have moved its references
            data = renew_one(tenant, store.get(tenant, digest))
            if data is None:
                kept += 1
            else:
                replace(tenant, stat, data)
                renewed += 1
            done_bytes += stat.size_bytes
        except ArtifactNotFound:  # deleted meanwhile
            continue
        except TensorWasmError as error:
            state = _state(error) if isinstance(error, (ArtifactCorrupt, StoreUnavailable)) else "refused"
            findings.append(Finding(tenant, digest, state, error.message))
        if progress:
            progress(done_bytes, total_bytes)
    return Renewal(renewed, kept, tuple(findings))
