"""The rows of the instruction tables, one per family of mnemonics.

A row names its mnemonics by a pattern in which ``{,.rn,.rz}`` stands for one of the alternatives, the operand types by
a signature, and makes the function that computes the lanes. Lookup, inventory and operand checks are derived from the
rows, so a mnemonic exists if and only if a row spells it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.gpu.emulator.ops import Op
from tensorwasm.ptx.model import Instruction

Run = Callable[..., Any]
Modifiers = tuple[str, ...]
Key = tuple[str, tuple[str, ...], frozenset[str]]

_TYPE: Final = re.compile(r"pred|[busf]\d+(x2)?|bf16(x2)?|tf32|e\dm\dx2")


@dataclass(frozen=True, slots=True)
class OpRow:
    """A family of mnemonics that share operand types and meaning.

    Attributes:
        pattern: mnemonics, ``add{,.rn,.rz}{,.ftz}.f32``.
        signature: results, ``=``, sources. ``T`` is the last type of the mnemonic, ``D`` the one before it, ``E`` the
            one before that, ``W`` the integer type twice as wide as ``T``; anything else is a PTX type as it stands.
        make: builds the lane function from the modifiers.
        reads_carry, writes_carry: as in `Op`; the signature spells the extra ``pred``.
        bind: adapts the op to the operands of one instruction, where their shape matters.
    """

    pattern: str
    signature: str
    make: Callable[[Modifiers], Run]
    reads_carry: bool = False
    writes_carry: bool = False
    bind: Callable[[Instruction, Op], Op] | None = None

    def compile(self, mnemonic: str) -> Op:
        """Build the op of one of the row's mnemonics."""
        modifiers = tuple(mnemonic.split(".")[1:])
        results, _, sources = self.signature.partition("=")
        letters = _letters(modifiers)
        return Op(
            results=tuple(letters.get(word, word) for word in results.split()),
            sources=tuple(letters.get(word, word) for word in sources.split()),
            run=self.make(modifiers),
            reads_carry=self.reads_carry,
            writes_carry=self.writes_carry,
        )


def spell(pattern: str) -> Iterator[str]:
    """Yield every mnemonic of a pattern."""
    parts = [part.split(",") if index % 2 else [part] for index, part in enumerate(re.split(r"[{}]", pattern))]
    return map("".join, itertools.product(*parts))


def key(mnemonic: str) -> Key:
    """Return what identifies a mnemonic: opcode, types in order, the other modifiers in any order, as ptxas takes them.

    A repeated modifier makes a key that no row has.
    """
    opcode, *modifiers = mnemonic.split(".")
    types = tuple(word for word in modifiers if _TYPE.fullmatch(word))
    others = [word for word in modifiers if not _TYPE.fullmatch(word)]
    return opcode, types, frozenset(others if len(set(others)) == len(others) else [mnemonic])


def always(run: Run) -> Callable[[Modifiers], Run]:
    """Make the same function whatever the modifiers."""
    return lambda _modifiers: run


def _letters(modifiers: Modifiers) -> dict[str, str]:
    """What the letters of a signature stand for."""
    letters = dict(zip("TDE", filter(_TYPE.fullmatch, reversed(modifiers)), strict=False))
    kind, bits = letters.get("T", "")[:1], letters.get("T", "")[1:]
    if bits.isdigit():
        letters["W"] = f"{kind}{2 * int(bits)}"
    return letters
