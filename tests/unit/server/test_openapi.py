"""The document says all that the routes do, and nothing else."""

import json
import re

import msgspec
import pytest

import tensorwasm.errors
from tensorwasm.errors import TensorWasmError
from tensorwasm.server.openapi import POLICY, describe, errors_of, render
from tensorwasm.server.routes import ALL

DOCUMENT = json.loads(msgspec.json.encode(describe(ALL)))
SHOWN = [route for route in ALL if route.method != "WS"]


def test_every_route_is_in_the_document_and_nothing_else():
    told = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert told == {(route.method, route.path) for route in SHOWN}
    names = [each["operationId"] for methods in DOCUMENT["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("route", SHOWN, ids=lambda route: f"{route.method} {route.path}")
def test_every_error_of_a_route_is_in_the_document_under_its_status(route):
    responses = DOCUMENT["paths"][route.path][route.method.lower()]["responses"]
    assert str(route.status) in responses
    for error in errors_of(route):
        assert error.kind in responses[str(error.http_status)]["x-error-kinds"], error
    parameters = DOCUMENT["paths"][route.path][route.method.lower()]["parameters"]
    in_path = [each["name"] for each in parameters if each["in"] == "path"]
    assert in_path == re.findall(r"\{(\w+)\}", route.path)


def test_every_error_kind_exists():
    kinds = {
        value.kind
        for value in vars(tensorwasm.errors).values()
        if isinstance(value, type) and issubclass(value, TensorWasmError)
    }
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            for response in operation["responses"].values():
                assert set(response.get("x-error-kinds", ())) <= kinds


def references(part):
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        for each in part.values():
            yield from references(each)
    elif isinstance(part, list):
        for each in part:
            yield from references(each)


def test_every_reference_leads_somewhere():
    schemas = DOCUMENT["components"]["schemas"]
    found = list(references(DOCUMENT))
    assert found
    for each in found:
        assert each.removeprefix("#/components/schemas/") in schemas


def test_the_page_loads_and_runs_nothing():
    page = render(DOCUMENT).decode()
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!#|/openapi\.json)', page)
    assert "default-src 'none'" in POLICY
    assert "unsafe" not in POLICY
    for route in SHOWN:
        assert f"<code>{route.path}</code>" in page


def test_the_document_is_escaped_on_the_page():
    hostile = {
        "info": {"title": "<b>", "version": "1", "description": "<script>"},
        "tags": [{"name": "<i>"}],
        "paths": {"/<u>": {"get": {"tags": ["<i>"], "summary": "<s>", "parameters": [], "responses": {}}}},
        "components": {"schemas": {'"><x>': {"a": "<y>"}}},
    }
    page = render(hostile).decode()
    for each in ("<script>", "<i>", "<u>", "<s>", "<x>", "<y>"):
        assert each not in page
