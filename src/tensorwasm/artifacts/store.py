"""The port of the artifact store, and the values that it takes and gives.

An artifact is bytes of some kind that belong to one tenant and are known to it by their BLAKE3 hash. Names lead to
artifacts and artifacts refer to others; what no name leads to is garbage once it is old enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tensorwasm.errors import InvalidArgs
from tensorwasm.values import MIB

Buffer: TypeAlias = bytes | bytearray | memoryview
Digest: TypeAlias = bytes
"""BLAKE3 of an artifact's bytes as they were put: 32 bytes."""
Progress: TypeAlias = Callable[[int, int], None]
"""Is told how much is done, and of how much; it may raise to stop the work."""
Renew: TypeAlias = Callable[[str, memoryview], Buffer | None]
"""Is given a tenant and an artifact's bytes, and returns the bytes that take their place; None leaves them."""

MAX_TENANT_BYTES: Final = 80
MAX_NAME_BYTES: Final = 512
MAX_REFERENCES: Final = 256


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may keep.

    Attributes:
        artifact_bytes: sum of the artifacts' lengths as they were put.
        count: artifacts, and likewise names.
    """

    artifact_bytes: int = 1024 * MIB
    count: int = 10_000


@dataclass(frozen=True, slots=True)
class Usage:
    """What one tenant keeps.

    Attributes:
        artifact_bytes: sum of the artifacts' lengths as they were put.
        count: artifacts.
        names: names.
    """

    artifact_bytes: int
    count: int
    names: int


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of an artifact without reading it.

    Attributes:
        digest: its hash.
        kind: one of `kinds.KINDS`.
        size_bytes: its length.
        stored_bytes: what it takes where it is kept.
        made_ns: when it was put, for the last time; nanoseconds since 1970.
        used_ns: when it was last read, to the minute; where that is not recorded, `made_ns`.
        refers_to: the artifacts that stay as long as this one does.
    """

    digest: Digest
    kind: str
    size_bytes: int
    stored_bytes: int
    made_ns: int
    used_ns: int
    refers_to: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a collection, a verification or a renewal came upon.

    Attributes:
        tenant: whose it is.
        digest: which artifact; None where it is about the tenant's catalog.
        state: ``corrupt``, ``missing``, ``dangling`` (it refers to what is not there), ``unreachable`` (no name leads
            to it, which is no fault), ``unreadable`` or ``refused`` (by a renewal).
        detail: for people.
    """

    tenant: str
    digest: Digest | None
    state: str
    detail: str

    @property
    def bad(self) -> bool:
        """Whether something must be done about it."""
        return self.state != "unreachable"


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection took away.

    Attributes:
        artifacts: tenant and hash of each artifact.
        artifact_bytes: sum of their lengths as they were put.
        leftovers: files of writers that died, and damaged ones that had been set aside.
        findings: tenants of whom not all could be looked at: the others' went all the same.
    """

    artifacts: tuple[tuple[str, Digest], ...]
    artifact_bytes: int
    leftovers: int
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of looking at everything.

    Attributes:
        count: artifacts that were looked at.
        artifact_bytes: sum of their lengths.
        findings: whatever is not as it should be.
    """

    count: int
    artifact_bytes: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is bad."""
        return not any(finding.bad for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Renewal:
    """What came of renewing artifacts.

    Attributes:
        renewed: how many got new bytes.
        kept: how many were left as they are.
        findings: those that could be neither read nor renewed.
    """

    renewed: int
    kept: int
    findings: tuple[Finding, ...]


class Store(Protocol):
    """Artifacts of many tenants. All methods may block, and may be called from any thread and process.

    Two tenants that put the same bytes have two artifacts: neither learns of the other's by an answer, a charge or
    the time that something takes.

    Every method also raises `StoreUnavailable` (it cannot be reached, or is full), `ArtifactCorrupt` (a tenant's
    catalog is damaged), `UnsafeFile` (others can write to where it is) and `InvalidArgs` (a tenant, kind or name
    that cannot be one). A change that raised `StoreUnavailable` may have been made; any other error changed nothing.
    """

    def put(self, tenant: str, kind: str, data: Buffer, refers_to: Iterable[Digest] = ()) -> Digest:
        """Keep some bytes, which must not change meanwhile, and return their hash; they are safe when this returns.

        Putting the same again costs nothing, makes it new for `collect`, and mends it if it is damaged.

        Raises:
            QuotaExceeded: the tenant has no room for it.
            TooLarge: longer than its kind may be.
            ArtifactNotFound: it refers to what is not there.
            InvalidArgs: the same bytes are kept as another kind or with other references; or too many references.
            CapacityExhausted: too many others change the tenant's artifacts at once.
        """
        ...

    def get(self, tenant: str, digest: Digest) -> memoryview:
        """Return an artifact's bytes, read-only, after their hash was found right.

        They may be a mapping of a file, which stays whole until the view is gone, whatever happens to the artifact.

        Raises:
            ArtifactNotFound: this tenant has none.
            ArtifactCorrupt: it is damaged; what is left of it was set aside.
        """
        ...

    def stat(self, tenant: str, digest: Digest) -> Stat:
        """Return what is known of an artifact.

        Raises:
            ArtifactNotFound: this tenant has none.
        """
        ...

    def list(self, tenant: str) -> tuple[Stat, ...]:
        """Return all of a tenant's artifacts, by hash."""
        ...

    def delete(self, tenant: str, digest: Digest) -> None:
        """Take an artifact away now, however new it is.

        Raises:
            ArtifactNotFound: this tenant has none.
            ArtifactInUse: a name or another artifact leads to it.
            CapacityExhausted: too many others change the tenant's artifacts at once.
        """
        ...

    def bind(self, tenant: str, name: str, digest: Digest) -> None:
        """Let a name lead to an artifact, and no longer to what it led to.

        Raises:
            ArtifactNotFound: this tenant has no such artifact.
            QuotaExceeded: the tenant has no room for another name.
            CapacityExhausted: too many others change the tenant's artifacts at once.
        """
        ...

    def resolve(self, tenant: str, name: str) -> Digest:
        """Return the artifact that a name leads to.

        Raises:
            ArtifactNotFound: this tenant has no such name.
        """
        ...

    def unbind(self, tenant: str, name: str) -> None:
        """Take a name away.

        Raises:
            ArtifactNotFound: this tenant has no such name.
            CapacityExhausted: too many others change the tenant's artifacts at once.
        """
        ...

    def names(self, tenant: str) -> Mapping[str, Digest]:
        """Return all of a tenant's names and where they lead."""
        ...

    def tenants(self) -> tuple[str, ...]:
        """Return the tenants that have kept something at some time."""
        ...

    def usage(self, tenant: str) -> Usage:
        """Return what a tenant keeps."""
        ...

    def collect(self, grace_s: float, progress: Progress | None = None) -> Collected:
        """Take away what no name leads to, directly or through references, and was last put that many seconds ago.

        What is younger keeps what it refers to. What is put meanwhile stays: to somebody who puts first and binds
        then, the grace is the time between. Leftovers of writers that are no more go too. What cannot be read ends
        nothing, it is a finding. Progress is in tenants.
        """
        ...

    def verify(self, progress: Progress | None = None) -> Verification:
        """Read everything and hash it again; nothing is changed or set aside, and nothing that is found ends it.

        It reads what is the truth (the disk, the object store), not the copies above it. Progress is in bytes.
        """
        ...

    def renew(self, kinds: Collection[str], renew: Renew, progress: Progress | None = None) -> Renewal:
        """Put new bytes in the place of artifacts, such as the same under a new signature.

        Each changes as one: the new bytes are there, names and references lead to them and the old ones are gone, or
        nothing is different. Quotas do not hold it up. When it is ended in the middle, it may be begun again. Progress
        is in bytes.
        """
        ...


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant's part of a store: the same methods without the tenant, who cannot be mistaken any more."""

    store: Store
    tenant: str

    def put(self, kind: str, data: Buffer, refers_to: Iterable[Digest] = ()) -> Digest:
        """As `Store.put`."""
        return self.store.put(self.tenant, kind, data, refers_to)

    def get(self, digest: Digest) -> memoryview:
        """As `Store.get`."""
        return self.store.get(self.tenant, digest)

    def stat(self, digest: Digest) -> Stat:
        """As `Store.stat`."""
        return self.store.stat(self.tenant, digest)

    def list(self) -> tuple[Stat, ...]:
        """As `Store.list`."""
        return self.store.list(self.tenant)

    def delete(self, digest: Digest) -> None:
        """As `Store.delete`."""
        self.store.delete(self.tenant, digest)

    def bind(self, name: str, digest: Digest) -> None:
        """As `Store.bind`."""
        self.store.bind(self.tenant, name, digest)

    def resolve(self, name: str) -> Digest:
        """As `Store.resolve`."""
        return self.store.resolve(self.tenant, name)

    def unbind(self, name: str) -> None:
        """As `Store.unbind`."""
        self.store.unbind(self.tenant, name)

    def names(self) -> Mapping[str, Digest]:
        """As `Store.names`."""
        return self.store.names(self.tenant)

    def usage(self) -> Usage:
        """As `Store.usage`."""
        return self.store.usage(self.tenant)


def checked_text(what: str, text: str, limit_bytes: int) -> str:
    """Return a tenant or a name that can be one: some text, of any characters, that has an UTF-8 form.

    Raises:
        InvalidArgs: it has none, is empty, or has more bytes than that.
    """
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        length = 0
    if not 1 <= length <= limit_bytes:
        raise InvalidArgs(f"{what} is 1 to {limit_bytes} bytes of UTF-8, not {text[:32]!r}")
    return text
