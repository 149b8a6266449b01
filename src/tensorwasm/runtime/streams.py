"""What goes in and out of one invocation: chunks, and all of WASI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tensorwasm.errors import StdinTooLarge
from tensorwasm.guest.sandbox.output import INHERIT, Inherit, Sink
from tensorwasm.guest.sandbox.wasi import NO_WASI, WasiConfig
from tensorwasm.runtime.grants import Grants
from tensorwasm.values import Limits

if TYPE_CHECKING:
    from tensorwasm.guest.sandbox.linker import Prepared


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


def check_stdin(stdin: bytes | Inherit, limits: Limits) -> None:
    """Compare standard input that is given as a value with the limit.

    Raises:
        StdinTooLarge: it is longer.
    """
    if stdin is not INHERIT and len(stdin) > limits.stdin_bytes:
        raise StdinTooLarge(f"standard input has {len(stdin)} bytes; the limit is {limits.stdin_bytes}")


def configure(
    prepared: Prepared,
    name: str,
    granted: Grants,
    argv: Sequence[str] | None,
    env: Mapping[str, str] | None,
    stdin: bytes | Inherit = b"",
    stdout: Sink | Inherit | None = None,
    stderr: Sink | Inherit | None = None,
) -> WasiConfig:
    """Return what a guest gets through WASI.

    Args:
        prepared: its module, which may not use WASI at all.
        name: what ``argv`` holds if none is given.
        granted: of it, the folders count.
        argv: arguments, the program's name first.
        env: environment.
        stdin: all of standard input, or the process's own.
        stdout: takes standard output; None captures it.
        stderr: the same for standard error.
    """
    if not prepared.needs_wasi:
        return NO_WASI
    words = tuple(argv) if argv is not None else (name,)
    variables = tuple(env.items()) if env else ()
    return WasiConfig(words, variables, stdin, stdout, stderr, granted.directories)
