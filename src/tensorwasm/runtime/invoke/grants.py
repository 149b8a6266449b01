"""What a guest is allowed to use. Nothing is granted unasked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.guest.sandbox.wasi_io import Directory

_FOLDER: Final = "dir:"
_READ_ONLY: Final = ":ro"
_BETWEEN: Final = "::"


@dataclass(frozen=True, slots=True)
class Grants:
    """What one invocation may use."""

    cuda: bool = False  # GPU kernels through ``wasi:cuda``
    directories: tuple[Directory, ...] = ()  # folders and files of the host, each under the guest's name for it

    def words(self) -> tuple[str, ...]:
        """Return them as `parse_grants` takes them."""
        return (*(["cuda"] if self.cuda else []), *(_spell(each) for each in self.directories))

    def within(self, others: Grants) -> Grants:
        """Return what is granted both here and there; write access there includes read access here."""
        reading = {replace(each, writable=False) for each in others.directories}
        both = reading.union(others.directories)
        return Grants(self.cuda and others.cuda, tuple(each for each in self.directories if each in both))


def parse_grants(words: Iterable[str] | Grants) -> Grants:
    """Read ``cuda`` and ``dir:HOST[::GUEST][:ro]``, or raise `InvalidArgs`; see `parse_directory`."""
    return words if isinstance(words, Grants) else _parse(tuple(words))


def parse_directory(text: str) -> Directory:
    """Read ``HOST[::GUEST][:ro]``: a folder or a file, and the guest's name for it, by default the same.

    Raises:
        InvalidArgs: a path is missing, or there are more than two.
    """
    paths = text.removesuffix(_READ_ONLY)
    host, between, guest = paths.partition(_BETWEEN)
    if not host or (between and not guest) or _BETWEEN in guest:
        raise InvalidArgs(f"a folder is HOST, or HOST::GUEST, and :ro after it for reading only, not {text[:64]!r}")
    return Directory(host, guest or host, writable=paths == text)


@lru_cache(maxsize=256)
def _parse(words: tuple[str, ...]) -> Grants:
    cuda, directories = False, []
    for word in words:
        if word == "cuda":
            cuda = True
        elif word.startswith(_FOLDER):
            directories.append(parse_directory(word.removeprefix(_FOLDER)))
        else:
            raise InvalidArgs(f"unknown grant {word[:64]!r}: there are cuda and dir:HOST[::GUEST][:ro]")
    return Grants(cuda, tuple(directories))


def _spell(directory: Directory) -> str:
    return f"{_FOLDER}{directory.host_path}{_BETWEEN}{directory.guest_path}{'' if directory.writable else _READ_ONLY}"
