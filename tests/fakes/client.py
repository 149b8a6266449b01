"""A server for the client commands, within the test: answers by method and path, and remembers what it was asked."""

from __future__ import annotations

import json

import httpx

from tensorwasm.cli.remote import client


class FakeServer:
    """Answers from a table; what is not in it has no route.

    An answer is a value (JSON, 200), a status with a value, an `httpx.Response`, an exception to raise, or a function
    of the request that returns one of them. A list is used up one by one.
    """

    def __init__(self):
        self.answers = {}
        self.requests = []
        self.options = []

    def __setitem__(self, route, answer):
        self.answers[route] = answer

    def connect(self, options):
        self.options.append(options)
        return client.Client(options, transport=httpx.MockTransport(self._handle))

    @property
    def bodies(self):
        """What the requests had as JSON, None for those without."""
        return [json.loads(request.content) if request.content else None for request in self.requests]

    @property
    def asked(self):
        """Method and path of the requests, with their query."""
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]

    def _handle(self, request):
        request.read()
        self.requests.append(request)
        answer = self.answers.get(f"{request.method} {request.url.path}")
        if isinstance(answer, list):
            answer = answer.pop(0)
        if callable(answer) and not isinstance(answer, httpx.Response):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        if answer is None:
            return refuse(404, "not_found", "no such route", {"X-TensorWasm-Route": "none"})
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        return httpx.Response(status, json=value) if value is not None else httpx.Response(status)


def refuse(status, kind, message, headers=None):
    """Return an answer that is an error."""
    return httpx.Response(status, json={"error": {"kind": kind, "message": message}}, headers=headers)
