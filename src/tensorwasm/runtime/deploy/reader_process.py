"""The process that decodes a large module: ``python -I reader_process.py PARENT MEMORY_BYTES CPU_S READING``.

It reads the module from standard input, to its end, and writes one byte, `VALUE` or `REFUSED`, then what it read as
`tensorwasm.runtime.deploy.pieces` writes it, or the error: its class and message. Limits and priority are those of the
compiler's process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Literal

VALUE: Final = b"+"
REFUSED: Final = b"-"

Reading = Literal["scan", "proposal", "instrument", "cut"]
"""What is read of a module."""


def main(arguments: list[str], source: BinaryIO, sink: BinaryIO) -> None:
    """Decode one module."""
    from tensorwasm.guest.engine.compiler_process import confine, step_back  # noqa: PLC0415 - found once the path is set

    parent, memory_bytes, cpu_s, reading = arguments
    step_back()
    read = _reader(reading)
    confine(int(parent), int(memory_bytes), int(cpu_s))
    from tensorwasm.errors import TensorWasmError  # noqa: PLC0415 - the same
    from tensorwasm.runtime.deploy.pieces import write  # noqa: PLC0415 - the same

    wasm = source.read()
    try:
        value = read(wasm)
    except TensorWasmError as error:
        sink.write(REFUSED)
        write((type(error).__name__, error.message), sink)
    else:
        sink.write(VALUE)
        write(value, sink)
    sink.flush()


def _reader(reading: str) -> Callable[[bytes], object]:
    """Return what reads a module; imported before there are limits."""
    if reading == "instrument":
        from tensorwasm.guest.saved.instrumented import instrument  # noqa: PLC0415 - the whole codec, rarely needed

        return instrument
    if reading == "cut":
        from tensorwasm.offload.module import cut_module  # noqa: PLC0415 - the same

        return cut_module
    if reading == "proposal":
        from tensorwasm.wasm.module import find_proposal  # noqa: PLC0415 - the same

        def find(wasm: bytes) -> None:
            found = find_proposal(wasm)
            if found is not None:
                raise found

        return find
    from tensorwasm.wasm.preamble import scan  # noqa: PLC0415 - the others need more

    return scan


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    main(sys.argv[1:], sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # the rest of an interpreter's end is a waste of time
