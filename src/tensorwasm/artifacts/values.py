"""The values that the artifact store takes and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tensorwasm.values import MIB

Buffer: TypeAlias = bytes | bytearray | memoryview
Digest: TypeAlias = bytes
"""BLAKE3 of an artifact's bytes as they were put: 32 bytes."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the amount done and the total; it may raise to stop the work."""
Renew: TypeAlias = Callable[[str, memoryview], Buffer | None]
"""Called with a tenant and an artifact's bytes; returns their replacement, or None to leave them."""

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
class TenantUsage:
    """What one tenant keeps: the sum of its artifacts' lengths as they were put, artifacts, and names."""

    artifact_bytes: int
    count: int
    names: int


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of an artifact without reading it.

    Attributes:
        kind: one of `packing.KINDS`.
        made_ns: when it was last put; nanoseconds since 1970.
        used_ns: when it was last read, to the minute; where that is not recorded, `made_ns`.
        refers_to: artifacts that are kept as long as this one.
    """

    digest: Digest
    kind: str
    size_bytes: int
    stored_bytes: int
    made_ns: int
    used_ns: int
    refers_to: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class ArtifactFinding:
    """Something that a collection, a verification or a renewal found.

    Attributes:
        digest: the artifact; None for the tenant's catalog.
        state: ``corrupt``, ``missing``, ``dangling`` (a reference or name to a missing artifact), ``unreachable`` (no
            name reaches it, which is no fault), ``unreadable`` or ``refused`` (by a renewal).
        detail: for people.
    """

    tenant: str
    digest: Digest | None
    state: str
    detail: str

    @property
    def bad(self) -> bool:
        """Whether it is a fault."""
        return self.state != "unreachable"


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What a collection removed.

    Attributes:
        artifacts: tenant and hash of each artifact.
        artifact_bytes: sum of their lengths as they were put.
        leftovers: number of files of writers that died, and of quarantined ones.
        findings: tenants that could not be examined completely.
    """

    artifacts: tuple[tuple[str, Digest], ...]
    artifact_bytes: int
    leftovers: int
    findings: tuple[ArtifactFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """Result of a verification: artifacts read, the sum of their lengths, and whatever is not as it should be."""

    count: int
    artifact_bytes: int
    findings: tuple[ArtifactFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no fault."""
        return not any(finding.bad for finding in self.findings)


@dataclass(frozen=True, slots=True)
class RenewalReport:
    """Result of a renewal: artifacts replaced, artifacts left as they are, and those that could not be processed."""

    renewed: int
    kept: int
    findings: tuple[ArtifactFinding, ...]
