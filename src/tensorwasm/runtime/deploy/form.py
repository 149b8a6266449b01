"""`Form`: how a module is compiled and linked."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Form(NamedTuple):
    """How sandboxes of a function are made.

    Attributes:
        native: host functions are compiled ones.
        host_memory: linear memory is made by the host, which ``managed`` and ``vmm`` memory is.
        fibers: they run on a reactor, and host functions that wait suspend them.
        edition: of the module: as it came, or a form of it whose instances are saved
            (`tensorwasm.guest.saved.instrumented`).
        copied: a saved memory is copied into wasmtime's own instead of being mapped: for modules with exceptions, whose
            heap would be asked for where the memory is.
    """

    native: bool = False
    host_memory: bool = False
    fibers: bool = False
    edition: Literal["", "live", "blank"] = ""
    copied: bool = False
