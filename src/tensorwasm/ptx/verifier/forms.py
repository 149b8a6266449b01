"""The instructions that a guarded kernel may have: a closed list of opcodes, modifiers, operands and special registers.

Nothing outside of it is accepted, whatever ptxas would make of it.

Source: PTX ISA 9.7 (Instructions), 10 (Special Registers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tensorwasm.ptx.model import Instruction, Name, Pair, Vector
from tensorwasm.ptx.verifier import memory_forms, warp_forms
from tensorwasm.ptx.verifier.form import TYPES, AcceptedForm, NotAccepted, is_value, require, words

_ARITHMETIC: Final = words(
    """abs add addc and bfe bfi bfind bmsk brev clz cnot copysign cos cvt div dp2a dp4a ex2 fma fns lg2 lop3 mad mad24
    madc max min mov mul mul24 neg not or popc prmt rcp rem rsqrt sad selp set setp shf shl shr sin slct sqrt sub subc
    szext tanh testp vabsdiff2 vabsdiff4 vadd2 vadd4 vmax2 vmax4 vmin2 vmin4 vsub2 vsub4 vavrg2 vavrg4 xor"""
)
"""Opcodes that compute registers of registers."""
_ARITHMETIC_WORDS: Final = (
    words(
        """pred rn rz rm rp rna rni rzi rmi rpi rs ftz sat satfinite relu approx full cc lo hi wide eq ne lt le gt ge ls
        hs equ neu ltu leu gtu geu num nan NaN xorsign abs and or xor l r clamp wrap shiftamt b4e f4e rc8 ecl ecr rc16
        finite infinite number notanumber normal subnormal tf32 e4m3x2 e5m2x2 e4m3x4 e5m2x4 u16x2 s16x2 oob add"""
    )
    | TYPES.keys()
)


def form(instruction: Instruction) -> AcceptedForm:
    """Return what an instruction does; raise `NotAccepted` if it is not in the list."""
    opcode = instruction.opcode
    read = _READERS.get(opcode)
    if read is not None:
        return read(instruction)
    if opcode not in _ARITHMETIC:
        raise NotAccepted(_REASONS.get(opcode, f"{opcode} is not available"))
    if not _ARITHMETIC_WORDS.issuperset(instruction.modifiers):
        raise NotAccepted(f"{instruction.mnemonic} is not available")
    for operand in instruction.operands:
        if isinstance(operand, (Vector, Pair)):
            if isinstance(operand, Vector) and opcode != "mov":
                raise NotAccepted(f"a vector as an operand of {opcode}")
            elements = operand.elements if isinstance(operand, Vector) else (operand.first, operand.second)
            require(all(map(is_value, elements)), instruction)
        else:
            require(is_value(operand), instruction)
    return AcceptedForm()


def _space_test(instruction: Instruction) -> AcceptedForm:
    require(instruction.modifiers in (("global",), ("shared",), ("local",), ("const",)), instruction)
    require(
        len(instruction.operands) == 2 and all(isinstance(each, Name) for each in instruction.operands), instruction
    )
    return AcceptedForm()


def _convert(instruction: Instruction) -> AcceptedForm:
    named = tuple(word for word in instruction.modifiers if word != "to")
    require(named in (("shared", "u64"), ("local", "u64")), instruction)
    require(
        len(instruction.operands) == 2 and all(isinstance(each, Name) for each in instruction.operands), instruction
    )
    return AcceptedForm()


def _end(instruction: Instruction) -> AcceptedForm:
    require(not instruction.modifiers and not instruction.operands, instruction)
    return AcceptedForm(writes=())


_READERS: Final[Mapping[str, Callable[[Instruction], AcceptedForm]]] = {
    **dict.fromkeys(("ld", "ldu"), memory_forms.load),
    "st": memory_forms.store,
    **dict.fromkeys(("atom", "red"), memory_forms.atomic),
    "cp": memory_forms.copy,
    **dict.fromkeys(("ldmatrix", "stmatrix"), memory_forms.matrix_rows),
    **dict.fromkeys(("mma", "wmma"), warp_forms.matrix),
    **dict.fromkeys(("shfl", "vote", "match", "redux"), warp_forms.warp),
    "activemask": warp_forms.active,
    **dict.fromkeys(("bar", "barrier"), warp_forms.barrier),
    **dict.fromkeys(("membar", "fence"), warp_forms.order),
    "nanosleep": warp_forms.sleep,
    "isspacep": _space_test,
    "cvta": _convert,
    **dict.fromkeys(("ret", "exit"), _end),
}
"""What reads an instruction that is more than arithmetic, by opcode."""

_REASONS: Final = {
    "brkpt": "brkpt stops the whole GPU",
    "mbarrier": "barriers in shared memory can leave threads waiting for ever",
    **dict.fromkeys(("tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep"), "textures and surfaces"),
    **dict.fromkeys(("mapa", "getctarank"), "clusters of blocks"),
    **dict.fromkeys(("tensormap", "wgmma", "tcgen05", "multimem"), "tensor memory of one architecture"),
    **dict.fromkeys(("alloca", "stacksave", "stackrestore"), "memory that is allocated on the stack"),
    "griddepcontrol": "dependent launches",
    "setmaxnreg": "a change of the number of registers",
}
