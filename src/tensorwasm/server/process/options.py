"""`ServeOptions`: what the supervisor tells a server that it has started."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from tensorwasm.server.process.address import ListenAddress
from tensorwasm.server.process.place import Place

_Kind = TypeVar("_Kind", "ListenAddress", "Place", "ServeOptions")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The server's options besides its environment. No secrets: other processes may see them.

    Attributes:
        address: where it listens.
        listening: the descriptor of the socket that does, which it inherits; -1 for a primary, which has none.
        max_body_bytes: longest body; None takes the setting.
        announce: whether to print where it listens.
        place: which of several processes it is; None for one that serves alone.
        workers: the descriptor of the socket where a template is asked for GPU workers, which it inherits; -1 for one
            of its own.
    """

    address: ListenAddress
    listening: int
    max_body_bytes: int | None = None
    announce: bool = True
    place: Place | None = None
    workers: int = -1

    @property
    def role(self) -> str:
        """What the process does: `Place.role`, or that of a process that serves alone."""
        return "alone" if self.place is None else self.place.role

    @property
    def descriptors(self) -> frozenset[int]:
        """The inherited descriptors that the server uses."""
        place = self.place
        private = () if place is None else (place.table, place.http, place.control)
        return frozenset(each for each in (self.listening, self.workers, *private) if each >= 0)

    def to_json(self) -> str:
        """Return the options as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServeOptions:
        """Parse the JSON of `to_json`; during a reload it may be that of an earlier or a later release."""
        found: dict[str, Any] = json.loads(text)
        place = found.get("place")
        given = {
            **found,
            "address": _known(ListenAddress, found["address"]),
            "place": None if place is None else replace(_known(Place, place), fronts=tuple(place.get("fronts", ()))),
        }
        return _known(cls, given)


def _known(kind: type[_Kind], found: dict[str, Any]) -> _Kind:
    """Return a value made of the fields that this release knows."""
    return kind(**{each.name: found[each.name] for each in fields(kind) if each.name in found})
