"""What goes in and out of one invocation: chunks, and all of WASI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tensorwasm.guest.wasi import NO_WASI, Directory, Sink, WasiConfig
from tensorwasm.runtime.grants import Grants

if TYPE_CHECKING:
    from tensorwasm.guest.linker import Prepared


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


def configure(
    prepared: Prepared,
    name: str,
    granted: Grants,
    argv: Sequence[str] | None,
    env: Mapping[str, str] | None,
    stdin: bytes = b"",
    stdout: Sink | None = None,
    stderr: Sink | None = None,
) -> WasiConfig:
    """Return what a guest gets through WASI, folders under the names that they have here.

    Args:
        prepared: its module, which may not use WASI at all.
        name: what ``argv`` holds if none is given.
        granted: of it, the folders count.
        argv: arguments, the program's name first.
        env: environment.
        stdin: all of standard input.
        stdout: takes standard output; None captures it.
        stderr: the same for standard error.
    """
    if not prepared.needs_wasi:
        return NO_WASI
    words = tuple(argv) if argv is not None else (name,)
    readable = [Directory(path, path, writable=False) for path in granted.readable]
    writable = [Directory(path, path, writable=True) for path in granted.writable]
    variables = tuple(env.items()) if env else ()
    return WasiConfig(words, variables, stdin, stdout, stderr, (*readable, *writable))
