"""`Kernels`: the registry of kernels that publishers have signed. They are everybody's to see and to fetch.

What is published is judged in this order: whether one may publish at all, the manifest's fields, its digest, its
signature, its publisher, the text itself, and whether there is one of that name and version already. Nothing is stored
that does not parse. What is fetched is verified again: a row that somebody changed is not given out.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.database import kernels as rows
from tensorwasm.database.kernels import KernelRecord
from tensorwasm.errors import (
    AlreadyRegistered,
    ArtifactCorrupt,
    DigestMismatch,
    InvalidRequest,
    KernelRegistryNotConfigured,
    NotFound,
    PublishDisabled,
    PublisherNotAllowed,
    PublishScopeRequired,
)
from tensorwasm.ptx import parse_variants
from tensorwasm.service.database_port import DatabasePort
from tensorwasm.service.kernels.manifests import (
    Manifest,
    check_manifest,
    check_text,
    require_digest,
    token_digest,
    verify_manifest,
)
from tensorwasm.service.pages import MAX_PAGE, USUAL_PAGE
from tensorwasm.service.snapshot_keys import parse_hex_key
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.tenancy.principal import Principal

SCOPE: Final = "kernels:publish"

_PARSING_S: Final = 30.0
"""Longest that reading one text may take."""


class Kernels:
    """The registry. For one event loop; nothing here holds it.

    Args:
        desk: of the database.
        key: what manifests are signed with; None turns the registry off.
        publishers: whose kernels are taken; none takes any whose signature holds.
        tokens: that may publish, besides those with the scope.
    """

    def __init__(
        self, desk: DatabasePort, key: HmacKey | None, publishers: Iterable[str] = (), tokens: Iterable[str] = ()
    ) -> None:
        """Keep digests of the tokens, not the tokens."""
        self._desk = desk
        self._key = key
        self._publishers = frozenset(publishers)
        self._tokens = tuple(token_digest(token) for token in tokens)
        self._turn = asyncio.Semaphore(2)

    @classmethod
    def from_settings(cls, desk: DatabasePort, settings: ServiceSettings) -> Kernels:
        """Return the registry that the settings describe.

        Raises:
            InvalidKey: the key is malformed.
        """
        text = settings.kernel_hmac_key
        key = HmacKey(parse_hex_key("TENSOR_WASM_API_KERNEL_HMAC_KEY", text)) if text else None
        return cls(desk, key, _split(settings.kernel_publishers), _split(settings.kernel_publish_tokens))

    def require_publisher(self, principal: Principal, token: str) -> None:
        """Hold an asker against who may publish.

        Args:
            principal: who asks.
            token: what they showed; empty for nothing.

        Raises:
            PublishDisabled: nobody is asked who they are here.
            PublishScopeRequired: they may not.
        """
        if principal.kind == "dev":
            raise PublishDisabled("without authentication nobody publishes kernels")
        shown = token_digest(token)
        listed = [hmac.compare_digest(shown, each) for each in self._tokens]
        if SCOPE not in principal.scopes and not (token and any(listed)):
            raise PublishScopeRequired(f"publishing needs the scope {SCOPE}")

    async def publish(self, principal: Principal, token: str, manifest: Manifest, ptx: str) -> KernelRecord:
        """Take a kernel.

        Args:
            principal: who publishes.
            token: what they showed; empty for nothing.
            manifest: signed.
            ptx: the text.

        Raises:
            PublishDisabled: nobody is asked who they are here.
            PublishScopeRequired: they may not publish.
            KernelRegistryNotConfigured: there is no key.
            InvalidName: name, version or publisher cannot be such.
            InvalidRequest: another field cannot be what it is.
            DigestMismatch: the digest is another text's.
            BadSignature: the signature is not of the key.
            PublisherNotAllowed: kernels of this publisher are not taken.
            MalformedPtx: the text is no PTX, or too long.
            AlreadyRegistered: there is one of that name and version.
            InvokeTimeout: reading the text takes too long.
            DatabaseUnavailable: it cannot be stored.
        """
        self.require_publisher(principal, token)
        key = self._require_key()
        check_manifest(manifest)
        text = check_text(ptx)
        await asyncio.to_thread(require_digest, manifest, text)
        # Envelope 1 does not say who published, so a list of publishers can rest on envelope 2 alone.
        verify_manifest(manifest, key, whole=bool(self._publishers))
        if self._publishers and manifest.publisher not in self._publishers:
            raise PublisherNotAllowed("kernels of this publisher are not taken here")
        async with self._turn:
            await asyncio.to_thread(parse_variants, text, Deadline.after(_PARSING_S))
        record = _record(manifest, ptx)
        if not await self._desk.write(rows.insert_kernel, record):
            raise AlreadyRegistered("there is a kernel of that name and version")
        return record

    async def list(self, offset: int = 0, limit: int = USUAL_PAGE) -> tuple[KernelRecord, ...]:
        """Return kernels without their texts, by name and version.

        Args:
            offset: how many to pass over.
            limit: most of them; more than 1000 counts as 1000.

        Raises:
            KernelRegistryNotConfigured: there is no key.
            InvalidRequest: offset or limit is negative, or beyond all numbers of a database.
        """
        self._require_key()
        if not 0 <= offset < 1 << 63 or limit < 0:
            raise InvalidRequest("offset and limit are 0 or more")
        return await self._desk.read(rows.list_kernels, offset, min(limit, MAX_PAGE))

    async def get(self, name: str, version: str) -> KernelRecord:
        """Return a kernel with its text, verified again.

        Raises:
            KernelRegistryNotConfigured: there is no key.
            NotFound: there is none of that name and version.
            BadSignature: it was signed with another key than today's.
            ArtifactCorrupt: its text is not what was published.
            DatabaseUnavailable: it cannot be read.
        """
        key = self._require_key()
        found = await self._desk.read(rows.find_kernel, name, version)
        if found is None:
            raise NotFound("there is no kernel of that name and version")
        manifest = manifest_of(found)
        try:
            await asyncio.to_thread(require_digest, manifest, found.ptx.encode())
        except DigestMismatch:
            raise ArtifactCorrupt("a kernel's text is not what was published") from None
        verify_manifest(manifest, key)
        return found

    def _require_key(self) -> HmacKey:
        if self._key is None:
            raise KernelRegistryNotConfigured("there is no key that kernels are verified with")
        return self._key


def manifest_of(record: KernelRecord) -> Manifest:
    """Return what was signed of a kernel."""
    return Manifest(
        name=record.name,
        version=record.version,
        sm_version=record.sm_version,
        digest=record.digest,
        publisher=record.publisher,
        published_unix_ms=record.published_unix_ms,
        signature=record.signature,
    )


def _record(manifest: Manifest, ptx: str) -> KernelRecord:
    return KernelRecord(
        name=manifest.name,
        version=manifest.version,
        sm_version=manifest.sm_version,
        digest=manifest.digest,
        signature=manifest.signature,
        publisher=manifest.publisher,
        published_unix_ms=manifest.published_unix_ms,
        ptx=ptx,
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
