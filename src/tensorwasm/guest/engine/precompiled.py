"""Precompiled code: compiled modules, ready to be mapped.

These bytes run in this process outside every sandbox: wasmtime compares version, target and settings, and trusts the
rest. So only what our own compiler returned (`tensorwasm.guest.engine.compiler`), or was kept of that under the
machine's own key (`tensorwasm.runtime.deploy.code_files`), is loaded here; `Deployer.deploy` refuses uploads.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import InternalError
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.engine.engine import Engine
from tensorwasm.guest.engine.module import CompiledModule, compile_module
from tensorwasm.wasm.preamble import Preamble
from tensorwasm.wasm.sections import HEADER

MAGIC: Final = b"\x7fELF"
"""What precompiled code begins with."""

_HANDLES: Final = Path("/proc/self/fd")


def serialize(module: CompiledModule) -> bytes:
    """Return a module's code, as `load_bytes` takes it."""
    vector = (ctypes.c_size_t * 2)()
    error = KEEPING.wasmtime_module_serialize(module.address, vector)
    if error:
        raise InternalError(f"wasmtime does not serialize: {traps.explain(error)}")
    code = ctypes.string_at(vector[1], vector[0])
    KEEPING.wasm_byte_vec_delete(vector)
    return code


@cache
def fingerprint(engine: Engine) -> bytes:
    """Return 32 bytes that differ if code of one engine does not fit another.

    It is the hash of a compiled empty module, which contains all that wasmtime compares when it loads code: version,
    target, processor features, proposals and tuning. Takes 1 ms, once.
    """
    return blake3(capi.WASMTIME_VERSION.encode() + serialize(compile_module(engine, HEADER)))


def load_bytes(engine: Engine, code: bytes, declared: Preamble, size_bytes: int) -> CompiledModule | None:
    """Copy trusted code of a module with that many bytes to executable memory; None if it is for another engine."""
    address = ctypes.c_size_t()
    error = RELEASING.wasmtime_module_deserialize(engine.address, code, len(code), ctypes.byref(address))
    return _made(engine, error, address.value, declared, size_bytes)


def load_file(engine: Engine, handle: int, declared: Preamble, size_bytes: int) -> CompiledModule | None:
    """Map trusted code from an open file, which may have more bytes after it. Linux only, see `can_map`.

    The handle is of the very file that was verified: it is reopened by its number, not by a name. It may then be closed
    and the file unlinked. Truncating the file ends this process with SIGBUS; writing to it changes what runs. Returns
    None if the code is for another engine or cannot be mapped.
    """
    address = ctypes.c_size_t()
    error = KEEPING.wasmtime_module_deserialize_file(
        engine.address, f"{_HANDLES}/{handle}".encode(), ctypes.byref(address)
    )
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
