"""Arguments and results of asynchronous calls, which wasmtime takes as arrays of ``wasmtime_val_t``."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Final

from tensorwasm.guest.engine import capi, codec
from tensorwasm.guest.engine.module import PLAIN, CallPlan

_STRIDE: Final = capi.SIZES["wasmtime_val_t"]
_PAYLOAD: Final = capi.VALUE_PAYLOAD_OFFSET
_VALUE: Final = struct.Struct(f"<B7xQ{_STRIDE - 16}x")
_SIGNED: Final = {"i32": "i4x", "i64": "q"}
_PACKERS: Final = {kind: struct.Struct(f"<{code}").pack_into for kind, code in _SIGNED.items()}


class ValueVector:
    """Room for the arguments and the results of one call. C code keeps its addresses.

    Attributes:
        params: address of the first argument.
        results: address of the first result.
    """

    __slots__ = ("_memory", "_places", "_plan", "_read", "params", "results")

    def __init__(self, plan: CallPlan) -> None:
        self._plan = plan
        self._memory = ctypes.create_string_buffer(max(1, len(plan.params) + len(plan.results)) * _STRIDE)
        self.params = ctypes.addressof(self._memory)
        self.results = self.params + len(plan.params) * _STRIDE
        self._places = self._read = None
        if _SIGNED.keys() >= set(plan.params):
            self._places = [(_PACKERS[kind], index * _STRIDE + _PAYLOAD) for index, kind in enumerate(plan.params)]
        if _SIGNED.keys() >= set(plan.results):
            shape = "".join(f"{_PAYLOAD}x{_SIGNED[kind]}{_STRIDE - 16}x" for kind in plan.results)
            self._read = struct.Struct(f"<{shape}").unpack_from
        self._write([0] * len(plan.params))

    def write(self, args: Sequence[object]) -> None:
        """Store arguments, as `tensorwasm.guest.engine.codec` takes them.

        Raises:
            InvalidArgs: they do not fit.
        """
        if self._places is None or len(args) != len(self._places) or not PLAIN.issuperset(map(type, args)):
            self._write(codec.encode(self._plan.params, args))
            return
        try:
            for (pack, at), value in zip(self._places, args, strict=True):
                pack(self._memory, at, value)
        except struct.error:  # the unsigned way to write a number, or a mistake
            self._write(codec.encode(self._plan.params, args))

    def read(self) -> Sequence[codec.Number]:
        """Return the results."""
        results, start = self._plan.results, self.results - self.params
        if self._read is not None:
            found: tuple[int, ...] = self._read(self._memory, start)
            return found
        cells = [_VALUE.unpack_from(self._memory, start + index * _STRIDE)[1] for index in range(len(results))]
        return codec.decode(results, cells)

    def _write(self, bits: Sequence[int]) -> None:
        for index, (kind, value) in enumerate(zip(self._plan.params, bits, strict=True)):
            _VALUE.pack_into(self._memory, index * _STRIDE, capi.VALUE_KINDS[kind], value)
