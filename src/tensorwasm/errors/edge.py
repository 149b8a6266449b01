"""Mistakes of clients of the service, and what its client commands meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwasm.errors.base import CallerError, HostError


class Unauthorized(CallerError, kind="unauthorized", http_status=401):
    """Credentials are missing, unknown, expired or revoked. The message does not say which."""


class TenantScopeDenied(CallerError, kind="tenant_scope_denied", http_status=403):
    """The caller may not act for this tenant, or the tenant is disabled."""


class ScopeDenied(CallerError, kind="scope_denied", http_status=403):
    """The caller's token does not allow the operation; the message names the missing scope."""


class OriginDenied(CallerError, kind="origin_denied", http_status=403):
    """The operator does not allow the Origin of the WebSocket."""


class HostDenied(CallerError, kind="host_denied", http_status=421):
    """The operator does not serve the Host header's value."""


class MissingTenant(CallerError, kind="missing_tenant"):
    """The tenant header is missing where it is required, or not a number from 0 to 2**64 - 1."""


class NotFound(CallerError, kind="not_found", http_status=404):
    """There is no such function, job, session, snapshot, token, kernel or route of this tenant."""


class InstanceNotFound(NotFound, kind="instance_not_found"):
    """There is no such instance."""


class MethodNotAllowed(CallerError, kind="method_not_allowed", http_status=405):
    """The path exists, and accepts other methods."""


class InvalidRequest(CallerError, kind="invalid_request"):
    """A header, query parameter or field is invalid; the message names it."""


class ModelRefused(InvalidRequest):
    """A function that serves as a model refuses the request; the message is the function's own."""


class InvalidJson(CallerError, kind="invalid_json"):
    """The body is not JSON, is nested too deeply, or lacks the fields and types of the route."""


class UnknownField(InvalidJson, kind="unknown_field"):
    """The body has a field that the route does not have; the message names it and the most similar valid one."""


class UnsupportedMediaType(CallerError, kind="unsupported_media_type", http_status=415):
    """The route does not accept the body's content type or encoding; the message names those that it does."""


class InvalidName(CallerError, kind="invalid_name"):
    """A name is empty, blank, longer than 256 bytes or has control characters."""


class InvalidBase64(CallerError, kind="invalid_base64"):
    """A field is not valid base64."""


class InvalidImage(CallerError, kind="invalid_image"):
    """An OCI image is damaged, or does not contain exactly one module; the message has the details."""


class TooManyArgs(CallerError, kind="too_many_args"):
    """A call has more than 256 arguments."""


class BodyTooLarge(CallerError, kind="body_too_large", http_status=413):
    """The body is longer than the server's limit."""


class RequestTimeout(CallerError, kind="request_timeout", http_status=408):
    """The request did not arrive completely in time."""


class IdempotencyMismatch(CallerError, kind="idempotency_mismatch", http_status=422):
    """The idempotency key was used with a different request."""


class Conflict(CallerError, kind="conflict", http_status=409):
    """The current state does not allow the operation; the message names the state."""


class SessionElsewhere(Conflict, kind="session_elsewhere", retryable=True):
    """Another server has the session or has just taken it, so the request has no effect.

    Attributes:
        server: name of that server; empty if unknown, which a retry resolves.
    """

    def __init__(self, server: str) -> None:
        where = f"the server {server} has it: ask there" if server else "another server may have it: ask again"
        super().__init__(f"the session is not this server's: {where}")
        self.server = server


class AlreadyRegistered(Conflict, kind="already_registered"):
    """A kernel of that name and version exists already."""


class DigestMismatch(CallerError, kind="digest_mismatch"):
    """The manifest's digest does not match the kernel's text."""


class PublishDisabled(CallerError, kind="kernel_publish_disabled_in_dev_mode", http_status=403):
    """Kernels cannot be published without authentication."""


class PublishScopeRequired(CallerError, kind="kernel_publish_scope_required", http_status=403):
    """The token may not publish kernels."""


class PublisherNotAllowed(CallerError, kind="publisher_not_allowed", http_status=403):
    """The operator does not accept kernels of the manifest's publisher."""


class BadSignature(CallerError, kind="bad_signature", http_status=403):
    """The manifest's signature is not valid under the publisher's key."""


class ModelNotFound(NotFound, kind="model_not_found"):
    """No function serves a model of that name."""


class ServerUnreachable(HostError, kind="server_unreachable"):
    """The server does not answer, or breaks the connection."""


class ReloadFailed(HostError, kind="reload_failed"):
    """A reload of the server was given up; its processes that were not replaced go on."""


class Refused(HostError, kind="refused"):
    """The server refused the request, or failed.

    Attributes:
        kind: the server's error kind.
        status: of HTTP; 0 for an error within a response that had begun with success.
        left: of a failed guest: ``stdout``, ``stderr``, ``backtrace``.
    """

    def __init__(
        self, message: str, kind: str = "refused", status: int = 0, left: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        # The class attribute is for servers that report no kind.
        self.kind = kind  # type: ignore[misc]
        self.status = status
        self.left = left or {}


class EndpointMissing(HostError, kind="endpoint_missing", exit_code=3):
    """The server has no such route: it is another release, or not this service."""
