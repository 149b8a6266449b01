"""TensorWasm: a serverless WebAssembly runtime with a GPU in reach.

::

    from tensorwasm import Runtime

    with Runtime() as runtime:
        print(runtime.load("add.wasm").invoke("add", [2, 3]).values)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorwasm.runtime import Function, Invocation, Runtime
    from tensorwasm.values import Limits

__all__ = ["Function", "Invocation", "Limits", "Runtime", "errors"]

_HOMES = {
    "Function": "tensorwasm.runtime",
    "Invocation": "tensorwasm.runtime",
    "Limits": "tensorwasm.values",
    "Runtime": "tensorwasm.runtime",
}


def __getattr__(name: str) -> object:
    """Import the public names when they are first used: wasmtime is not loaded for a command's help."""
    import importlib  # noqa: PLC0415 - keeps this module's own namespace to what is public

    if name == "errors":
        return importlib.import_module("tensorwasm.errors")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
