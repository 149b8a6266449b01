"""Which route a path means, and what can mean none."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.server.http.routing import (
    KNOWN,
    MAX_PATH,
    MAX_SEGMENT,
    Route,
    RouteTable,
    UnknownRoute,
    WrongMethod,
    is_name,
)
from tensorwasm.server.routes import ALL


def route(method, path):
    return Route(method, path, lambda call: None, "s", "g", None)


TABLE = RouteTable(
    [
        route("GET", "/functions"),
        route("POST", "/functions"),
        route("GET", "/functions/{id}"),
        route("POST", "/functions/{id}/invoke"),
        route("WS", "/functions/{id}/socket"),
        route("GET", "/functions/special"),
        route("GET", "/kernels/{name}/{version}"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found", "params"),
    [
        ("GET", "/functions", "/functions", {}),
        ("HEAD", "/functions", "/functions", {}),
        ("GET", "/functions/f", "/functions/{id}", {"id": "f"}),
        ("GET", "/functions/special", "/functions/special", {}),
        ("POST", "/functions/f@prod/invoke", "/functions/{id}/invoke", {"id": "f@prod"}),
        ("WS", "/functions/f/socket", "/functions/{id}/socket", {"id": "f"}),
        ("GET", "/kernels/gemm/1.0", "/kernels/{name}/{version}", {"name": "gemm", "version": "1.0"}),
        ("GET", "/functions/größe", "/functions/{id}", {"id": "größe"}),
    ],
)
def test_a_path_matches_its_route(method, path, found, params):
    matched, given_params = TABLE.match(method, path)
    assert (matched.path, dict(given_params)) == (found, params)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "functions",
        "/",
        "//functions",
        "/functions/",
        "/functions//invoke",
        "/functions/./invoke",
        "/functions/../functions",
        "/functions/..",
        "/Functions",
        "/functions/a/b/invoke",
        "/functions/a\0b",
        "/functions/a\nb",
        "/functions/a\u202eb",
        "/functions/a\ufffdb",
        "/functions/" + "a" * (MAX_SEGMENT + 1),
        "/functions" + "/a" * MAX_PATH,
        "/functions\\f",
        "/functions;x=1",
        "*",
    ],
)
def test_unusual_paths_match_nothing(path):
    for method in ("GET", "POST", "WS"):
        with pytest.raises(UnknownRoute):
            TABLE.match(method, path)
    with pytest.raises(UnknownRoute):
        TABLE.allowed(path)


def test_a_wrong_method_is_answered_with_the_allowed_ones():
    with pytest.raises(WrongMethod) as wrong:
        TABLE.match("DELETE", "/functions")
    assert wrong.value.allowed == ("GET", "HEAD", "OPTIONS", "POST")
    assert TABLE.allowed("/functions/f/socket") == ("GET", "OPTIONS")
    with pytest.raises(WrongMethod):
        TABLE.match("GET", "/functions/f/socket")


def test_duplicate_routes_and_brace_names_are_rejected():
    with pytest.raises(ValueError, match="twice"):
        RouteTable([route("GET", "/a"), route("GET", "/a")])
    with pytest.raises(ValueError, match="another route"):
        RouteTable([route("GET", "/a/{x}"), route("POST", "/a/{y}")])


NAMES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/"), min_size=1, max_size=40).filter(
    is_name
)


@given(st.data())
def test_every_route_matches_any_names_in_its_braces(data):
    table = RouteTable(ALL)
    wanted = data.draw(st.sampled_from(ALL))
    names = {}

    def fill(found):
        names[found[1]] = data.draw(NAMES)
        return names[found[1]]

    path = re.sub(r"\{(\w+)\}", fill, wanted.path)
    found, params = table.match(wanted.method, path)
    assert found.path == wanted.path or "{" not in found.path  # a name may be another route's own
    if found is wanted:
        assert dict(params) == names


@given(st.text(string.printable + "\0\u202e\ufffdäß𝄞", max_size=60))
def test_a_match_has_as_many_segments_as_its_path(path):
    try:
        found, params = TABLE.match("GET", path)
    except (UnknownRoute, WrongMethod):
        return
    assert len(found.path.split("/")) == len(path.split("/"))
    assert all(is_name(value) and "/" not in value for value in params.values())


def test_the_cache_of_matches_is_bounded():
    table = RouteTable([route("GET", "/functions/{id}")])
    first = table.match("GET", "/functions/f")
    assert table.match("GET", "/functions/f") is first
    for number in range(2 * KNOWN):
        assert table.match("GET", f"/functions/{number}")[1] == {"id": str(number)}
        assert len(table._known) <= KNOWN
