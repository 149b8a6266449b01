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
from tensorwasm.watch import UNLIMITED, Watch

Symbol = Variable | Function | Label | TargetList | Directive
"""What a name can stand for; a directive is an ``.alias``."""

_MOST_DIGITS: Final = len(str(MAX_REGISTERS))
_DIGITS: Final = "0123456789"
_NUMBERED_SPECIALS: Final = frozenset(name.rstrip(_DIGITS) for name in SPECIALS if name[-1].isdigit())


def fault(message: str, position: Position) -> MalformedPtx:
    """Return the error for something at ``position``."""
    return MalformedPtx(message, position.line, position.column)


def _splits(name: str) -> list[tuple[str, int]]:
    """Return the prefixes and numbers that ``name`` can be made of, the longest prefix first."""
    digits = min(_MOST_DIGITS, len(name) - len(name.rstrip(_DIGITS)), len(name) - 1)
    return [(name[:-most], int(name[-most:])) for most in range(1, digits + 1) if most == 1 or name[-most] != "0"]


def _numbers(family: Variable, digits: str) -> bool:
    """Return whether the digits name a register of the family."""
    return 0 < len(digits) <= _MOST_DIGITS and (digits[0] != "0" or digits == "0") and int(digits) < (family.count or 0)


class Scope:
    """The names of one block, in front of those of the blocks around it.

    Attributes:
        parent: the scope around it, or None.
        symbols: declarations by name, without numbered registers.
        families: numbered registers by prefix.
        predicates: names found to be predicates here, likewise.
        values: names found to be usable as values here; the checks keep it so that each is looked up once.
        watch: counts the look-ups in this scope and in all around and inside it.
    """

    __slots__ = ("families", "parent", "predicates", "symbols", "values", "watch")

    def __init__(self, parent: Scope | None = None, watch: Watch = UNLIMITED) -> None:
        """Begin an empty scope inside ``parent``, which brings its own watch."""
        self.parent = parent
        self.symbols: dict[str, Symbol] = {}
        self.families: dict[str, Variable] = {}
        self.predicates: set[str] = set()
        self.values: set[str] = set()
        self.watch: Watch = watch if parent is None else parent.watch

    def declare(self, name: str, symbol: Symbol) -> None:
        """Add a name.

        Raises:
            MalformedPtx: the scope has it already, or it is a special register.
            InvokeTimeout: the deadline has passed.
        """
        self.watch.step()
        if name in SPECIALS:
            raise fault(f"{name} is a special register", symbol.position)
        if isinstance(symbol, Variable) and symbol.count is not None:
            if name in self.families:
                raise fault(f"{shown(name + '<...>')} is declared twice", symbol.position)
            self.families[name] = symbol
            self.values.clear()
            self.predicates.clear()
            return
        if name in self.symbols:
            raise fault(f"{shown(name)} is declared twice", symbol.position)
        self.symbols[name] = symbol
        self.values.discard(name)
        self.predicates.discard(name)

    def find(self, name: str) -> Symbol | None:
        """Return what ``name`` means here, or None. Inner scopes hide outer ones.

        Raises:
            InvokeTimeout: the deadline has passed.
        """
        found = self.locate(name)
        return found and found[1]

    def locate(self, name: str) -> tuple[Scope, Symbol] | None:
        """Return what ``name`` means here together with the scope that declares it, or None.

        Raises:
            InvokeTimeout: the deadline has passed.
        """
        self.watch.step()
        stem = name.rstrip(_DIGITS)
        splits: list[tuple[str, int]] | None = None
        scope: Scope | None = self
        while scope is not None:
            symbol = scope.symbols.get(name)
            if symbol is None and scope.families:
                # All digits are the number in what compilers write; where fewer can be too, the scope is refused.
                symbol = scope.families.get(stem)
                if symbol is None or not _numbers(symbol, name[len(stem) :]):
                    splits = _splits(name) if splits is None else splits
                    symbol = scope.member(splits)
            if symbol is not None:
                return scope, symbol
            scope = scope.parent
        return None

    def member(self, splits: list[tuple[str, int]]) -> Variable | None:
        """Return the family of this scope alone that one of ``splits`` belongs to, or None."""
        for prefix, number in splits:
            family = self.families.get(prefix)
            if family is not None and number < (family.count or 0):
                return family
        return None

    def close(self) -> None:
        """Check what only the whole scope shows: that no numbered register has a second meaning.

        Raises:
            MalformedPtx: one has.
            InvokeTimeout: the deadline has passed.
        """
        if not self.families:
            return
        for name, symbol in self.watch.over(self.symbols.items()):
            if self.member(_splits(name)) is not None:
                raise fault(f"{shown(name)} is declared twice, once by its number", symbol.position)
        for prefix, family in self.families.items():
            # Of the names that prefix<n> declares, prefix0 has the smallest number under any shorter prefix.
            if prefix in _NUMBERED_SPECIALS or self.member(_splits(prefix + "0")[1:]) is not None:
                raise fault(f"{shown(prefix + '<...>')} declares names that are taken", family.position)
