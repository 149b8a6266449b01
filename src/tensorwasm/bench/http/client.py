"""One connection to a service, for figures of single requests: as little of a client as there can be."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any, Self

from tensorwasm.errors import InternalError


class Client:
    """Asks one after the other, over one connection. Close it, or use it in ``with``.

    Args:
        url: the service's.
        token: sent as a bearer token.
        tenant: for whom.
    """

    def __init__(self, url: str, token: str, tenant: int = 1) -> None:
        parts = urllib.parse.urlsplit(url)
        self._address = parts.hostname or "127.0.0.1", parts.port or 80
        self._connection = http.client.HTTPConnection(*self._address, timeout=60)
        self.headers = {"authorization": f"Bearer {token}", "x-tensorwasm-tenant": str(tenant)}

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Return a JSON answer, None for none.

        Raises:
            InternalError: the answer is no success.
        """
        status, data = self.send(method, path, None if body is None else json.dumps(body).encode(), headers)
        if status >= 300:
            raise InternalError(f"{method} {path} was answered with {status}: {data[:200].decode(errors='replace')}")
        return json.loads(data) if data else None

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return status and body of an answer. A connection that the service closed while it was idle is made anew."""
        told = {"content-type": "application/json", **self.headers, **headers}
        for again in (True, False):
            try:
                self._connection.request(method, path, body, told)
                answer = self._connection.getresponse()
                return answer.status, answer.read()
            except (ConnectionError, http.client.RemoteDisconnected):
                self._connection.close()
                if not again:
                    raise
        raise InternalError("the service closes every connection")

    def reconnect(self) -> None:
        """Make the connection anew for the next request: the last one may be half done."""
        self._connection.close()

    def open_stream(self, path: str, body: object, accept: str) -> http.client.HTTPResponse:
        """Return an answer whose body is still to come, on a connection of its own, which ends with it."""
        connection = http.client.HTTPConnection(*self._address, timeout=60)
        told = {"content-type": "application/json", "accept": accept, **self.headers}
        connection.request("POST", path, json.dumps(body).encode(), told)
        answer = connection.getresponse()
        if answer.status != 200:
            raise InternalError(f"a stream was answered with {answer.status}: {answer.read(200)!r}")
        return answer

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._connection.close()
