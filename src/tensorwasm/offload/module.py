"""A module whose regions are cut out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.analysis.regions import DeclinedLoop, LoopRegion, find_regions
from tensorwasm.offload.cut import cut
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.values import MIB
from tensorwasm.wasm.module import Module, decode, encode

MAX_MODULE_BYTES: Final = 4 * MIB
"""Longest module that is looked through: Python decodes some megabytes of code a second."""
MAX_REGIONS: Final = 256
MAX_CROSSING: Final = 128
"""Most inputs and globals of a region."""

_MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True)
class CutModule:
    """What became of a module.

    Attributes:
        original: the module as it was.
        wasm: the module with guards, empty if there is no region.
        regions: those with a guard, by their numbers.
        declined: loops outside of regions.
    """

    original: Module
    wasm: bytes
    regions: tuple[LoopRegion, ...]
    declined: tuple[DeclinedLoop, ...]


def cut_module(wasm: bytes) -> CutModule:
    """Find the regions of a module and cut them out.

    Raises:
        InvalidWasm: the module is malformed.
    """
    module = decode(wasm)
    regions: list[LoopRegion] = []
    declined: list[DeclinedLoop] = []
    if len(wasm) > MAX_MODULE_BYTES or not _shows_memory(module):
        return CutModule(module, b"", (), ())
    for found in find_regions(module):
        if isinstance(found, DeclinedLoop):
            declined.append(found)
        elif len(regions) == MAX_REGIONS or len(found.inputs) + len(found.globals) > MAX_CROSSING:
            declined.append(DeclinedLoop(found.function, found.start, DeclineReason.TOO_LARGE, "regions or inputs"))
        else:
            regions.append(found)
    edited = encode(cut(module, regions)) if regions else b""
    return CutModule(module, edited, tuple(regions), tuple(declined))


def _shows_memory(module: Module) -> bool:
    """Return whether host functions find the memory."""
    return any(item.kind == "memory" and item.name == _MEMORY for item in module.exports)
