"""What goes in and out of one invocation: chunks, folders."""

from __future__ import annotations

from collections.abc import Callable

from tensorwasm.guest.wasi import Directory
from tensorwasm.runtime.grants import Grants


class Chunks:
    """The sink of one call: hands chunks on, or keeps them."""

    def __init__(self, on_chunk: Callable[[bytes], bool] | None) -> None:
        self._on_chunk = on_chunk
        self.chunks: list[bytes] = []

    def send(self, chunk: bytes) -> bool:
        """Take a chunk; return False if whoever listened has gone."""
        if self._on_chunk is not None:
            return self._on_chunk(chunk)
        self.chunks.append(chunk)
        return True

    def flush(self) -> None:
        """Nothing is held back."""


def directories_of(granted: Grants) -> tuple[Directory, ...]:
    """Return the folders that are granted, under the names that they have here."""
    folders = [(path, False) for path in granted.readable] + [(path, True) for path in granted.writable]
    return tuple(Directory(path, path, writable) for path, writable in folders)
