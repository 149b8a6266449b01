"""Kernels and their manifests in JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tensorwasm.database.kernels import KernelRecord
from tensorwasm.errors import InvalidRequest
from tensorwasm.service.kernels.manifests import MAX_SM_VERSION, MAX_UNIX_MS, Manifest

Hex32 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$", description="32 bytes as 64 hex digits.")]


class ManifestBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is signed of a kernel.

    Attributes:
        name: with the version, what it is known by.
        version: likewise.
        sm_version: compute capability that it was written for, 90 for 9.0.
        digest: BLAKE3 of the text.
        signature: HMAC-SHA256 of the envelope.
        publisher: who made it.
        published_unix_ms: when.
    """

    name: str
    version: str
    sm_version: Annotated[int, Meta(ge=1, le=MAX_SM_VERSION)]
    digest: Hex32
    signature: Hex32
    publisher: str = ""
    published_unix_ms: Annotated[int, Meta(ge=0, le=MAX_UNIX_MS)] = 0

    @classmethod
    def of(cls, record: KernelRecord | Manifest) -> ManifestBody:
        """Return the service's."""
        return cls(
            name=record.name,
            version=record.version,
            sm_version=record.sm_version,
            digest=record.digest.hex(),
            signature=record.signature.hex(),
            publisher=record.publisher,
            published_unix_ms=record.published_unix_ms,
        )

    def to_manifest(self) -> Manifest:
        """Return it as the service takes it.

        Raises:
            InvalidRequest: digest or signature are no hex digits.
        """
        try:
            digest, signature = bytes.fromhex(self.digest), bytes.fromhex(self.signature)
        except ValueError:
            raise InvalidRequest("digest and signature are hex digits") from None
        return Manifest(
            name=self.name,
            version=self.version,
            sm_version=self.sm_version,
            digest=digest,
            publisher=self.publisher,
            published_unix_ms=self.published_unix_ms,
            signature=signature,
        )


class PublishKernel(msgspec.Struct, forbid_unknown_fields=True):
    """A kernel to be published.

    Attributes:
        manifest: what is signed of it.
        ptx_text: the text.
    """

    manifest: ManifestBody
    ptx_text: str


class KernelName(msgspec.Struct):
    """What a kernel is known by."""

    name: str
    version: str


class KernelBody(msgspec.Struct):
    """A kernel.

    Attributes:
        manifest: what is signed of it.
        ptx_text: the text.
    """

    manifest: ManifestBody
    ptx_text: str


class KernelPage(msgspec.Struct):
    """Some kernels, by name and version, without their texts.

    Attributes:
        manifests: them.
        offset: how many come before them.
        limit: most of them.
    """

    manifests: list[ManifestBody]
    offset: int
    limit: int
