"""Client commands in general: options, headers, errors as exit codes, no control characters on the terminal."""

import subprocess
import sys

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.client import refuse
from tensorwasm.cli.output import clean
from tensorwasm.cli.remote.client import Client, ServerOptions, is_loopback
from tensorwasm.errors import InvalidArgs

METRICS = httpx.Response(200, text="a 1\n")


def test_a_request_has_the_token_and_the_tenant(server, cli, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_TOKEN", "hunter2")
    server["GET /metrics"] = METRICS
    assert cli("metrics", "--tenant", 2**64 - 1).code == 0
    headers = server.requests[0].headers
    assert (headers["Authorization"], headers["X-TensorWasm-Tenant"]) == ("Bearer hunter2", str(2**64 - 1))


def test_the_server_is_an_option_or_from_the_environment(server, cli, monkeypatch):
    server["GET /metrics"] = METRICS
    for variable, arguments, host in (
        (None, (), "127.0.0.1:8080"),
        ("https://one:1/", (), "one:1"),
        ("https://one", ("--server", "http://localhost:9"), "localhost:9"),
    ):
        monkeypatch.setenv("TENSOR_WASM_SERVER", variable or "")
        assert cli("metrics", *arguments).code == 0
        assert server.requests[-1].url.netloc == host.encode()
    monkeypatch.setenv("TENSOR_WASM_SERVER", "one")
    assert cli("metrics").code == 2


def test_tenant_0_and_an_empty_token_are_left_out(server, cli):
    server["GET /metrics"] = METRICS
    assert cli("metrics", "--tenant", 0).code == 0
    assert not {"authorization", "x-tensorwasm-tenant"} & set(server.requests[0].headers)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tenant", "-1"),
        ("--tenant", str(2**64)),
        ("--server", "ftp://host"),
        ("--server", "host:8080"),
        ("--server", "http://user:hunter2@host"),
        ("--server", "http://host?token=hunter2"),
        ("--server", "https://127.0.0.1", "--ca-cert", __file__),
        ("--server", "https://127.0.0.1", "--ca-cert", "/nonexistent"),
        ("--server", "https://127.0.0.1", "--client-cert", __file__),
    ],
)
def test_an_invalid_option_exits_with_2_and_nothing_is_sent(server, cli, arguments):
    done = cli("metrics", *arguments)
    assert done.code == 2
    assert not server.requests
    assert "hunter2" not in done.out + done.err


@pytest.mark.parametrize("token", ["hunter2\r\nX-Evil: 1", "hunter2 2", "hünter2"])
def test_a_token_that_is_invalid_in_a_header_is_refused_and_not_shown(server, cli, monkeypatch, token):
    monkeypatch.setenv("TENSOR_WASM_TOKEN", token)
    done = cli("metrics")
    assert done.code == 2
    assert "nter2" not in done.err


def test_a_token_is_not_in_the_repr_of_the_options(server, cli, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_TOKEN", "hunter2")
    server["GET /metrics"] = METRICS
    assert cli("metrics").code == 0
    assert "hunter2" not in repr(server.options)


@pytest.mark.parametrize(
    ("server_url", "warned"),
    [("http://10.0.0.1:8080", 1), ("http://localhost:8080", 0), ("http://[::1]:8080", 0), ("https://10.0.0.1", 0)],
)
def test_a_token_in_the_clear_is_warned_of_once(server, cli, monkeypatch, server_url, warned):
    monkeypatch.setenv("TENSOR_WASM_TOKEN", "hunter2")
    server["GET /metrics"] = METRICS
    done = cli("metrics", "--server", server_url)
    assert (done.code, done.err.count("in the clear")) == (0, warned)


def test_insecure_is_warned_of(server, cli):
    server["GET /metrics"] = METRICS
    assert "--insecure" in cli("metrics", "--insecure", "--server", "https://host").err


def test_an_unreachable_server_exits_with_1(server, cli):
    server["GET /metrics"] = httpx.ConnectError("nobody\x1b[31m there")
    done = cli("metrics")
    assert (done.code, done.err) == (1, "error: server_unreachable: the server cannot be reached: nobody[31m there\n")


def test_a_broken_connection_exits_with_1(server, cli):
    server["GET /metrics"] = httpx.RemoteProtocolError("cut")
    done = cli("metrics")
    assert (done.code, done.err) == (1, "error: server_unreachable: the connection to the server broke off: cut\n")


def test_a_missing_route_exits_with_3(server, cli):
    done = cli("metrics")
    assert (done.code, done.err.split(":")[1]) == (3, " endpoint_missing")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refuse(404, "not_found", "there is no such function"), "not_found: there is no such function"),
        (refuse(401, "unauthorized", "no\x07 token"), "unauthorized: no token (TENSOR_WASM_TOKEN is not set)"),
        (refuse(400, "in\nvalid", "args"), "invalid: args"),
        (httpx.Response(502, text="<html>"), "refused: the server answers 502, without an error of TensorWasm"),
        (httpx.Response(500, json={"error": 7}), "refused: the server answers 500, without an error of TensorWasm"),
        (httpx.Response(302, headers={"Location": "http://evil"}), "refused: the server answers 302"),
    ],
)
def test_a_refusal_exits_with_1_and_is_printed_without_control_characters(server, cli, answer, said):
    server["GET /metrics"] = answer
    done = cli("metrics")
    assert (done.code, len(server.requests)) == (1, 1)
    assert done.err.startswith(f"error: {said}")


def test_an_answer_that_is_not_json_is_refused(server):
    server["GET /x"] = httpx.Response(200, text="{")
    with server.connect(ServerOptions()) as client, pytest.raises(Exception, match="not JSON"):
        client.call("GET", "/x")


@given(st.text())
def test_cleaned_text_is_printable(text):
    assert not text or clean(text).isprintable()


@given(st.ip_addresses())
def test_only_addresses_of_this_machine_are_loopback(address):
    assert is_loopback(str(address)) == address.is_loopback


def test_a_url_with_an_invalid_port_is_refused():
    with pytest.raises(InvalidArgs):
        Client(ServerOptions(server="https://host:port"))


def test_help_does_not_load_httpx():
    code = "import sys; sys.argv[1:] = ['--help']; from tensorwasm.cli.app import app; print('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
