"""Kernels: their JSON, and the routes that publish, list and fetch them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tensorwasm.database.kernels import KernelRecord
from tensorwasm.errors import (
    AlreadyRegistered,
    ArtifactCorrupt,
    BadSignature,
    DigestMismatch,
    InternalError,
    InvalidName,
    InvalidRequest,
    InvokeTimeout,
    KernelRegistryNotConfigured,
    MalformedPtx,
    NotFound,
    PublishDisabled,
    PublisherNotAllowed,
    PublishScopeRequired,
    UnsupportedPtx,
)
from tensorwasm.server.http.decoding import UNAVAILABLE, query_number
from tensorwasm.server.http.routing import HttpRequest, QueryParam, Reply, Route
from tensorwasm.server.http.schemas import RecordBody
from tensorwasm.service.kernels.manifests import MAX_SM_VERSION, MAX_UNIX_MS, Manifest
from tensorwasm.service.pages import DEFAULT_PAGE, MAX_PAGE

_BEARER: Final = "bearer "
_MOST: Final = 10**18 - 1
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": _MOST}

Hex32 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$", description="32 bytes as 64 hex digits.")]


class ManifestBody(RecordBody, kw_only=True, forbid_unknown_fields=True):
    """The signed description of a kernel, which its name and version identify.

    Attributes:
        sm_version: its compute capability, 90 for 9.0.
        digest: BLAKE3 of the text.
        signature: HMAC-SHA256 of the envelope.
    """

    name: str
    version: str
    sm_version: Annotated[int, Meta(ge=1, le=MAX_SM_VERSION)]
    digest: Hex32
    signature: Hex32
    publisher: str = ""
    published_unix_ms: Annotated[int, Meta(ge=0, le=MAX_UNIX_MS)] = 0

    @classmethod
    def of(cls, record: KernelRecord) -> ManifestBody:
        """Return the JSON of a kernel's manifest."""
        return cls.copy(record, digest=record.digest.hex(), signature=record.signature.hex())

    def to_manifest(self) -> Manifest:
        """Return the service's manifest; raise `InvalidRequest` if digest or signature are not hex digits."""
        try:
            decoded = {"digest": bytes.fromhex(self.digest), "signature": bytes.fromhex(self.signature)}
        except ValueError:
            raise InvalidRequest("digest and signature are hex digits") from None
        return Manifest(**(msgspec.structs.asdict(self) | decoded))


class KernelBody(msgspec.Struct):
    """A kernel: its signed description and its text."""

    manifest: ManifestBody
    ptx_text: str


class PublishKernel(KernelBody, forbid_unknown_fields=True):
    """A kernel to publish: its signed description and its text."""


class KernelName(msgspec.Struct):
    """What identifies a kernel."""

    name: str
    version: str


class KernelPage(msgspec.Struct):
    """At most `limit` kernels by name and version, without their texts; `offset` kernels precede them."""

    manifests: list[ManifestBody]
    offset: int
    limit: int


async def publish(request: HttpRequest) -> Reply:
    """Publish a kernel."""
    if request.principal is None:
        raise InternalError("the route needs no token")
    body: PublishKernel = request.body
    request.audit |= {"kernel": body.manifest.name[:64], "version": body.manifest.version[:64]}
    shown = request.headers.get("authorization") or ""
    token = shown[len(_BEARER) :].strip() if shown[: len(_BEARER)].lower() == _BEARER else ""
    manifest = body.manifest.to_manifest()
    record = await request.service.kernels.publish(request.principal, token, manifest, body.ptx_text)
    return Reply(KernelName(record.name, record.version))


async def list_kernels(request: HttpRequest) -> Reply:
    """Return some kernels, without their texts."""
    offset = query_number(request, "offset", 0, _MOST)
    limit = min(query_number(request, "limit", DEFAULT_PAGE, _MOST), MAX_PAGE)
    found = await request.service.kernels.list(offset, limit)
    return Reply(KernelPage([ManifestBody.of(each) for each in found], offset, limit))


async def get(request: HttpRequest) -> Reply:
    """Return a kernel with its text."""
    record = await request.service.kernels.get(request.params["name"], request.params["version"])
    return Reply(KernelBody(ManifestBody.of(record), record.ptx))


_READ: Final = (KernelRegistryNotConfigured, *UNAVAILABLE)
_route = partial(Route, group="kernels", scope="kernels:read", kind="kernels", tenant=False)

ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "POST", "/kernels", publish, "Publish a signed kernel.", request=PublishKernel, response=KernelName,
        status=201, action="publish_kernel",
        errors=(
            PublishDisabled, PublishScopeRequired, InvalidName, InvalidRequest, DigestMismatch, BadSignature,
            PublisherNotAllowed, MalformedPtx, UnsupportedPtx, AlreadyRegistered, InvokeTimeout, *_READ,
        ),
    ),
    _route(
        "GET", "/kernels", list_kernels, "List kernels.", response=KernelPage, errors=(InvalidRequest, *_READ),
        etag=True,
        query={
            "offset": QueryParam("How many kernels to skip.", _NUMBER),
            "limit": QueryParam(f"Most kernels on the page; default {DEFAULT_PAGE}, at most {MAX_PAGE}.", _NUMBER),
        },
    ),
    _route(
        "GET", "/kernels/{name}/{version}", get, "Fetch a kernel.", response=KernelBody, etag=True,
        errors=(NotFound, BadSignature, ArtifactCorrupt, *_READ),
    ),
)  # fmt: skip
