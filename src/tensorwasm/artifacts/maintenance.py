"""Work on a whole store that continues past any fault: collection, verification, renewal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tensorwasm.artifacts import catalog, packing
from tensorwasm.artifacts.backends.port import NOTHING, Backend
from tensorwasm.artifacts.catalog import CatalogEntry, TenantCatalog
from tensorwasm.artifacts.values import (
    ArtifactFinding,
    CollectionReport,
    Digest,
    Progress,
    RenewalReport,
    Stat,
    VerificationReport,
)
from tensorwasm.errors import ArtifactCorrupt, ArtifactNotFound, StoreUnavailable, TensorWasmError


def collect(
    tenants: Collection[str], collect_one: Callable[[str], CollectionReport], progress: Progress | None
) -> CollectionReport:
    """Collect tenant by tenant, as `ContentStore.collect` says."""
    done: list[CollectionReport] = []
    findings: list[ArtifactFinding] = []
    for number, tenant in enumerate(tenants, 1):
        try:
            done.append(collect_one(tenant))
        except TensorWasmError as error:
            findings.append(_finding(tenant, None, error))
        if progress:
            progress(number, len(tenants))
    return CollectionReport(
        tuple(artifact for one in done for artifact in one.artifacts),
        sum(one.artifact_bytes for one in done),
        sum(one.leftovers for one in done),
        tuple(findings),
    )


def verify(backend: Backend, progress: Progress | None) -> VerificationReport:
    """Read and hash everything in a backend, as `ContentStore.verify` says."""
    findings: list[ArtifactFinding] = []
    catalogs: dict[str, TenantCatalog] = {}
    for tenant in sorted(backend.tenants()):
        try:
            catalogs[tenant] = _load(backend, tenant)
        except TensorWasmError as error:
            findings.append(_finding(tenant, None, error))
    total_bytes = sum(kept.usage().artifact_bytes for kept in catalogs.values())
    count = done_bytes = 0
    for tenant, kept in catalogs.items():
        reached = kept.reached(kept.names.values())
        findings.extend(
            ArtifactFinding(tenant, digest, "dangling", f"the name {name[:64]!r} refers to it, and it is missing")
            for name, digest in kept.names.items()
            if digest not in kept.artifacts
        )
        for digest, entry in kept.artifacts.items():
            findings.extend(_examine(backend, tenant, kept, digest, entry))
            if digest not in reached:
                findings.append(ArtifactFinding(tenant, digest, "unreachable", "no name reaches it"))
            count += 1
            done_bytes += entry.size_bytes
            if progress:
                progress(done_bytes, total_bytes)
    return VerificationReport(count, done_bytes, tuple(findings))


def _examine(
    backend: Backend, tenant: str, kept: TenantCatalog, digest: Digest, entry: CatalogEntry
) -> Iterator[ArtifactFinding]:
    if missing := [other.hex() for other in entry.refers_to if other not in kept.artifacts]:
        yield ArtifactFinding(tenant, digest, "dangling", f"it refers to {', '.join(missing)}, which is missing")
    if entry.kind not in packing.KINDS:
        yield ArtifactFinding(tenant, digest, "corrupt", f"there is no kind {entry.kind[:32]!r}")
        return
    try:
        packed = backend.read(tenant, entry.blob, entry.stored_bytes)
        if packed is not None:
            packing.unpack(packing.find_kind(entry.kind), entry.encoding, entry.size_bytes, digest, packed)
        elif not _is_replaced(backend, tenant, digest):
            detail = "its bytes are missing, or were found damaged and quarantined"
            yield ArtifactFinding(tenant, digest, "missing", detail)
    except TensorWasmError as error:
        yield _finding(tenant, digest, error)


def _is_replaced(backend: Backend, tenant: str, digest: Digest) -> bool:
    """Whether an artifact was deleted or put anew since its catalog was read, which is no fault."""
    entry = _load(backend, tenant).artifacts.get(digest)
    return entry is None or backend.read(tenant, entry.blob, entry.stored_bytes) is not None


def _load(backend: Backend, tenant: str) -> TenantCatalog:
    return catalog.decode((backend.load(tenant, None) or NOTHING).data)


def _finding(tenant: str, digest: Digest | None, error: TensorWasmError, state: str = "unreadable") -> ArtifactFinding:
    return ArtifactFinding(tenant, digest, "corrupt" if isinstance(error, ArtifactCorrupt) else state, error.message)


def renew(
    todo: Collection[tuple[str, Stat]], renew_one: Callable[[str, Digest], bool], progress: Progress | None
) -> RenewalReport:
    """Renew artifact by artifact, as `ContentStore.renew` says; ``renew_one`` returns whether the bytes changed."""
    total_bytes = sum(stat.size_bytes for _, stat in todo)
    done_bytes = 0
    results: list[bool] = []
    findings: list[ArtifactFinding] = []
    for tenant, stat in todo:
        try:
            results.append(renew_one(tenant, stat.digest))
            done_bytes += stat.size_bytes
        except ArtifactNotFound:  # it was deleted meanwhile
            continue
        except TensorWasmError as error:
            state = "unreadable" if isinstance(error, StoreUnavailable) else "refused"
            findings.append(_finding(tenant, stat.digest, error, state))
        if progress:
            progress(done_bytes, total_bytes)
    return RenewalReport(results.count(True), results.count(False), tuple(findings))
