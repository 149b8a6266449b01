"""A server that speaks TLS itself: to browsers' standards, with clients' certificates, and with files that change."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import ssl
import time

import httpx
import pytest
from websockets.sync.client import connect

from fakes.certificates import Authority
from servers import running_server


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def trusting(authority, shown=None):
    context = ssl.create_default_context(cafile=str(authority.file))
    if shown is not None:
        context.load_cert_chain(shown)
    return context


@pytest.fixture(scope="module")
def server(authority, tmp_path_factory):
    shown = tmp_path_factory.mktemp("shown") / "server.pem"
    shutil.copy(authority.issue("first"), shown)
    with running_server(tmp_path_factory.mktemp("tls") / "data", "--tls-cert", str(shown)) as running:
        running.certificate = shown
        yield running


@pytest.fixture(scope="module")
def mutual(authority, tmp_path_factory):
    files = ("--tls-cert", str(authority.issue("server")), "--tls-client-ca", str(authority.file))
    with running_server(tmp_path_factory.mktemp("mutual") / "data", *files) as running:
        yield running


def test_requests_and_large_answers_go_over_tls(server, authority):
    assert server.url.startswith("https://")
    with server.client(verify=trusting(authority)) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/openapi.json").json()["openapi"]
        refused = client.post("/functions", json={"name": "x" * 1_000_000})
        assert refused.json()["error"]["kind"]


def test_a_client_that_does_not_trust_the_authority_gets_nothing(server):
    with pytest.raises(httpx.ConnectError), httpx.Client(base_url=server.url) as client:
        client.get("/healthz")


@pytest.mark.parametrize("said", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 1000])
def test_what_is_no_handshake_ends_its_connection_alone(server, authority, said):
    with socket.create_connection(("127.0.0.1", server.port), 30) as link:
        link.sendall(said)
        link.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while received := link.recv(1 << 16):
                assert b"HTTP/1.1 200" not in received
    with server.client(verify=trusting(authority)) as client:
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_http_1_1_is_agreed_on(server, authority, version):
    context = trusting(authority)
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", server.port), 30) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as link,
    ):
        assert link.selected_alpn_protocol() == "http/1.1"
        assert link.version() == version.name.replace("_", ".")


def test_a_websocket_goes_over_tls(server, authority):
    with server.client(verify=trusting(authority)) as client:
        wasm = "AGFzbQEAAAABBQFgAAF/AwIBAAcIAQRtYWluAAAKBgEEAEEHCw=="
        function = client.post("/functions", json={"name": "seven", "wasm_b64": wasm}).json()["id"]
    url = f"wss://127.0.0.1:{server.port}/functions/{function}/invoke-ws"
    with connect(url, ssl=trusting(authority), additional_headers=server.headers, open_timeout=30) as link:
        link.send("{}")
        assert "done" in json.loads(link.recv(30))


def test_a_renewed_certificate_is_shown_after_sighup_and_a_broken_one_is_not(server, authority):
    def shown():
        with (
            socket.create_connection(("127.0.0.1", server.port), 30) as raw,
            trusting(authority).wrap_socket(raw, server_hostname="127.0.0.1") as link,
        ):
            return dict(part[0] for part in link.getpeercert()["subject"])["commonName"]

    def renew(file):
        file.replace(server.certificate)
        server.process.send_signal(signal.SIGHUP)

    assert shown() == "first"
    broken = server.certificate.with_name("broken.pem")
    broken.write_text("no PEM")
    errors = server.data.with_suffix(".stderr")
    renew(broken)
    ends_s = time.monotonic() + 30
    while "the certificate is not renewed" not in errors.read_text() and time.monotonic() < ends_s:
        pass
    assert shown() == "first"
    renew(authority.issue("second"))
    while (found := shown()) == "first" and time.monotonic() < ends_s:
        pass
    assert found == "second"


def test_only_clients_with_a_certificate_of_the_authority_are_served(mutual, authority, tmp_path):
    stranger = Authority(tmp_path, "strangers").issue("stranger")
    for context in (trusting(authority), trusting(authority, stranger)):
        with pytest.raises((httpx.HTTPError, ssl.SSLError)), mutual.client(verify=context) as client:
            client.get("/healthz")
    with mutual.client(verify=trusting(authority, authority.issue("alice"))) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/functions", headers={"Authorization": "Bearer none"}).status_code == 401


def test_the_audit_log_says_whose_certificate_was_shown(mutual, authority):
    with mutual.client(verify=trusting(authority, authority.issue("bob"))) as client:
        forged = {"X-Forwarded-Client-Cert": 'Subject="CN=root"'}
        client.post("/functions", json={"name": "x"}, headers=forged | {"X-Request-Id": "by-bob"})
    mutual.process.send_signal(signal.SIGHUP)  # which writes what waits
    ends_s = time.monotonic() + 30
    while time.monotonic() < ends_s:
        lines = [json.loads(line) for line in (mutual.data / "audit.log").read_text().splitlines()]
        mine = [line for line in lines if line.get("request_id") == "by-bob"]
        if mine:
            break
    assert mine[0]["client_cert_subject"] == "CN=bob,O=Tests\\, Inc."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tls-key", "{key}"], "TLS needs a certificate"),
        (["--tls-client-ca", "{ca}"], "TLS needs a certificate"),
        (["--tls-cert", "/nonexistent"], "TENSOR_WASM_TLS_CERT"),
        (["--tls-cert", "{ca}"], "TENSOR_WASM_TLS_KEY"),
        (["--tls-cert", "{key}", "--tls-client-ca", "/nonexistent"], "TENSOR_WASM_TLS_CLIENT_CA"),
    ],
)
def test_files_that_do_not_fit_are_named_before_anything_is_served(arguments, said, authority, tmp_path):
    given = [each.format(key=authority.issue("some"), ca=authority.file) for each in arguments]
    with pytest.raises(AssertionError, match=said), running_server(tmp_path / "data", *given):
        pass
