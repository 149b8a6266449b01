"""A request without a connection: what came, what still comes of its body, and what was answered."""

from __future__ import annotations

import asyncio
import json
import time

from tensorwasm.server.connection.fields import RequestFields
from tensorwasm.server.connection.request import RequestHead
from tensorwasm.server.exchange import Exchange


def fields_of(given):
    """Return fields by their names; a line break stands between two of one name."""
    fields = RequestFields()
    for name, values in given.items():
        for value in values.split("\n"):
            fields.add(name.encode(), value.strip().encode())
    return fields


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


class FakeWire:
    """Takes one answer; gives a body in chunks, of which an `asyncio.Event` is waited for, once."""

    def __init__(self, method="GET", path="/", *, headers=None, body=b"", chunks=None, query="", **more):
        head = self.head = RequestHead(method, more.pop("version", "1.1"), fields_of(headers or {}))
        head.path, head.query = path, query
        head.host = more.pop("host", None) or head.fields.get("host")
        head.websocket = method == "WS"
        self.peer = more.pop("client", "127.0.0.1"), more.pop("certificate", "")
        self.broken = more.pop("broken", None)
        assert not more, more
        self.long = chunks is not None
        self.chunks = None if chunks is None else list(chunks)
        self._body = body
        self.status = None
        self.headers = SentHeaders(())
        self.body = b""
        self.answered = asyncio.Event()
        self.left = False
        self.abandoned = False
        self.leaving = []

    def whole(self):
        return self._body

    async def read(self):
        assert self.chunks is not None, "the body was read ahead"
        if self.broken is not None:
            raise self.broken
        if not self.chunks:
            return None
        chunk = self.chunks.pop(0)
        if isinstance(chunk, asyncio.Event):
            await chunk.wait()
            return await self.read()
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    def leave(self):
        self.left, leaving, self.leaving = True, self.leaving, []
        for tell in leaving:
            tell()

    def on_leaving(self, tell):
        if self.left:
            tell()
        else:
            self.leaving.append(tell)

    def stay(self, tell):
        if tell in self.leaving:
            self.leaving.remove(tell)

    async def gone(self):
        left = asyncio.Event()
        self.on_leaving(left.set)
        try:
            await left.wait()
        finally:
            self.stay(left.set)

    def answer(self, status, headers, body=b"", length=None):
        assert self.status is None, "answered twice"
        if length is not None:
            headers = [*headers, ("content-length", str(length))]
        self.status, self.body = status, body
        self.headers = SentHeaders(headers)
        self.answered.set()

    def answer_written(self, status, lines, body, length):
        fields = [line.split(": ", 1) for line in lines.decode("ascii").split("\r\n")[:-1]]
        self.answer(status, [tuple(each) for each in fields], body)
        assert length == len(body)

    def begin_body(self, status, headers, length=None):
        self.status, self.headers = status, SentHeaders(headers)
        self.pieces, self.ended, self.trailers = [], False, ()
        return self

    async def send(self, data):
        if self.left:
            return False
        self.pieces.append(data)
        return True

    def end(self, trailers=()):
        self.ended, self.trailers, self.body = True, trailers, b"".join(self.pieces)
        self.answered.set()

    def abort(self):
        self.answered.set()

    def abandon(self):
        self.abandoned = True
        self.answered.set()

    def json(self):
        return json.loads(self.body)

    @property
    def kind(self):
        """The kind of the error that was answered; None for none."""
        return self.json().get("error", {}).get("kind") if self.body[:1] == b"{" else None


async def ask(pipeline, method, path, *, headers=None, body=b"", chunks=None, query="", **more):
    """Send a request through a pipeline; return its `FakeWire`, answered.

    Args:
        headers: of one that is there twice both, with a line break between; a body is JSON unless they say otherwise.
        chunks: the body in pieces, read when it is needed; instead of ``body``.
    """
    given = {"host": "localhost"}
    if body or chunks:
        given["content-type"] = "application/json"
    given.update({name.lower(): value for name, value in (headers or {}).items()})
    wire = FakeWire(method, path, headers=given, body=body, chunks=chunks, query=query, **more)
    pipeline.start(Exchange(wire, time.perf_counter_ns()))
    await asyncio.wait_for(wire.answered.wait(), 30)
    return wire
