"""The server keeps what its OpenAPI document promises: tried with made-up requests, the same ones every time."""

import json

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.transport.serialization import serialize_binary

from neighbours import until
from tensorwasm.server.openapi import describe
from tensorwasm.server.routes import ALL
from tensorwasm.server.routes.functions import UPLOADS

EXAMPLES = 10

UNFIT = {"positive_data_acceptance"}
"""No schema says which base64 is a module, or which function is there."""


@schemathesis.serializer(*UPLOADS)
def as_it_is(_context, value):
    return serialize_binary(value)


load_all_checks()
CHOSEN = [check for check in CHECKS.get_all() if check.__name__ not in UNFIT]
DOCUMENT = json.loads(msgspec.json.encode(describe(ALL)))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def tried(start_module_server):
    keys = {"TENSOR_WASM_API_KERNEL_HMAC_KEY": "5e" * 32, "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY": "5e" * 32}
    with start_module_server(TENSOR_WASM_API_TENANT_CAPS="", **keys) as server:
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)  # a server error is no promise kept
        yield server


def test_the_document_that_is_served_is_that_of_the_routes(tried):
    assert httpx.get(f"{tried.url}/openapi.json").json() == DOCUMENT


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_promises_are_kept(case, tried):
    case.call_and_validate(base_url=tried.url, headers=tried.headers, checks=CHOSEN, timeout=30)
