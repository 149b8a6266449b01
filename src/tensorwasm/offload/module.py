"""A module whose regions are cut out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tensorwasm.offload.analysis.regions import DeclinedLoop, LoopRegion, find_regions
from tensorwasm.offload.cut import INTERFACE, cut
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.polling import add_polls, has_long_indices
from tensorwasm.values import MIB
from tensorwasm.wasm.definitions import CodeEntry
from tensorwasm.wasm.module import Module, decode, encode
from tensorwasm.wasm.types import FuncType

MAX_MODULE_BYTES: Final = 4 * MIB
"""Longest module that is looked through: Python decodes some megabytes of code a second."""
MAX_REGIONS: Final = 256
MAX_CROSSING: Final = 128
"""Most inputs and globals of a region."""

_MEMORY: Final = "memory"
_LOOP: Final = b"\x03"


@dataclass(frozen=True, slots=True)
class LoneRegion:
    """A region without the rest of its module: all that a plan depends on, but the values that it is entered with.

    Attributes:
        wasm: a module of one function, which is the region.
        region: where it is there.
    """

    wasm: bytes
    region: LoopRegion


@dataclass(frozen=True, slots=True)
class CutModule:
    """What became of a module.

    Attributes:
        wasm: the module with guards, which polls; empty if it has no loop, is too long or is not for our engine.
        regions: those with a guard, by their numbers.
        declined: loops outside of regions.
        lone: the regions by themselves, in the same order.
    """

    wasm: bytes
    regions: tuple[LoopRegion, ...]
    declined: tuple[DeclinedLoop, ...]
    lone: tuple[LoneRegion, ...]


_UNCUT: Final = CutModule(b"", (), (), ())


def cut_module(wasm: bytes) -> CutModule:
    """Find the regions of a module, cut them out, and make all its code poll; a too large or deep module has none.

    Raises:
        InvalidWasm: the module is malformed.
    """
    module = decode(wasm)
    loops = any(_LOOP in body.raw for body in module.bodies)
    if len(wasm) > MAX_MODULE_BYTES or not loops or has_long_indices(module):
        return _UNCUT
    try:
        return _cut_out(module)
    except RecursionError:
        return _UNCUT


def _cut_out(module: Module) -> CutModule:
    regions: list[LoopRegion] = []
    declined: list[DeclinedLoop] = []
    for found in find_regions(module) if _shows_memory(module) else ():
        if isinstance(found, DeclinedLoop):
            declined.append(found)
        elif len(regions) == MAX_REGIONS or len(found.inputs) + len(found.globals) > MAX_CROSSING:
            if found.parts == 1:
                declined.append(DeclinedLoop(found.function, found.start, DeclineReason.TOO_LARGE, "regions or inputs"))
        else:
            regions.append(found)
    edited = encode(add_polls(cut(module, regions), INTERFACE))
    lone = tuple([_take_out(module, region) for region in regions])
    return CutModule(edited, tuple(regions), tuple(declined), lone)


def _take_out(module: Module, region: LoopRegion) -> LoneRegion:
    """Return a region alone; no branch in it leads out, and it calls nothing."""
    place = region.function - len(module.imported("func"))
    body, signature = module.bodies[place], module.types[module.functions[place]]
    code = body.instructions()[region.start : region.end + 1]
    has_typed_blocks = any(step[0] in {"block", "loop", "if"} and isinstance(step[1], int) for step in code)
    types = module.types if has_typed_blocks else ()
    alone = Module(
        types=(*types, FuncType(signature.params, ())),
        functions=(len(types),),
        bodies=(CodeEntry.build(body.local_runs(), code),),
    )
    return LoneRegion(encode(alone), replace(region, function=0, start=0, end=len(code) - 1))


def _shows_memory(module: Module) -> bool:
    """Return whether host functions find the memory."""
    return any(item.kind == "memory" and item.name == _MEMORY for item in module.exports)
