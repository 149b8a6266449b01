"""WebAssembly proposals that are off here: how each is recognised, what it is called, and what to do instead.

Source: the overviews of the proposals at github.com/WebAssembly, and the opcode table of Wasm core 3.0, appendix.
"""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import UnsupportedProposal

LEGACY: Final = "legacy-exceptions"
_SPECIAL: Final = {
    LEGACY: "the legacy form of the exception-handling proposal",
    "externref": "externref, of the reference types proposal",
}
_REMEDIES: Final = {
    "custom-page-sizes": "keep pages of 64 KiB",
    "externref": "keep references to host objects out of the module, and pass numbers or memory instead",
    "function-references": "use funcref and call_indirect",
    "gc": "build for linear memory, without struct, array and the types of the garbage collector",
    LEGACY: "build for its final form, try_table and exnref: clang takes "
    "-mllvm -wasm-use-legacy-eh=false, emcc -sWASM_LEGACY_EXCEPTIONS=0",
    "memory64": "build for wasm32",
    "multi-memory": "keep everything in one memory",
    "shared-everything-threads": "build without shared tables and shared types",
    "stack-switching": "build without continuations",
    "threads": "build without shared memory and atomics, such as -pthread gives",
    "wide-arithmetic": "build without -mwide-arithmetic",
}
VALUE_TYPES: Final = {
    **dict.fromkeys((0x6A, 0x6B, 0x6C, 0x6D, 0x6E, 0x71, 0x72, 0x73), "gc"),
    **dict.fromkeys((0x68, 0x75), "stack-switching"),
}
"""The proposal by a value type's byte."""

TYPE_DEFINITIONS: Final = {0x5D: "stack-switching", **dict.fromkeys((0x4E, 0x4F, 0x50, 0x5E, 0x5F), "gc")}
"""The proposal by the first byte of a type's definition."""

OPCODES: Final = {
    **dict.fromkeys(((0, code) for code in (0x06, 0x07, 0x09, 0x18, 0x19)), LEGACY),
    **dict.fromkeys(((0, code) for code in (0x14, 0x15, 0xD4, 0xD5, 0xD6)), "function-references"),
    **dict.fromkeys(((0, code) for code in (0xD3, 0xFB)), "gc"),
    **dict.fromkeys(((0, code) for code in range(0xE0, 0xE7)), "stack-switching"),
    (0, 0xFE): "threads",
    **dict.fromkeys(((0xFC, code) for code in range(0x13, 0x17)), "wide-arithmetic"),
}
"""The proposal by an instruction's prefix, 0 without one, and code."""


def refuse(proposal: str, at: int | None = None) -> UnsupportedProposal:
    """Return the error for a module that uses a proposal, at a byte of the module if it is known."""
    where = "" if at is None else f" (at byte {at})"
    what = _SPECIAL.get(proposal, f"the {proposal} proposal")
    return UnsupportedProposal(f"this module uses {what}, which is off here: {_REMEDIES[proposal]}{where}")
