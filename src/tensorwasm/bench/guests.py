"""The guest that the benchmarks of dispatch and memory run: it times loops over single functions of the ABI."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final, Self

from tensorwasm.bench.examples import read_example, read_guest
from tensorwasm.bench.peers.missing import MissingPeer
from tensorwasm.bench.peers.raw import RawPeer
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Function, Runtime
from tensorwasm.values import MIB, Limits, MemoryKind

PTX: Final = "vector_add/vector_add.sm_80.ptx"
ENTRY: Final = "vector_add"
_LIMITS: Final = Limits(memory_bytes=256 * MIB, wall_s=120.0)


class Bench:
    """A device, the guests on it, and the loop in C beside them.

    Attributes:
        runtime: on the device.
        dispatch: the guest that times itself.
        sandbox: the guest of one small kernel.
        raw: the loop in C, None where it cannot be.
        why_not: the reason then.
    """

    def __init__(self, choice: str) -> None:
        self._open = ExitStack()
        self.runtime = self._open.enter_context(Runtime(device=choice, limits=_LIMITS))
        self.dispatch = self.runtime.load(read_guest("dispatch"), name="dispatch")
        self.sandbox = self.runtime.load(read_guest("sandbox"), name="sandbox")
        self.raw, self.why_not = self._open_raw()

    @property
    def real(self) -> bool:
        """Whether this is hardware, whose figures have bars."""
        return self.runtime.device.kind == "cuda"

    @property
    def ptx(self) -> bytes:
        """The kernel that all run."""
        return read_example(PTX)

    def ns(self, export: str, *args: int, memory_kind: MemoryKind | None = None) -> float:
        """Return what the guest measured, for the whole of its loop.

        Raises:
            InternalError: the guest met an error.
        """
        return float(answer(self.dispatch, export, *args, memory_kind=memory_kind))

    def _open_raw(self) -> tuple[RawPeer | None, str]:
        if not self.real:
            return None, "the emulator has no driver"
        try:
            return self._open.enter_context(RawPeer(self.runtime.device.ordinal, self.ptx, ENTRY)), ""
        except MissingPeer as missing:
            return None, str(missing)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self._open.close()


def answer(function: Function, export: str, *args: int, memory_kind: MemoryKind | None = None) -> int:
    """Return what an export answers.

    Raises:
        InternalError: a negative code of the ABI.
    """
    (value,) = function.invoke(export, args, grants={"cuda"}, memory_kind=memory_kind).values
    if not isinstance(value, int) or value < 0:
        raise InternalError(f"{function.name}.{export}{args} answered {value}")
    return value
