"""`Invocation`: what came of one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tensorwasm.guest.engine import codec

if TYPE_CHECKING:
    from tensorwasm.gpu.session import SessionStatistics


class Invocation(NamedTuple):
    """What came of one call.

    Attributes:
        export: the function called.
        values: its results, integers exact, floats as Python has them.
        result_types: their Wasm types.
        exit_code: what the guest passed to ``proc_exit``; 0 if it simply returned.
        stdout: what it wrote, unless a sink took it.
        stderr: likewise.
        chunks: what it sent with ``emit-chunk``, unless a sink took it.
        elapsed_s: wall-clock seconds of instantiation and call.
        gpu: what it held on the device when the call had ended, None without the grant.
        stdout_truncated: it wrote more than ``limits.output_bytes``: the rest of standard output failed in the guest.
        stderr_truncated: likewise.
    """

    export: str
    values: tuple[codec.Number, ...]
    result_types: tuple[str, ...]
    exit_code: int
    stdout: bytes
    stderr: bytes
    chunks: tuple[bytes, ...]
    elapsed_s: float
    gpu: SessionStatistics | None
    stdout_truncated: bool = False
    stderr_truncated: bool = False

    @property
    def truncated(self) -> tuple[str, ...]:
        """Names of the streams that were cut: ``stdout``, ``stderr``, both or none."""
        flags = (("stdout", self.stdout_truncated), ("stderr", self.stderr_truncated))
        return tuple(name for name, cut in flags if cut)

    def to_json(self) -> str:
        """Return the results as a JSON array; NaN and infinities as strings, integers with all their digits."""
        return codec.render(self.result_types, self.values)
