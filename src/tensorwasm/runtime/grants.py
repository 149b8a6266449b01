"""What a guest is allowed to use. Nothing is granted unasked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tensorwasm.errors import InvalidArgs


@dataclass(frozen=True, slots=True)
class Grants:
    """What one invocation may use.

    Attributes:
        cuda: GPU kernels through ``wasi:cuda``.
        readable: host directories the guest sees, read-only, under the name given.
        writable: host directories it may change.
    """

    cuda: bool = False
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()

    def words(self) -> tuple[str, ...]:
        """Return them as `parse_grants` takes them."""
        folders = [f"read:{path}" for path in self.readable] + [f"write:{path}" for path in self.writable]
        return (*(["cuda"] if self.cuda else []), *folders)

    def within(self, others: Grants) -> Grants:
        """Return what is granted here and there."""
        return Grants(
            self.cuda and others.cuda,
            tuple(path for path in self.readable if path in others.readable or path in others.writable),
            tuple(path for path in self.writable if path in others.writable),
        )


def parse_grants(words: Iterable[str] | Grants) -> Grants:
    """Read ``cuda``, ``read:DIR`` and ``write:DIR``.

    Raises:
        InvalidArgs: any other word; the message lists what there is.
    """
    return words if isinstance(words, Grants) else _parse(tuple(words))


@lru_cache(maxsize=256)
def _parse(words: tuple[str, ...]) -> Grants:
    cuda = False
    folders: dict[str, list[str]] = {"read": [], "write": []}
    for word in words:
        kind, _, value = word.partition(":")
        if word == "cuda":
            cuda = True
        elif kind in folders and value:
            folders[kind].append(value)
        else:
            raise InvalidArgs(f"unknown grant {word[:64]!r}: there are cuda, read:DIR and write:DIR")
    return Grants(cuda, tuple(folders["read"]), tuple(folders["write"]))
