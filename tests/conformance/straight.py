"""Runs straight-line programs on a device: modules of many, each from its own records to its own records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.straight_lines import LANES, RECORD, Program, module, records
from tensorwasm.errors import TensorWasmError
from tensorwasm.gpu.device.port import Device
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig, Region

Answer = NDArray[Any] | str
"""What every lane stored, ``(LANES,)`` of `RECORD`, or why the program did not run."""
FIELDS = tuple(f"%{kind}{i}" for kind in RECORD.names for i in range(RECORD[kind].shape[0]))
_WARP = LaunchConfig((1, 1, 1), (LANES, 1, 1))
_BYTES = LANES * RECORD.itemsize


def answers(device: Device, programs: Sequence[Program]) -> list[Answer]:
    """Return what each program answers; what the device refuses is found by halving the module, and told by its error.

    Raises:
        TensorWasmError: a kernel failed on the device, which may be lost.
    """
    try:
        loaded = device.load(parse(module(programs)), NEVER)
    except TensorWasmError as error:
        if len(programs) == 1:
            return [f"{error.kind}: {error.message}"]
        middle = len(programs) // 2
        return [*answers(device, programs[:middle]), *answers(device, programs[middle:])]
    try:
        return list(_run(device, loaded, programs))
    finally:
        device.unload(loaded)


def _run(device: Device, loaded: Any, programs: Sequence[Program]) -> NDArray[Any]:
    size = len(programs) * _BYTES
    given = np.concatenate([records(program.number) for program in programs])
    stream, source, target = device.open_stream(), device.allocate(size), device.allocate(size)
    regions = [Region(source, size, host=False), Region(target, size, host=False)]
    try:
        device.write(source, given.tobytes(), stream)
        deadline = Deadline.after(60)
        for at, program in enumerate(programs):
            args = [(base + at * _BYTES).to_bytes(8, "little") for base in (source, target)]
            device.launch(loaded, f"p{program.number}", _WARP, args, regions, stream, deadline)
        device.synchronize(stream, deadline)
        into = bytearray(size)
        device.read(target, memoryview(into), stream)
        return np.frombuffer(bytes(into), RECORD).reshape(len(programs), LANES)
    finally:
        device.close_stream(stream)
        device.free(source)
        device.free(target)


def columns(answer: NDArray[Any]) -> list[bytes]:
    """Return the bytes of every register of an answer, in the order of `FIELDS`."""
    return [answer[kind][:, i].tobytes() for kind in RECORD.names for i in range(RECORD[kind].shape[0])]


def differences(one: Answer, other: Answer) -> tuple[str, ...]:
    """Return the registers that differ, or both words if one device did not answer."""
    if isinstance(one, str) or isinstance(other, str):
        same = isinstance(one, str) and isinstance(other, str)
        return () if same else tuple(word if isinstance(word, str) else "answered" for word in (one, other))
    pairs = zip(FIELDS, columns(one), columns(other), strict=True)
    return tuple(name for name, left, right in pairs if left != right)
