"""The clients of the service's benchmarks, and the requests that they make."""

import asyncio
import json
from collections import Counter

import pytest

from tensorwasm.bench.service import soak
from tensorwasm.bench.service.neighbours import LOADS
from tensorwasm.bench.service.serving import connect
from tensorwasm.errors import InternalError

TENANT = soak.SoakTenant(1, {}, {"add": "f1"})


class Answering:
    """A client that is given its answers, and remembers its requests."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    async def ask(self, tenant, method, path, body=None):
        self.requests.append((method, path.format_map(tenant.functions), body))
        status, answer = self.answers.pop(0)
        return status, json.dumps(answer).encode()


def step(name, client):
    operation = next(operation for operation in soak.OPERATIONS if operation.name == name)
    return asyncio.run(operation.step(client, TENANT))


def test_a_script_follows_the_id_in_its_first_answer():
    client = Answering((201, {"id": "s1"}), (200, {}), (204, None))
    assert step("session", client) == (201, 200, 204)
    assert client.requests == [
        ("POST", "/sessions", {"function": "f1"}),
        ("POST", "/sessions/s1/invoke", {"export": "add", "args": [1, 2]}),
        ("DELETE", "/sessions/s1", None),
    ]


def test_a_script_ends_with_a_first_request_that_fails():
    assert step("session", Answering((429, {}))) == (429,)


def test_a_wrong_answer_fails_the_benchmark():
    with pytest.raises(InternalError, match="/jobs"):
        step("job", Answering((202, {"job_id": "j1"}), (200, {"status": "failed"})))


def answer_from(pieces):
    """Return the answer that a connection reads from pieces, after which the server ends."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def ask():
        async with await asyncio.start_server(serve, "127.0.0.1") as server:
            connection = await connect(*server.sockets[0].getsockname())
            try:
                return await connection.ask("GET", "/", {})
            finally:
                connection._transport.abort()
                await ended.wait()

    ended = asyncio.Event()
    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 3\r\n\r\na", b"bc"], (200, b"abc")),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], (204, b"")),
    ],
)
def test_an_answer_is_read_from_its_pieces(pieces, answer):
    assert answer_from(pieces) == answer


def test_a_connection_that_ends_before_the_answer_is_an_error():
    with pytest.raises(ConnectionError):
        answer_from([b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na"])


def test_answers_of_a_load_are_counted_by_kind():
    assert LOADS[0].tally(Counter({200: 3, 429: 2, 0: 1})) == (3, 2, 1)
