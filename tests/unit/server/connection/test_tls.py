"""Connections that shake hands take places like all others, and are ended like all others."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from types import SimpleNamespace

import pytest
from cryptography import x509

from fakes.certificates import Authority
from tensorwasm.errors import InvalidArgs
from tensorwasm.server.connection import listener as module
from tensorwasm.server.connection.listener import Listener
from tensorwasm.server.connection.tls import ServerTls, subject_of
from tensorwasm.server.process.address import ListenAddress, listen


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


MOST = 3


def serve_hello(wire):
    wire.answer(200, [("x-certificate", wire.peer[1])], b"hello")


def run(tmp_path, authority, story, *, counts=False, **files):
    async def listened():
        listener = Listener(serve_hello, MOST, 10.0, ServerTls(str(authority.issue("server")), **files))
        path = str(tmp_path / "socket")
        await listener.listen(listen(ListenAddress(path=path))[1])
        try:
            await asyncio.wait_for(story(path, listener) if counts else story(path), 30)
        finally:
            await listener.close(1.0)

    asyncio.run(listened())


async def ask(path, authority, shown=None, hesitate=None):
    context = ssl.create_default_context(cafile=str(authority.file))
    if shown is not None:
        context.load_cert_chain(shown)
    reader, writer = await asyncio.open_unix_connection(path, ssl=context, server_hostname="127.0.0.1")
    if hesitate is not None:
        await hesitate()
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    said = await reader.read()
    writer.close()
    return said


def test_clients_that_shake_no_hands_make_room_for_those_that_do(tmp_path, authority):
    async def story(path):
        idle = [await asyncio.open_unix_connection(path) for _ in range(8)]
        assert (await ask(path, authority)).endswith(b"hello")
        assert await idle[0][0].read() == b""
        for _, writer in idle:
            writer.close()

    run(tmp_path, authority, story)


def test_a_burst_of_clients_that_shake_no_hands_takes_no_more_places_than_there_are(tmp_path, authority):
    async def story(path, listener):
        idle = [await asyncio.open_unix_connection(path) for _ in range(20)]
        await ask(path, authority)
        assert len(listener._handshakes) <= MOST
        for _, writer in idle:
            writer.close()

    run(tmp_path, authority, story, counts=True)


def test_a_client_whose_handshake_ends_as_its_place_is_needed_keeps_its_connection(tmp_path, authority):
    async def story(path, listener):
        admit, admitted = listener.admit, asyncio.Event()

        def admit_as_another_comes(connection):
            found = admit(connection)
            listener._make_room()
            admitted.set()
            return found

        async def hesitate():
            await admitted.wait()
            for _ in range(20):
                await asyncio.sleep(0)

        listener.admit, listener._most = admit_as_another_comes, 1
        assert (await ask(path, authority, hesitate=hesitate)).endswith(b"hello")

    run(tmp_path, authority, story, counts=True)


def test_a_handshake_that_was_ended_takes_no_place_if_it_succeeds_all_the_same(tmp_path, authority):
    async def story(path, listener):
        admit, admitted = listener.admit, []

        def admit_once_ended(connection):
            listener._most = 0
            listener._make_room()
            listener._most = MOST
            admitted.append(admit(connection))
            return admitted[-1]

        listener.admit = admit_once_ended
        assert await ask(path, authority) == b""
        assert admitted == [False]

    run(tmp_path, authority, story, counts=True)


def test_clients_that_take_no_part_in_an_end_leave_their_places_all_the_same(tmp_path, authority):
    def open_one(path):
        context = ssl.create_default_context(cafile=str(authority.file))
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(20)
        raw.connect(path)
        return context.wrap_socket(raw, server_hostname="127.0.0.1")

    async def story(path, listener):
        idle = [await asyncio.to_thread(open_one, path) for _ in range(4 * MOST)]
        assert (await ask(path, authority)).endswith(b"hello")
        assert len(listener._connections) <= MOST
        for each in idle:
            each.close()

    run(tmp_path, authority, story, counts=True)


def test_a_handshake_has_a_time_limit(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.05)

    async def story(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"\x16\x03\x01")
        assert await reader.read() == b""
        writer.close()

    run(tmp_path, authority, story)


def test_a_request_knows_whose_certificate_was_shown(tmp_path, authority):
    async def story(path):
        assert b"x-certificate: CN=alice,O=Tests\\, Inc.\r\n" in await ask(path, authority, authority.issue("alice"))

    run(tmp_path, authority, story, client_ca=str(authority.file))


def test_a_key_that_is_not_the_certificates_is_refused(authority):
    with pytest.raises(InvalidArgs, match="TENSOR_WASM_TLS_KEY"):
        ServerTls(str(authority.issue("one")), str(authority.issue("other")))


def test_versions_that_browsers_have_given_up_are_not_spoken(authority):
    assert ServerTls(str(authority.issue("server"))).context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("error", [ValueError, TypeError, partial(x509.InvalidVersion, parsed_version=3)])
def test_a_certificate_that_cannot_be_read_names_nobody(monkeypatch, error):
    """Found by hand: OpenSSL takes certificates of a version that there is not."""

    def load(_):
        raise error("x")

    monkeypatch.setattr(x509, "load_der_x509_certificate", load)
    link = SimpleNamespace(getpeercert=lambda binary_form: b"x")
    assert subject_of(SimpleNamespace(get_extra_info=lambda _: link)) == ""
