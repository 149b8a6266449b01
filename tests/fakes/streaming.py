"""Guests that are streamed, sockets and services, by script: for what lies above them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace

from tensorwasm.errors import TensorWasmError
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.http.bodies import BodyBudget
from tensorwasm.server.http.routing import HttpRequest
from tensorwasm.server.streaming.websocket import counted_bytes
from tensorwasm.service.invocations.streaming import StreamEndings
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.quotas import Quotas
from tensorwasm.values import NEVER

FUNCTION = "5a5a5a5a-0000-4000-8000-000000000000"


def invocation(chunks=(), exit_code=0, values=(7,)):
    return Invocation("main", values, ("i32",) * len(values), exit_code, b"", b"", tuple(chunks), 0.001, None)


class FakeStream:
    """Chunks, then an outcome or an error. A chunk that is an `asyncio.Event` is waited for, and is none."""

    def __init__(self, script: Iterable[object], error: TensorWasmError | None = None, exit_code: int = 0):
        self.script = list(script)
        self.error = error
        self.exit_code = exit_code

    def __aiter__(self):
        return self

    async def __anext__(self):
        while self.script:
            if isinstance(self.script[0], asyncio.Event):
                await self.script[0].wait()
                self.script.pop(0)
                continue
            return self.script.pop(0)
        raise StopAsyncIteration

    @property
    def outcome(self):
        if self.error is not None:
            raise self.error
        return invocation(exit_code=self.exit_code)


class FakeInvocations:
    """Streams what it was given, one after the other; remembers what was asked, and which guests were left."""

    def __init__(self, *streams: FakeStream, refusal: TensorWasmError | None = None):
        self.streams = list(streams)
        self.refusal = refusal
        self.asked = []
        self.left = []

    @asynccontextmanager
    async def stream(self, admitted, reference, ask):
        self.asked.append((admitted.tenant, reference, ask))
        if self.refusal is not None:
            raise self.refusal
        stream = self.streams.pop(0)
        try:
            yield stream
        finally:
            self.left.append(stream)

    async def invoke(self, admitted, reference, ask):
        async with self.stream(admitted, reference, ask) as stream:
            chunks = [chunk async for chunk in stream]
            return stream.outcome._replace(chunks=tuple(chunks))


class FakeModels:
    """Knows models by a table."""

    def __init__(self, known):
        self.table = known

    def known(self, tenant, model):
        return self.table.get(model)

    def forget(self, tenant, model):
        self.table.pop(model, None)


async def _resolve(tenant, reference):
    return None


def fake_call(invocations, *, body=None, headers=None, quotas=None, again=None, environment=None):
    """A request of tenant 7 whose service is made of fakes."""
    service = SimpleNamespace(
        invocations=invocations,
        functions=SimpleNamespace(resolve=_resolve),
        models=FakeModels({"m": FUNCTION}),
        outcomes=StreamEndings(),
        quotas=Quotas(),
        identities=SimpleNamespace(policy=lambda _tenant: SimpleNamespace(quotas=quotas or {}, weight=1)),
        settings=ServiceSettings.from_environment(environment or {}),
    )
    call = HttpRequest(
        service, None, 7, {"id": FUNCTION}, {}, headers or {}, body, b"", "request-1", "", NEVER, "127.0.0.1", None,
        SimpleNamespace(tenant=7, policy=SimpleNamespace(quotas=quotas or {})),
    )  # fmt: skip
    call.again = again
    return call


class FakeSocket:
    """A WebSocket whose client says what it is told to; what was sent to it is remembered.

    Args:
        messages: what the client sends; an `asyncio.Event` is waited for. After the last it has left.
        takes: how many messages the client takes before it is gone; None for all.
    """

    def __init__(self, *messages, takes=None):
        self.messages = list(messages)
        self.sent = []
        self.takes = takes
        self.budget = BodyBudget(1 << 22)

    async def receive(self):
        while self.messages:
            message = self.messages.pop(0)
            if isinstance(message, asyncio.Event):
                await message.wait()
                continue
            self.budget.take(counted_bytes(message), 7)
            return message
        return None

    async def send(self, message):
        if self.takes is not None and len(self.sent) >= self.takes:
            return False
        self.sent.append(message)
        return True
