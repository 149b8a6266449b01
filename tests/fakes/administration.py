"""The routes of tokens and tenants, called as a server calls them, but without one."""

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec

from fakes.wire import SentHeaders
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.engine.opening import open_database
from tensorwasm.errors import Unauthorized
from tensorwasm.server.http.routing import HttpRequest
from tensorwasm.server.routes import tenants, tokens
from tensorwasm.service.identity.identity import open_identity
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.values import NEVER

ROUTES = (*tokens.ROUTES, *tenants.ROUTES)


@dataclass
class Answer:
    status: int
    body: object
    headers: SentHeaders
    audit: dict
    action: str | None
    shown: str = field(repr=False)


def match(pattern, path):
    wanted, given = pattern.split("/"), path.split("/")
    if len(wanted) != len(given):
        return None
    pairs = list(zip(wanted, given, strict=True))
    if any(w != g for w, g in pairs if not w.startswith("{")):
        return None
    return {w[1:-1]: g for w, g in pairs if w.startswith("{")}


class Office:
    """A service's identity, open, and the token that asks."""

    def __init__(self, url):
        self.loop = asyncio.new_event_loop()
        self.database = DatabaseExecutor(open_database(url))
        settings = ServiceSettings.from_environment({})
        self.identity = self.loop.run_until_complete(open_identity(settings, self.database))
        self.token = self.identity.first_token.text

    def close(self):
        self.database.close_now()
        self.loop.close()

    def ask(self, method, path, body=None, *, token=None):
        """Return an answer, or raise what the route raises."""
        path, _, query = path.partition("?")
        route, params = next((r, p) for r in ROUTES if r.method == method and (p := match(r.path, path)) is not None)
        principal = self.principal(token or self.token)
        principal.require(route.scope)
        if route.request is not None:
            body = route.request() if body is None else msgspec.json.decode(json.dumps(body), type=route.request)
        call = HttpRequest(
            service=SimpleNamespace(tokens=self.identity.tokens, tenants=self.identity.tenants),
            principal=principal,
            tenant=0,
            params=params,
            query=dict(part.split("=") for part in query.split("&") if part),
            headers={},
            body=body,
            raw=b"",
            request_id="r",
            trace_id="",
            deadline=NEVER,
            client="127.0.0.1",
            gone=None,
            admitted=None,
        )
        reply = self.loop.run_until_complete(route.handle(call))
        shown = repr((reply, call))
        if route.response is not None:
            assert isinstance(reply.body, route.response)
        encoded = None if reply.body is None else json.loads(msgspec.json.encode(reply.body))
        return Answer(
            reply.status or route.status, encoded, SentHeaders(reply.headers), call.audit, route.action, shown
        )

    def principal(self, token):
        authenticator = self.identity.authenticator
        found = authenticator.authenticate(f"Bearer {token}")
        if found is None:
            raise Unauthorized("unknown")
        return found

    def knows(self, token):
        try:
            return self.principal(token)
        except Unauthorized:
            return None
