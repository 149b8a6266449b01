"""Kernels: published, listed and fetched."""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import (
    AlreadyRegistered,
    ArtifactCorrupt,
    BadSignature,
    CapacityExhausted,
    DatabaseUnavailable,
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
from tensorwasm.server.routing import Call, Param, Reply, Route
from tensorwasm.server.wire import kernels as wire
from tensorwasm.service.kernels.kernels import manifest_of
from tensorwasm.service.pages import MAX_PAGE, USUAL_PAGE

_BEARER: Final = "bearer "
_DIGITS: Final = 18
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 10**_DIGITS - 1}


async def publish(call: Call) -> Reply:
    """Publish a kernel."""
    if call.principal is None:
        raise InternalError("the route is open to everybody")
    body: wire.PublishKernel = call.body
    call.audit |= {"kernel": body.manifest.name[:64], "version": body.manifest.version[:64]}
    shown = call.headers.get("authorization") or ""
    token = shown[len(_BEARER) :].strip() if shown[: len(_BEARER)].lower() == _BEARER else ""
    record = await call.service.kernels.publish(call.principal, token, body.manifest.to_manifest(), body.ptx_text)
    return Reply(wire.KernelName(record.name, record.version))


async def list_kernels(call: Call) -> Reply:
    """Return some kernels, without their texts."""
    offset, limit = _number(call, "offset", 0), min(_number(call, "limit", USUAL_PAGE), MAX_PAGE)
    found = await call.service.kernels.list(offset, limit)
    return Reply(wire.KernelPage([wire.ManifestBody.of(manifest_of(each)) for each in found], offset, limit))


async def get(call: Call) -> Reply:
    """Return a kernel with its text."""
    record = await call.service.kernels.get(call.params["name"], call.params["version"])
    return Reply(wire.KernelBody(wire.ManifestBody.of(manifest_of(record)), record.ptx))


def _number(call: Call, name: str, usual: int) -> int:
    text = call.query.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        raise InvalidRequest(f"{name} is a number")
    return int(text)


_READ: Final = (KernelRegistryNotConfigured, DatabaseUnavailable, CapacityExhausted)

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST", "/kernels", publish, "Publish a signed kernel.", "kernels", "kernels:read", kind="kernels",
        request=wire.PublishKernel, response=wire.KernelName, status=201, tenant=False, action="publish_kernel",
        errors=(
            PublishDisabled, PublishScopeRequired, InvalidName, InvalidRequest, DigestMismatch, BadSignature,
            PublisherNotAllowed, MalformedPtx, UnsupportedPtx, AlreadyRegistered, InvokeTimeout, *_READ,
        ),
    ),
    Route(
        "GET", "/kernels", list_kernels, "List kernels.", "kernels", "kernels:read", kind="kernels", tenant=False,
        response=wire.KernelPage, errors=(InvalidRequest, *_READ), etag=True,
        query={
            "offset": Param("How many to pass over.", _NUMBER),
            "limit": Param(f"Most that are returned; {USUAL_PAGE} unless said otherwise, {MAX_PAGE} at most.", _NUMBER),
        },
    ),
    Route(
        "GET", "/kernels/{name}/{version}", get, "Fetch a kernel.", "kernels", "kernels:read", kind="kernels",
        tenant=False, response=wire.KernelBody, etag=True, errors=(NotFound, BadSignature, ArtifactCorrupt, *_READ),
    ),
)  # fmt: skip
