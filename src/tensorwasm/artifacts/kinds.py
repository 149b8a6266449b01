"""The kinds of artifacts: how long one may be, and whether it is worth compressing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.values import MIB


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of artifact.

    Attributes:
        name: what callers say.
        max_bytes: the longest there is; writer and reader both hold to it.
        compressed: whether it is compressed at rest when that makes it smaller. What is mapped and run, or has been
            compressed by whoever made it, is kept as it is.
    """

    name: str
    max_bytes: int
    compressed: bool


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("module", 256 * MIB, compressed=True),
            Kind("code", 1024 * MIB, compressed=False),
            Kind("image", 16384 * MIB, compressed=False),
            Kind("kernel", 16 * MIB, compressed=True),
            Kind("cubin", 64 * MIB, compressed=True),
            Kind("snapshot", 16384 * MIB, compressed=False),
        )
    }
)


def find_kind(name: str) -> Kind:
    """Return a kind.

    Raises:
        InvalidArgs: there is none of that name.
    """
    if name not in KINDS:
        raise InvalidArgs(f"an artifact is one of {', '.join(KINDS)}, not {str(name)[:32]!r}")
    return KINDS[name]
