"""The tensor-core family, by mnemonic.

Source: PTX ISA 9.7.14.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Final

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator.collective import asynchronous, mma, tiles, wmma
from tensorwasm.gpu.emulator.collective.catalog import Catalog, key
from tensorwasm.gpu.emulator.ops import WarpOp
from tensorwasm.ptx.model import Instruction

_OPCODES: Final = frozenset({"mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"})
_LACKING: Final = {
    "wgmma": "warpgroup matrix products",
    "tcgen05": "fifth-generation tensor cores",
    "sp": "sparse matrix products",
    "sp::ordered_metadata": "sparse matrix products",
    "block_scale": "block-scaled matrix products",
    "kind::f8f6f4": "matrix products of 4- and 6-bit floats",
    "m16n16": "matrix tiles of 8-bit elements",
    "m8n16": "matrix tiles of narrow elements",
    "m16n8": "matrix tiles of 8-bit elements",
}


@cache
def catalog() -> Catalog[WarpOp]:
    """Return every supported form."""
    made = Catalog.of(itertools.chain(mma.forms(), wmma.forms(), tiles.forms()))
    for name in made.names:
        if name.startswith("wmma."):  # before PTX ISA 6.3 a word of these was left out
            made.ops[key(word for word in name.split(".") if word != "aligned")] = made.ops[key(name.split("."))]
    return made


def compile_warp_op(instruction: Instruction) -> WarpOp | None:
    """Turn a tensor-core instruction into its op; None if it is not one.

    Raises:
        UnsupportedPtx: a form that does not exist or that this device lacks; the message names it.
        MalformedPtx: operands that do not fit the form.
    """
    words = (instruction.opcode, *instruction.modifiers)
    if instruction.opcode not in _OPCODES and instruction.opcode not in _LACKING:
        return None
    for word in words:
        if word in _LACKING:
            message = f"{instruction.mnemonic} needs {_LACKING[word]}, which this device lacks"
            raise UnsupportedPtx(message, instruction.position.line, instruction.position.column)
    return catalog().find(instruction, lambda _operand: None)


def forms() -> list[str]:
    """Return every supported mnemonic of this package, in the spelling of the PTX ISA."""
    return [*catalog().names, *asynchronous.catalog().names]
