"""`Kernels`: the registry of kernels that publishers have signed, which every tenant may list and fetch.

Publishing checks, in this order: the right to publish, the manifest's fields, digest, signature and publisher, the text
itself, and that the name and version are new. Fetching verifies digest and signature again, so that a row that was
tampered with is not returned.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Final

from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.database import kernels as rows
from tensorwasm.database.engine.executor import DatabaseExecutor
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
from tensorwasm.service.kernels.manifests import (
    Manifest,
    check_manifest,
    check_text,
    require_digest,
    token_digest,
    verify_manifest,
)
from tensorwasm.service.pages import DEFAULT_PAGE, MAX_PAGE
from tensorwasm.service.snapshot_keys import parse_hex_key
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.principal import Principal
from tensorwasm.values import Deadline

SCOPE: Final = "kernels:publish"

_PARSING_S: Final = 30.0
"""Longest time to parse one text."""


class Kernels:
    """The registry. For one event loop, which it never blocks.

    All methods but `require_publisher` raise KernelRegistryNotConfigured without a key.

    Args:
        database: where kernels are.
        key: signs manifests; None turns the registry off.
        publishers: whose kernels are accepted; empty accepts any with a valid signature.
        tokens: that may publish besides those with the scope; only their digests are kept.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        key: HmacKey | None,
        publishers: Iterable[str] = (),
        tokens: Iterable[str] = (),
    ) -> None:
        self._database = database
        self._key = key
        self._publishers = frozenset(publishers)
        self._tokens = tuple(token_digest(token) for token in tokens)
        self._parsing = asyncio.Semaphore(2)

    @classmethod
    def from_settings(cls, database: DatabaseExecutor, settings: ServiceSettings) -> Kernels:
        """Return the registry that the settings describe; raise InvalidKey if the key is malformed."""
        text = settings.kernel_hmac_key
        key = HmacKey(parse_hex_key("TENSOR_WASM_API_KERNEL_HMAC_KEY", text)) if text else None
        return cls(database, key, _split(settings.kernel_publishers), _split(settings.kernel_publish_tokens))

    def require_publisher(self, principal: Principal, token: str) -> None:
        """Check the right to publish; PublishDisabled without authentication, else PublishScopeRequired."""
        if principal.kind == "dev":
            raise PublishDisabled("without authentication kernels cannot be published")
        shown = token_digest(token)
        listed = [hmac.compare_digest(shown, each) for each in self._tokens]
        if SCOPE not in principal.scopes and not (token and any(listed)):
            raise PublishScopeRequired(f"publishing needs the scope {SCOPE}")

    async def publish(self, principal: Principal, token: str, manifest: Manifest, ptx: str) -> KernelRecord:
        """Add a kernel.

        Raises:
            PublishDisabled: as for `require_publisher`.
            PublishScopeRequired: likewise.
            InvalidName: name, version or publisher is invalid.
            InvalidRequest: another field is invalid.
            DigestMismatch: the digest is not that of the text.
            BadSignature: the key did not make the signature.
            PublisherNotAllowed: the publisher is not accepted.
            MalformedPtx: the text is not PTX, or too long.
            AlreadyRegistered: a kernel of that name and version exists.
            InvokeTimeout: parsing takes too long.
        """
        self.require_publisher(principal, token)
        key = self._require_key()
        check_manifest(manifest)
        text = check_text(ptx)
        await asyncio.to_thread(require_digest, manifest, text)
        # Envelope 1 does not contain the publisher, so a list of publishers requires envelope 2.
        verify_manifest(manifest, key, whole=bool(self._publishers))
        if self._publishers and manifest.publisher not in self._publishers:
            raise PublisherNotAllowed("kernels of this publisher are not accepted")
        async with self._parsing:
            await asyncio.to_thread(parse_variants, text, Deadline.after(_PARSING_S))
        record = KernelRecord(**asdict(manifest), ptx=ptx)
        if not await self._database.write(rows.insert_kernel, record):
            raise AlreadyRegistered("there is a kernel of that name and version")
        return record

    async def list(self, offset: int = 0, limit: int = DEFAULT_PAGE) -> tuple[KernelRecord, ...]:
        """Return kernels without their texts, by name and version, 1000 at most; InvalidRequest for negative bounds."""
        self._require_key()
        if not 0 <= offset < 1 << 63 or limit < 0:
            raise InvalidRequest("offset and limit are 0 or more")
        return await self._database.read(rows.list_kernels, offset, min(limit, MAX_PAGE))

    async def get(self, name: str, version: str) -> KernelRecord:
        """Return a kernel with its text, verified again.

        Raises:
            NotFound: there is no such kernel.
            BadSignature: it was signed with another key than the current one.
            ArtifactCorrupt: its text is not what was published.
        """
        key = self._require_key()
        found = await self._database.read(rows.find_kernel, name, version)
        if found is None:
            raise NotFound("there is no kernel of that name and version")
        manifest = Manifest(**{each.name: getattr(found, each.name) for each in fields(Manifest)})
        try:
            await asyncio.to_thread(require_digest, manifest, found.ptx.encode())
        except DigestMismatch:
            raise ArtifactCorrupt("a kernel's text is not what was published") from None
        verify_manifest(manifest, key)
        return found

    def _require_key(self) -> HmacKey:
        if self._key is None:
            raise KernelRegistryNotConfigured("no key for kernels is configured")
        return self._key


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
