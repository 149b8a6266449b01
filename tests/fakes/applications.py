"""A whole service behind its pipeline, without a network, and tokens for it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec

from fakes.services import opened
from tensorwasm.server.application import Application
from tensorwasm.server.routes import ALL
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.audit import AuditRecord

ALPHA = "alpha-token-0000000000"
BETA = "beta-token-00000000000"
ANY = "any-token-000000000000"
TOKENS = f"{ALPHA}:tenant=7,{BETA}:tenant=8,{ANY}:tenant=*"


def read_record(record):
    """Return an audit record as a struct, which may be encoded already."""
    if not isinstance(record, bytes):
        return record
    fields = msgspec.json.decode(record)
    raw = {name: msgspec.Raw(msgspec.json.encode(fields[name])) for name in ("actor", "outcome")}
    return AuditRecord(**fields | raw)


def bearer(token, tenant=None):
    """Return the headers of who asks."""
    headers = {"Authorization": f"Bearer {token}"}
    return headers if tenant is None else headers | {"X-TensorWasm-Tenant": str(tenant)}


@asynccontextmanager
async def serving(folder, routes=ALL, *, max_body_bytes=None, **environment):
    """Open a service in a folder, and its application; give the service and the pipeline."""
    environment = {"TENSOR_WASM_API_TOKENS": TOKENS} | environment
    metrics = Metrics([(route.method, route.path) for route in routes])
    async with opened(folder, environment=environment, metrics=metrics) as service:
        application = Application(service, routes, max_body_bytes=max_body_bytes)
        try:
            yield service, application.pipeline
        finally:
            await application.drain(5.0)
