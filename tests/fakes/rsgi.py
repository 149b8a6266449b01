"""RSGI's side of a request: what came, what still comes of its body, and what was answered."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

from tensorwasm.server.exchange import Exchange


class FakeHeaders(dict):
    """Headers by lower-case names; a line break stands between two of one name."""

    def get(self, name, default=None):
        return self.get_all(name)[0] if name in self else default

    def get_all(self, name):
        return [each.strip() for each in self[name].split("\n")] if name in self else []


class SentHeaders:
    """The head of an answer, field by field as it was sent: one that is asked for by its name must be there once.

    No field of ours may be there twice: browsers read two of `Access-Control-Allow-Origin` as none.
    """

    def __init__(self, pairs):
        self.pairs = [(name.lower(), value) for name, value in pairs]
        names = [name for name, _ in self.pairs]
        assert len(names) == len(set(names)), f"a field is there twice: {self.pairs}"

    def __getitem__(self, name):
        return dict(self.pairs)[name.lower()]

    def __contains__(self, name):
        return any(each == name.lower() for each, _ in self.pairs)


@dataclass
class FakeScope:
    method: str = "GET"
    path: str = "/"
    query_string: str = ""
    client: str = "127.0.0.1:40000"
    server: str = "127.0.0.1:8080"
    authority: str | None = None
    proto: str = "http"
    http_version: str = "1.1"
    scheme: str = "http"
    headers: FakeHeaders = field(default_factory=FakeHeaders)


class FakeProto:
    """Takes one answer; gives a body in chunks, of which an `asyncio.Event` is waited for, once."""

    def __init__(self, chunks=()):
        self.chunks = None if chunks is None else [*chunks, b""]
        self.status = None
        self.headers = SentHeaders(())
        self.body = b""
        self.answered = asyncio.Event()
        self.leaving = asyncio.get_running_loop().create_future()

    def __aiter__(self):
        assert self.chunks is not None, "the body was read ahead"
        return self

    async def __anext__(self):
        if not self.chunks:
            raise StopAsyncIteration
        chunk = self.chunks.pop(0)
        if isinstance(chunk, asyncio.Event):
            await chunk.wait()
            return await self.__anext__()
        return chunk

    def client_disconnect(self):
        return self.leaving

    def response_empty(self, status, headers):
        self.response_bytes(status, headers, b"")

    def response_bytes(self, status, headers, body):
        assert self.status is None, "answered twice"
        self.status, self.body = status, body
        self.headers = SentHeaders(headers)
        self.answered.set()

    def response_stream(self, status, headers):
        self.status, self.headers = status, SentHeaders(headers)
        return self

    def close(self, status=None):
        self.response_bytes(status, [], b"")

    def json(self):
        return json.loads(self.body)

    @property
    def kind(self):
        """The kind of the error that was answered; None for none."""
        return self.json().get("error", {}).get("kind") if self.body[:1] == b"{" else None


async def ask(pipeline, method, path, *, headers=None, body=b"", chunks=None, query="", **scope):
    """Send a request through a pipeline; return its `FakeProto`, answered.

    Args:
        headers: of one that is there twice both, with a line break between; a body is JSON unless they say otherwise.
        chunks: the body in pieces, read when it is needed; instead of ``body``.
    """
    given = FakeHeaders({} if scope.get("http_version") == "2" else {"host": "localhost"})
    if body or chunks:
        given["content-type"] = "application/json"
    given.update({name.lower(): value for name, value in (headers or {}).items()})
    proto = FakeProto(chunks)
    seen = FakeScope(method=method, path=path, query_string=query, headers=given, **scope)
    if method == "WS":
        seen.method, seen.proto = "GET", "ws"
    pipeline.start(Exchange(seen, proto, given, None if chunks is not None else body, time.perf_counter_ns()))
    await asyncio.wait_for(proto.answered.wait(), 30)
    return proto
