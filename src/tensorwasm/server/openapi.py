"""The routes as an OpenAPI document, made from the same rows and types that requests are served by.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from tensorwasm.errors import (
    BodyTooLarge,
    CapacityExhausted,
    DatabaseUnavailable,
    Draining,
    HostDenied,
    InternalError,
    InvalidJson,
    InvalidRequest,
    InvokeTimeout,
    MissingTenant,
    NotFound,
    OriginDenied,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    ScopeDenied,
    TenantScopeDenied,
    TensorWasmError,
    Unauthorized,
    UnknownField,
    UnsupportedMediaType,
)
from tensorwasm.server.answers import ErrorBody, OpenAIBody
from tensorwasm.server.routing import Route
from tensorwasm.settings import package_version
from tensorwasm.tenancy.principal import SCOPES

VERSION: Final = "3.1.0"

EVERY: Final[tuple[type[TensorWasmError], ...]] = (
    HostDenied,
    InvalidRequest,
    RequestTimeout,
    BodyTooLarge,
    InternalError,
)
"""What any route can answer."""

WORKING: Final = (Draining, CapacityExhausted)
"""What any can that is not a probe."""

GUARDED: Final = (
    Unauthorized, MissingTenant, TenantScopeDenied, ScopeDenied, OriginDenied, RateLimited, QuotaExceeded,
    DatabaseUnavailable, InvokeTimeout,
)  # fmt: skip
"""What any can that is not open."""

_ID: Final = "^[!-~]{1,256}$"
_JSON: Final = "application/json"


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document, ready to be encoded."""
    shown = [route for route in routes if route.method != "WS"]
    types = {kind for route in shown for kind in (route.request, route.response) if _has_schema(kind)}
    ordered = sorted(types | {ErrorBody, OpenAIBody}, key=repr)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": VERSION,
        "info": {
            "title": "TensorWasm",
            "version": package_version(),
            "description": "Run untrusted WebAssembly with a GPU in reach.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name} for name in dict.fromkeys(route.group for route in shown)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def errors_of(route: Route) -> tuple[type[TensorWasmError], ...]:
    """Return every class that a route can answer with, without repeats."""
    found = [*route.errors, *EVERY]
    if route.kind != "probes":
        found += WORKING
    if route.scope is not None:
        found += GUARDED
    if _has_schema(route.request):
        found += (InvalidJson, UnknownField) if not route.openai else (InvalidJson,)
    if route.request is not None:
        found.append(UnsupportedMediaType)
    if "{" in route.path:
        found.append(NotFound)  # what braces cannot stand for is no path at all
    return tuple(dict.fromkeys(found))


def _has_schema(kind: Any) -> bool:
    return kind is not None and kind is not bytes


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.group],
        "parameters": _parameters(route),
        "responses": _responses(route, schemas),
    }
    if route.scope is not None:
        operation["security"] = [{"bearer": []}]
        allowed = SCOPES.get(route.scope, "")
        operation["description"] = f"Needs the scope `{route.scope}`" + (f": {allowed}." if allowed else ".")
    if route.request is not None:
        operation["requestBody"] = _body(route, schemas)
    return operation


def _operation_id(route: Route) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", route.path.lower()).strip("_")
    return f"{route.method.lower()}_{words}"


def _parameters(route: Route) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", route.path)
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": _ID}} for name in names
    ]
    found += [
        {"name": name, "in": "query", "required": False, "description": param.meaning, "schema": param.schema}
        for name, param in route.query.items()
    ]
    if route.scope is not None and route.tenant:
        tenant = {"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1}
        found.append({"name": "X-TensorWasm-Tenant", "in": "header", "required": False, "schema": tenant})
    return found


def _body(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if _has_schema(route.request):
        content[_JSON] = {"schema": schemas[route.request]}
    for kind in route.uploads or (("application/octet-stream",) if route.request is bytes else ()):
        content[kind] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": not route.optional_body, "content": content}


def _responses(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": HTTPStatus(route.status).phrase, "headers": _HEADERS}
    if _has_schema(route.response):
        success["content"] = {_JSON: {"schema": schemas[route.response]}}
    elif route.response is bytes:
        success["content"] = {"*/*": {}}
    shape = schemas[OpenAIBody if route.openai else ErrorBody]
    responses = {str(route.status): success}
    if route.etag:
        success["headers"] = _HEADERS | {"ETag": {"schema": {"type": "string"}}}
        responses["304"] = {"description": "The client has it: If-None-Match has its ETag.", "headers": _HEADERS}
    for status, kinds in sorted(_by_status(errors_of(route)).items()):
        responses[str(status)] = {
            "description": ", ".join(kinds),
            "headers": _HEADERS,
            "content": {_JSON: {"schema": shape}},
            "x-error-kinds": kinds,
        }
    return responses


def _by_status(errors: Iterable[type[TensorWasmError]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for error in errors:
        kinds = found.setdefault(error.http_status, [])
        if error.kind not in kinds:
            kinds.append(error.kind)
    return found


_HEADERS: Final = {
    "X-Request-Id": {"schema": {"type": "string", "minLength": 1, "maxLength": 128}},
    "X-Trace-Id": {"schema": {"type": "string"}},
}
