"""Which route a method and a path mean.

A path is matched segment by segment, as it is once its percent signs are decoded: a name stands for itself, braces for
one segment. A segment is no route's if it is empty, ``.`` or ``..``, longer than 256 characters, or has characters that
cannot be printed or were no UTF-8, so that what a handler is given is always one plain name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tensorwasm.errors import MethodNotAllowed, NotFound
from tensorwasm.server.routing import Route

MAX_PATH: Final = 2048
"""Longest path, in characters."""

MAX_SEGMENT: Final = 256
"""Longest segment that a route's braces stand for."""

KNOWN: Final = 4096
"""Paths whose route is remembered, some 2 MiB with long ones: most requests are for few functions."""


class UnknownRoute(NotFound):
    """No route has this path; the answer says so in a header, apart from other things that are not found."""


class WrongMethod(MethodNotAllowed):
    """The path takes other methods.

    Attributes:
        allowed: those it takes, in order.
    """

    def __init__(self, allowed: tuple[str, ...]) -> None:
        """Remember the methods."""
        super().__init__("this path takes other methods")
        self.allowed = allowed


class _Node:
    """One segment's place in the tree: what may follow, and what ends here."""

    __slots__ = ("methods", "names", "variable")

    def __init__(self) -> None:
        self.names: dict[str, _Node] = {}
        self.variable: tuple[str, _Node] | None = None
        self.methods: dict[str, Route] = {}


class Table:
    """All routes, ready to be found."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """Sort them in.

        Raises:
            ValueError: two routes are the same, or braces at one place have two names.
        """
        self._root = _Node()
        self._known: dict[tuple[str, str], tuple[Route, Mapping[str, str]]] = {}
        self.routes = tuple(routes)
        for route in self.routes:
            self._add(route)

    def match(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route, and what its braces stand for. ``HEAD`` is found as ``GET``.

        Args:
            method: of the request, ``WS`` for a WebSocket.
            path: decoded.

        Raises:
            UnknownRoute: no route has this path.
            WrongMethod: it has other methods.
        """
        known = self._known
        found = known.get((method, path))
        if found is None:
            node, params = self._find(path)
            route = node.methods.get(method) or (node.methods.get("GET") if method == "HEAD" else None)
            if route is None:
                raise WrongMethod(allowed(node.methods))
            if len(known) >= KNOWN:
                known.clear()
            found = known[method, path] = route, MappingProxyType(params)
        return found

    def allowed(self, path: str) -> tuple[str, ...]:
        """Return the methods that a path takes.

        Raises:
            UnknownRoute: no route has this path.
        """
        return allowed(self._find(path)[0].methods)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                name = segment[1:-1]
                if node.variable is None:
                    node.variable = (name, _Node())
                if node.variable[0] != name:
                    raise ValueError(f"{route.path}: {{{name}}} is {{{node.variable[0]}}} in another route")
                node = node.variable[1]
            else:
                node = node.names.setdefault(segment, _Node())
        if route.method in node.methods:
            raise ValueError(f"{route.method} {route.path} is there twice")
        node.methods[route.method] = route

    def _find(self, path: str) -> tuple[_Node, dict[str, str]]:
        if len(path) > MAX_PATH or not path.startswith("/"):
            raise UnknownRoute("there is no such route")
        node = self._root
        params: dict[str, str] = {}
        for segment in path.split("/")[1:]:
            following = node.names.get(segment)
            if following is None:
                if node.variable is None or not is_name(segment):
                    raise UnknownRoute("there is no such route")
                name, following = node.variable
                params[name] = segment
            node = following
        if not node.methods:
            raise UnknownRoute("there is no such route")
        return node, params


def is_name(segment: str) -> bool:
    """Return whether braces can stand for a segment."""
    return (
        0 < len(segment) <= MAX_SEGMENT
        and segment.isprintable()
        and "\ufffd" not in segment
        and segment not in {".", ".."}
    )


def allowed(methods: Iterable[str]) -> tuple[str, ...]:
    """Return what the header Allow lists for these methods: HEAD with GET, OPTIONS always, a WebSocket as GET."""
    names = {"GET" if method == "WS" else method for method in methods}
    return tuple(sorted(names | {"OPTIONS"} | ({"HEAD"} if "GET" in set(methods) else set())))
