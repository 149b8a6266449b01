"""The routes as an OpenAPI document, and the document as a page for people.

The document is generated from the rows and types that requests are served by. The page is one file without scripts and
external resources.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
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
from tensorwasm.server.http.replies import ErrorBody, OpenAIBody
from tensorwasm.server.http.routing import Route
from tensorwasm.settings import package_version
from tensorwasm.tenancy.principal import SCOPES

VERSION: Final = "3.1.0"

EVERY: Final = (HostDenied, InvalidRequest, RequestTimeout, BodyTooLarge, InternalError)
"""Errors of every route."""

WORKING: Final = (Draining, CapacityExhausted)
"""Errors of every route but the probes."""

GUARDED: Final = (
    Unauthorized, MissingTenant, TenantScopeDenied, ScopeDenied, OriginDenied, RateLimited, QuotaExceeded,
    DatabaseUnavailable, InvokeTimeout,
)  # fmt: skip
"""Errors of every route that needs a token."""

_ID: Final = "^[!-~]{1,256}$"
_JSON: Final = "application/json"
_HEADERS: Final = {
    "X-Request-Id": {"schema": {"type": "string", "minLength": 1, "maxLength": 128}},
    "X-Trace-Id": {"schema": {"type": "string"}},
}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document, ready to be encoded. WebSocket routes are left out."""
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
            "description": "Run untrusted WebAssembly with access to a GPU.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name} for name in dict.fromkeys(route.group for route in shown)],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def errors_of(route: Route) -> tuple[type[TensorWasmError], ...]:
    """Return every error class of a route, once each."""
    has_json = _has_schema(route.request)
    conditional = (
        (WORKING, route.kind != "probes"),
        (GUARDED, route.scope is not None),
        ((InvalidJson,), has_json),
        ((UnknownField,), has_json and not route.openai),
        ((UnsupportedMediaType,), route.request is not None),
        ((NotFound,), "{" in route.path),  # a segment that braces do not match makes the path unknown
    )
    found = (*route.errors, *EVERY, *(error for errors, applies in conditional if applies for error in errors))
    return tuple(dict.fromkeys(found))


def _has_schema(kind: Any) -> bool:
    return kind is not None and kind is not bytes


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    words = re.sub(r"[^a-z0-9]+", "_", route.path.lower()).strip("_")
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{words}",
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
        content = {_JSON: {"schema": schemas[route.request]}} if _has_schema(route.request) else {}
        for kind in route.uploads or (("application/octet-stream",) if route.request is bytes else ()):
            content[kind] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": not route.optional_body, "content": content}
    return operation


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


def _responses(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": HTTPStatus(route.status).phrase, "headers": _HEADERS}
    if _has_schema(route.response):
        success["content"] = {_JSON: {"schema": schemas[route.response]}}
    elif route.response is bytes:
        success["content"] = {"*/*": {}}
    responses = {str(route.status): success}
    if route.etag:
        success["headers"] = _HEADERS | {"ETag": {"schema": {"type": "string"}}}
        responses["304"] = {"description": "If-None-Match has the current ETag.", "headers": _HEADERS}
    kinds: dict[int, dict[str, None]] = {}
    for error in errors_of(route):
        kinds.setdefault(error.http_status, {})[error.kind] = None
    for status in sorted(kinds):
        responses[str(status)] = {
            "description": ", ".join(kinds[status]),
            "headers": _HEADERS,
            "content": {_JSON: {"schema": schemas[OpenAIBody if route.openai else ErrorBody]}},
            "x-error-kinds": list(kinds[status]),
        }
    return responses


# ---------------------------------------------------------------- the page

_STYLE: Final = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h2{margin:2rem 0 .5rem;text-transform:capitalize}
details{border:1px solid #8884;border-radius:.4rem;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer}
code,pre{font:14px/1.4 ui-monospace,monospace}
pre{overflow:auto;padding:.6rem;background:#8881;border-radius:.3rem}
b{display:inline-block;min-width:4.2rem}
table{border-collapse:collapse;margin:.5rem 0}
td{padding:.15rem .8rem .15rem 0;vertical-align:top}
"""

_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page's Content-Security-Policy: it runs and loads nothing."""


def render(document: dict[str, Any]) -> bytes:
    """Return a document as an HTML page."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(document['info']['description'])} "
        f'For programs: <a href="/openapi.json">openapi.json</a>.</p>{"".join(_groups(document))}</html>'
    ).encode()


def _groups(document: dict[str, Any]) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    yield _section(path, method, operation)
    yield "<h2>Types</h2>"
    for name, schema in document["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=2))
        yield f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><pre>{text}</pre></details>'


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code><td>{escape(each['in'])}<td>{escape(each.get('description', ''))}"
        for each in operation["parameters"]
    )
    replies = "".join(
        f"<tr><td><code>{escape(status)}</code><td>{escape(reply['description'])}<td>{_links(reply)}"
        for status, reply in operation["responses"].items()
    )
    taken = f"<p>Takes {_links(operation['requestBody'])}</p>" if "requestBody" in operation else ""
    return (
        f"<details><summary><b>{escape(method.upper())}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"
        f"</summary><p>{escape(operation.get('description', 'Needs no token.'))}</p>"
        f"<table>{rows}</table>{taken}<table>{replies}</table></details>"
    )


def _links(part: dict[str, Any]) -> str:
    found = []
    for kind, content in part.get("content", {}).items():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        found.append(f'<a href="#{escape(name)}">{escape(name)}</a>' if name else escape(kind))
    return ", ".join(found)
