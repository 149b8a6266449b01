"""Symbol tables: which declaration a name refers to, and the names of special registers.

Source: PTX ISA 4.4 (Identifiers), 5.4.5 (Parameterized Variable Names), 10 (Special Registers).
"""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.declarations import MAX_REGISTERS
from tensorwasm.ptx.lexer import shown
from tensorwasm.ptx.model import Directive, Function, Label, Position, TargetList, Variable
from tensorwasm.watch import UNLIMITED, Watch

VECTOR_SPECIALS: Final = frozenset(
    {
        "%tid",
        "%ntid",
        "%ctaid",
        "%nctaid",
        "%clusterid",
        "%nclusterid",
        "%cluster_ctaid",
        "%cluster_nctaid",
    }
)
"""Special registers with components x, y, z and w."""

SPECIALS: Final = VECTOR_SPECIALS | {
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%is_explicit_cluster",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%clock",
    "%clock_hi",
    "%clock64",
    *(f"%pm{index}" for index in range(8)),
    *(f"%pm{index}_64" for index in range(8)),
    *(f"%envreg{index}" for index in range(32)),
    "%globaltimer",
    "%globaltimer_lo",
    "%globaltimer_hi",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
    "%reserved_smem_offset_0",
    "%reserved_smem_offset_1",
    "%total_smem_size",
    "%aggr_smem_size",
    "%dynamic_smem_size",
    "%current_graph_exec",
}
"""Every special register; programs may not declare these names."""

Symbol = Variable | Function | Label | TargetList | Directive
"""What a name can refer to; a directive is an ``.alias``."""

_MAX_DIGITS: Final = len(str(MAX_REGISTERS))
_DIGITS: Final = "0123456789"
_NUMBERED_SPECIALS: Final = frozenset(name.rstrip(_DIGITS) for name in SPECIALS if name[-1].isdigit())


def malformed(message: str, position: Position) -> MalformedPtx:
    """Return the error for a fault at ``position``."""
    return MalformedPtx(message, position.line, position.column)


def _splits(name: str) -> list[tuple[str, int]]:
    """Return the prefixes and register numbers that may form ``name``, the longest prefix first."""
    digits = min(_MAX_DIGITS, len(name) - len(name.rstrip(_DIGITS)), len(name) - 1)
    return [(name[:-most], int(name[-most:])) for most in range(1, digits + 1) if most == 1 or name[-most] != "0"]


def _has_member(family: Variable, digits: str) -> bool:
    """Return whether the digits are the number of a register of the family."""
    return 0 < len(digits) <= _MAX_DIGITS and (digits[0] != "0" or digits == "0") and int(digits) < (family.count or 0)


class SymbolTable:
    """The names that one block declares; they hide those of the blocks around it.

    Every look-up counts as a step of the watch, so that each method raises `InvokeTimeout` after its deadline.

    Attributes:
        symbols: declarations by name, without numbered registers.
        families: numbered registers by prefix.
        predicates: names known to be predicates here, as ``values`` are known to be values: the checks of
            instructions look each up once.
    """

    __slots__ = ("families", "parent", "predicates", "symbols", "values", "watch")

    def __init__(self, parent: SymbolTable | None = None, watch: Watch = UNLIMITED) -> None:
        """Begin an empty table inside ``parent``, whose watch it takes."""
        self.parent = parent
        self.symbols: dict[str, Symbol] = {}
        self.families: dict[str, Variable] = {}
        self.predicates: set[str] = set()
        self.values: set[str] = set()
        self.watch: Watch = watch if parent is None else parent.watch

    def declare(self, name: str, symbol: Symbol) -> None:
        """Add a name; raise `MalformedPtx` if the block declares it already, or if it is a special register."""
        self.watch.step()
        if name in SPECIALS:
            raise malformed(f"{name} is a special register", symbol.position)
        if isinstance(symbol, Variable) and symbol.count is not None:
            if name in self.families:
                raise malformed(f"{shown(name + '<...>')} is declared twice", symbol.position)
            self.families[name] = symbol
            self.values.clear()
            self.predicates.clear()
            return
        if name in self.symbols:
            raise malformed(f"{shown(name)} is declared twice", symbol.position)
        self.symbols[name] = symbol
        self.values.discard(name)
        self.predicates.discard(name)

    def find(self, name: str) -> Symbol | None:
        """Return what ``name`` refers to here, or None."""
        found = self.locate(name)
        return found and found[1]

    def locate(self, name: str) -> tuple[SymbolTable, Symbol] | None:
        """Return the table that declares ``name`` and its symbol, or None."""
        self.watch.step()
        stem = name.rstrip(_DIGITS)
        splits: list[tuple[str, int]] | None = None
        table: SymbolTable | None = self
        while table is not None:
            symbol = table.symbols.get(name)
            if symbol is None and table.families:
                # Compilers write names whose digits are all the number. `close` refuses a block with a second reading.
                symbol = table.families.get(stem)
                if symbol is None or not _has_member(symbol, name[len(stem) :]):
                    splits = _splits(name) if splits is None else splits
                    symbol = table.member(splits)
            if symbol is not None:
                return table, symbol
            table = table.parent
        return None

    def member(self, splits: list[tuple[str, int]]) -> Variable | None:
        """Return the family of this block that one of ``splits`` belongs to, or None."""
        for prefix, number in splits:
            family = self.families.get(prefix)
            if family is not None and number < (family.count or 0):
                return family
        return None

    def close(self) -> None:
        """End the block; raise `MalformedPtx` if a numbered register is also declared in another way."""
        if not self.families:
            return
        for name, symbol in self.watch.over(self.symbols.items()):
            if self.member(_splits(name)) is not None:
                raise malformed(f"{shown(name)} is declared twice, once by its number", symbol.position)
        for prefix, family in self.families.items():
            # Of the names that prefix<n> declares, prefix0 has the smallest number under any shorter prefix.
            if prefix in _NUMBERED_SPECIALS or self.member(_splits(prefix + "0")[1:]) is not None:
                raise malformed(f"{shown(prefix + '<...>')} declares names that are taken", family.position)
