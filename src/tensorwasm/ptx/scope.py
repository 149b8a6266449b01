"""Which declaration a name means.

Source: PTX ISA 4.4 (Identifiers), 5.4.5 (Parameterized Variable Names).
"""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.declarations import MAX_REGISTERS
from tensorwasm.ptx.lexer import shown
from tensorwasm.ptx.model import Directive, Function, Label, Position, TargetList, Variable
from tensorwasm.ptx.special import SPECIALS

Symbol = Variable | Function | Label | TargetList | Directive
"""What a name can stand for; a directive is an ``.alias``."""

_MOST_DIGITS: Final = len(str(MAX_REGISTERS))
_NUMBERED_SPECIALS: Final = frozenset(name.rstrip("0123456789") for name in SPECIALS if name[-1].isdigit())


def fault(message: str, position: Position) -> MalformedPtx:
    """Return the error for something at ``position``."""
    return MalformedPtx(message, position.line, position.column)


class Scope:
    """The names of one block, in front of those of the blocks around it.

    Attributes:
        parent: the scope around it, or None.
        symbols: declarations by name, without numbered registers.
        families: numbered registers by prefix.
        values: names found to be usable as values here; the checks keep it so that each is looked up once.
    """

    __slots__ = ("families", "parent", "symbols", "values")

    def __init__(self, parent: Scope | None = None) -> None:
        """Begin an empty scope inside ``parent``."""
        self.parent = parent
        self.symbols: dict[str, Symbol] = {}
        self.families: dict[str, Variable] = {}
        self.values: set[str] = set()

    def declare(self, name: str, symbol: Symbol) -> None:
        """Add a name.

        Raises:
            MalformedPtx: the scope has it already, or it is a special register.
        """
        if name in SPECIALS:
            raise fault(f"{name} is a special register", symbol.position)
        if isinstance(symbol, Variable) and symbol.count is not None:
            if name in self.families:
                raise fault(f"{shown(name + '<...>')} is declared twice", symbol.position)
            self.families[name] = symbol
            self.values.clear()
            return
        if name in self.symbols:
            raise fault(f"{shown(name)} is declared twice", symbol.position)
        self.symbols[name] = symbol
        self.values.discard(name)

    def find(self, name: str) -> Symbol | None:
        """Return what ``name`` means here, or None. Inner scopes hide outer ones."""
        found = self.locate(name)
        return found and found[1]

    def locate(self, name: str) -> tuple[Scope, Symbol] | None:
        """Return what ``name`` means here together with the scope that declares it, or None."""
        scope: Scope | None = self
        while scope is not None:
            symbol = scope.symbols.get(name) or scope.member(name)
            if symbol is not None:
                return scope, symbol
            scope = scope.parent
        return None

    def member(self, name: str, least_digits: int = 1) -> Variable | None:
        """Return the family of this scope alone that ``name`` is a number of, or None; the longest prefix wins."""
        if not self.families:
            return None
        for digits in range(least_digits, min(_MOST_DIGITS, len(name) - 1) + 1):
            number = name[-digits:]
            if not number[0].isdigit():
                return None
            family = self.families.get(name[:-digits])
            if family is not None and (digits == 1 or number[0] != "0") and int(number) < (family.count or 0):
                return family
        return None

    def close(self) -> None:
        """Check what only the whole scope shows: that no numbered register has a second meaning.

        Raises:
            MalformedPtx: one has.
        """
        if not self.families:
            return
        for name, symbol in self.symbols.items():
            if self.member(name) is not None:
                raise fault(f"{shown(name)} is declared twice, once by its number", symbol.position)
        for prefix, family in self.families.items():
            # Of the names that prefix<n> declares, prefix0 has the smallest number under any shorter prefix.
            if prefix in _NUMBERED_SPECIALS or self.member(prefix + "0", 2) is not None:
                raise fault(f"{shown(prefix + '<...>')} declares names that are taken", family.position)
