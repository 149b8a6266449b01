"""Precompiled code: what a compiler made of a module, ready to be mapped.

Whoever chooses these bytes runs what they like, in this process, outside every sandbox: wasmtime compares version,
target and settings, and trusts the rest. So nothing is loaded here but what our own compiler answered
(`tensorwasm.guest.engine.compiler`) and what was kept of that under the machine's own key
(`tensorwasm.runtime.deploy.code_files`);
`refuse` turns away what is uploaded as such.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import InternalError, InvalidWasm
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.engine import Engine
from tensorwasm.guest.engine.module import CompiledModule, compile_module
from tensorwasm.wasm.preamble import Preamble
from tensorwasm.wasm.sections import HEADER

MAGIC: Final = b"\x7fELF"

_HANDLES: Final = Path("/proc/self/fd")
_serialize: Final = capi.bind("wasmtime_module_serialize")
_deserialize: Final = capi.bind_releasing("wasmtime_module_deserialize")
_deserialize_file: Final = capi.bind("wasmtime_module_deserialize_file")  # 0.15 ms: less than winning the GIL back
_byte_vec_delete: Final = capi.bind("wasm_byte_vec_delete")


def refuse(wasm: bytes) -> None:
    """Turn precompiled code away.

    Raises:
        InvalidWasm: that is what it is.
    """
    if wasm[: len(MAGIC)] == MAGIC:
        raise InvalidWasm("this is precompiled code, which is taken from nobody: give the .wasm that it was made from")


def serialize(module: CompiledModule) -> bytes:
    """Return a module's code, as `load_bytes` takes it.

    Raises:
        InternalError: wasmtime has none for it.
    """
    vector = (ctypes.c_size_t * 2)()
    error = _serialize(module.address, vector)
    if error:
        raise InternalError(f"wasmtime does not serialize: {traps.explain(error)}")
    code = ctypes.string_at(vector[1], vector[0])
    _byte_vec_delete(vector)
    return code


@cache
def fingerprint(engine: Engine) -> bytes:
    """Return 32 bytes that differ wherever code of one engine does not fit another.

    They are the hash of what an empty module becomes, and that has all that wasmtime compares when it loads code:
    version, target, features of the processor, proposals and everything that can be tuned. Takes 1 ms, once.
    """
    return blake3(capi.WASMTIME_VERSION.encode() + serialize(compile_module(engine, HEADER)))


def load_bytes(engine: Engine, code: bytes, declared: Preamble, size_bytes: int) -> CompiledModule | None:
    """Copy code to where it can run.

    Args:
        engine: of the same settings as the one that it was made for.
        code: of our own making.
        declared: what the module declares.
        size_bytes: of the module's binary.

    Returns:
        The module; None if the code is for another engine.
    """
    address = ctypes.c_size_t()
    error = _deserialize(engine.address, code, len(code), ctypes.byref(address))
    return _made(engine, error, address.value, declared, size_bytes)


def load_file(engine: Engine, handle: int, declared: Preamble, size_bytes: int) -> CompiledModule | None:
    """Map code from an open file, which may have other bytes behind it, as long as the module lives.

    The handle may be closed then, and the file unlinked. Cutting the file ends this process with SIGBUS; writing to it
    changes what runs. Only on Linux: see `can_map`.

    Args:
        engine: of the same settings as the one that it was made for.
        handle: of the very file whose bytes were verified: it is opened again by its number, not by a name.
        declared: what the module declares.
        size_bytes: of the module's binary.

    Returns:
        The module; None if the code is for another engine, or cannot be mapped.
    """
    address = ctypes.c_size_t()
    error = _deserialize_file(engine.address, f"{_HANDLES}/{handle}".encode(), ctypes.byref(address))
    return _made(engine, error, address.value, declared, size_bytes)


@cache
def can_map() -> bool:
    """Return whether `load_file` works here."""
    return sys.platform == "linux" and _HANDLES.is_dir()


def _made(
    engine: Engine, error: int | None, address: int, declared: Preamble, size_bytes: int
) -> CompiledModule | None:
    if error:
        capi.take_error(error)
        return None
    return CompiledModule(engine, address, declared, size_bytes)
