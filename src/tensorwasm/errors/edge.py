"""What clients of the service ask for in vain."""

from __future__ import annotations

from tensorwasm.errors.base import CallerError


class Unauthorized(CallerError):
    """No credentials, or none that are known, in time and not revoked. The message never says which."""

    kind = "unauthorized"
    http_status = 401


class TenantScopeDenied(CallerError):
    """The caller may not act for this tenant, or the tenant is disabled."""

    kind = "tenant_scope_denied"
    http_status = 403


class ScopeDenied(CallerError):
    """The caller's token does not allow this operation; the message names the scope that does."""

    kind = "scope_denied"
    http_status = 403


class OriginDenied(CallerError):
    """A WebSocket's Origin is not one that the operator allows."""

    kind = "origin_denied"
    http_status = 403


class HostDenied(CallerError):
    """The Host header is none that the operator serves."""

    kind = "host_denied"
    http_status = 421


class MissingTenant(CallerError):
    """The tenant header is missing where one is needed, or is no number from 0 to 2**64 - 1."""

    kind = "missing_tenant"


class NotFound(CallerError):
    """There is no such function, job, session, snapshot, token, kernel or route, or it is another tenant's."""

    kind = "not_found"
    http_status = 404


class InstanceNotFound(NotFound):
    """There is no such instance."""

    kind = "instance_not_found"


class MethodNotAllowed(CallerError):
    """The path is there, and takes other methods."""

    kind = "method_not_allowed"
    http_status = 405


class InvalidRequest(CallerError):
    """A header, a query or a field is not what its type says; the message names it."""

    kind = "invalid_request"


class ModelRefused(InvalidRequest):
    """A function that serves as a model says that it cannot serve the request; the message is the function's own."""


class InvalidJson(CallerError):
    """The body is not JSON, is nested too deeply, or has not the fields and types that the route takes."""

    kind = "invalid_json"


class UnknownField(InvalidJson):
    """The body has a field that the route does not take; the message names it, and the nearest one that it does."""

    kind = "unknown_field"


class UnsupportedMediaType(CallerError):
    """The body's content type or content encoding is none that the route takes; the message says which are."""

    kind = "unsupported_media_type"
    http_status = 415


class InvalidName(CallerError):
    """A name is empty, blank, longer than 256 bytes or has control characters."""

    kind = "invalid_name"


class InvalidBase64(CallerError):
    """A field that is to be base64 is not."""

    kind = "invalid_base64"


class InvalidImage(CallerError):
    """An OCI image that is damaged, or holds anything but one module where it belongs; the message says what."""

    kind = "invalid_image"


class TooManyArgs(CallerError):
    """More than 256 arguments."""

    kind = "too_many_args"


class BodyTooLarge(CallerError):
    """The body is longer than the server takes."""

    kind = "body_too_large"
    http_status = 413


class RequestTimeout(CallerError):
    """The request did not come in whole within the time that the server waits for one."""

    kind = "request_timeout"
    http_status = 408


class IdempotencyMismatch(CallerError):
    """The idempotency key was used with another request."""

    kind = "idempotency_mismatch"
    http_status = 422


class Conflict(CallerError):
    """The state of the thing does not allow this; the message names the state."""

    kind = "conflict"
    http_status = 409


class SessionElsewhere(Conflict):
    """Another server has the session, or took it meanwhile; nothing of what was asked counts.

    Attributes:
        server: name of the one that has it; empty where that is not known, and asking again tells.
    """

    kind = "session_elsewhere"
    retryable = True

    def __init__(self, server: str) -> None:
        """Say where to ask."""
        where = f"the server {server} has it: ask there" if server else "another server may have it: ask again"
        super().__init__(f"the session is not this server's: {where}")
        self.server = server


class AlreadyRegistered(Conflict):
    """A kernel of that name and version is there already."""

    kind = "already_registered"


class DigestMismatch(CallerError):
    """The manifest's digest is not that of the text."""

    kind = "digest_mismatch"


class PublishDisabled(CallerError):
    """Without authentication nobody publishes kernels."""

    kind = "kernel_publish_disabled_in_dev_mode"
    http_status = 403


class PublishScopeRequired(CallerError):
    """The token may not publish kernels."""

    kind = "kernel_publish_scope_required"
    http_status = 403


class PublisherNotAllowed(CallerError):
    """The manifest's publisher is not one that the operator takes kernels from."""

    kind = "publisher_not_allowed"
    http_status = 403


class BadSignature(CallerError):
    """The manifest's signature is not that of its publisher's key."""

    kind = "bad_signature"
    http_status = 403


class ModelNotFound(NotFound):
    """No function serves a model of that name."""

    kind = "model_not_found"
