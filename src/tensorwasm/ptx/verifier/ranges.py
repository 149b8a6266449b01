"""Between which numbers the values of registers lie, whatever a kernel does.

A register of n bits holds a number modulo 2**n, and a range says that it is one of its integers, modulo 2**n. So sums,
differences and products of ranges hold although they may wrap; what reads numbers as signed or unsigned takes a range
only if all of its integers are such numbers, or else the range of them all.

Source: PTX ISA 9.7.1 (Integer Arithmetic), 9.7.8 (Logic and Shift), 9.7.9 (Data Movement and Conversion), 10 (Special
Registers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tensorwasm.ptx.model import Instruction, Int, Name, Operand
from tensorwasm.ptx.verifier.definitions import BEGINNING, Definitions

_MOST_BITS: Final = 80
"""Bits of the integers in ranges; a range with longer ones is that of all numbers."""
_MOST_DEPTH: Final = 40
MOST_STEPS: Final = 1 << 17
"""Blocks of a function that are looked at for ranges: what is asked later has no known one."""
_MOST_WRITES: Final = 16
_WIDTHS: Final = {"%r": 32, "%d": 64}
"""Bits of the program's registers whose ranges are looked for, by how their names begin."""
_BLOCK_AXES: Final = frozenset({"x", "y", "z"})


class Range(NamedTuple):
    """Integers from ``low`` to ``high``."""

    low: int
    high: int

    def within(self, low: int, high: int) -> bool:
        """Return whether all of them are between two others."""
        return low <= self.low and self.high <= high


class Induction(NamedTuple):
    """A write in a loop that adds a number to a register in each turn.

    Attributes:
        head: index of the label where the loop begins.
        begin: range of the register where the loop is entered.
        step: what is added.
        turns: how often at most.
    """

    head: int
    begin: Range
    step: int
    turns: int


def unsigned(bits: int) -> Range:
    """Return the range of unsigned numbers."""
    return Range(0, (1 << bits) - 1)


def signed(bits: int) -> Range:
    """Return the range of signed numbers."""
    return Range(-1 << (bits - 1), (1 << (bits - 1)) - 1)


def number(value: Range, bits: int, kind: str) -> Range:
    """Return a range whose integers are the numbers that an instruction of type ``s`` or ``u`` takes values for."""
    whole = signed(bits) if kind == "s" else unsigned(bits)
    turns = (value.low - whole.low) >> bits << bits
    moved = Range(value.low - turns, value.high - turns)
    return moved if moved.within(*whole) else whole


class Ranges:
    """The ranges of a function's registers, at each place.

    Args:
        definitions: of the function.
        threads: the most that a block has.
        most_steps: of ``definitions``.
    """

    def __init__(self, definitions: Definitions, threads: int, most_steps: int = MOST_STEPS) -> None:
        self._definitions = definitions
        self._threads = threads
        self._most_steps = most_steps
        self._known: dict[int, Range] = {}
        self._inductions: dict[int, Induction | None] = {}
        self._open: set[int] = set()
        self._induction: Callable[[int], Induction | None] = lambda _at: None

    def learn(self, induction: Callable[[int], Induction | None]) -> None:
        """Ask ``induction`` of writes from now on."""
        self._induction = induction
        self._known.clear()
        self._inductions.clear()

    def at(self, operand: Operand, at: int, bits: int) -> Range:
        """Return the range of an operand before a statement."""
        match operand:
            case Int(value):
                return Range(value, value)
            case Name(name, None) if _WIDTHS.get(name[:2], 0) >= bits and name[2:].isdecimal():
                if self._definitions.steps < self._most_steps:
                    return self.union(self._definitions.reaching(name, at), _WIDTHS[name[:2]], at)
            case Name():
                return self._special(operand, bits)
            case _:
                pass
        return unsigned(bits)

    def union(self, writes: set[int], bits: int, at: int = BEGINNING) -> Range:
        """Return the range of what any of some writes gives a register.

        Args:
            writes: by their index; `BEGINNING` is one that clears it.
            bits: of the register.
            at: index of the statement that reads it, if it is a statement.
        """
        if not 0 < len(writes) <= _MOST_WRITES:  # there are none in code that no way leads to
            return unsigned(bits)
        found = [Range(0, 0) if each == BEGINNING else self._write(each, bits, at) for each in sorted(writes)]
        return _bounded(Range(min(each.low for each in found), max(each.high for each in found)), bits)

    def _special(self, name: Name, bits: int) -> Range:
        if name.name == "%tid" and name.component in _BLOCK_AXES:
            return Range(0, self._threads - 1)
        if name.name == "%ntid" and name.component in _BLOCK_AXES:
            return Range(1, self._threads)
        return Range(0, 31) if name == Name("%laneid") else unsigned(bits)

    def _write(self, write: int, bits: int, at: int) -> Range:
        """Return the range of what an instruction writes and another statement reads."""
        if write in self._open or len(self._open) >= _MOST_DEPTH:
            return unsigned(bits)
        if write not in self._known:
            self._open.add(write)
            self._inductions[write] = found = self._induction(write)
            instruction = self._definitions.body[write]
            made = unsigned(bits)
            if found is not None:
                made = _added(found, found.turns)
            elif isinstance(instruction, Instruction):
                made = self._value(instruction, write, bits)
            self._open.discard(write)
            self._known[write] = _bounded(made, bits)
        found = self._inductions[write]
        if found is not None and found.turns > 1 and found.head < at <= write:
            return _bounded(_added(found, found.turns - 1), bits)  # what is read is of an earlier turn
        return self._known[write]

    def _value(self, instruction: Instruction, at: int, bits: int) -> Range:
        target, *sources = instruction.operands
        rule = _RULES.get((instruction.opcode, len(sources)))
        if rule is None or not isinstance(target, Name):
            return unsigned(bits)
        made = rule(instruction.modifiers, _Sources(self, sources, at, bits))
        return unsigned(bits) if made is None else made


class _Sources:
    """The sources of an instruction that writes a register of some bits."""

    def __init__(self, ranges: Ranges, operands: list[Operand], at: int, bits: int) -> None:
        self.operands = operands
        self.bits = bits
        self._ranges = ranges
        self._at = at

    def value(self, index: int, bits: int) -> Range:
        """Return the range of a source."""
        return self._ranges.at(self.operands[index], self._at, bits)

    def constant(self, index: int) -> int:
        """Return the value of a source that is a number, -1 for another."""
        operand = self.operands[index]
        return operand.value if isinstance(operand, Int) else -1


def _bounded(made: Range, bits: int) -> Range:
    return made if max(abs(made.low), abs(made.high)) < 1 << _MOST_BITS else unsigned(bits)


def _added(found: Induction, turns: int) -> Range:
    """Return the range of a register after it was added to at least once and at most some times."""
    ends = (found.step, found.step * turns)
    return Range(found.begin.low + min(ends), found.begin.high + max(ends))


def _times(one: Range, other: Range) -> Range:
    ends = [a * b for a in one for b in other]
    return Range(min(ends), max(ends))


_Rule = Callable[[tuple[str, ...], _Sources], Range | None]


def _plain(words: tuple[str, ...], bits: int) -> bool:
    """Return whether an operation is of whole registers of some bits, without saturation or carries."""
    return len(words) == 1 and words[0] in (f"s{bits}", f"u{bits}", f"b{bits}")


def _move(words: tuple[str, ...], sources: _Sources) -> Range | None:
    return sources.value(0, sources.bits) if _plain(words, sources.bits) else None


def _sum(words: tuple[str, ...], sources: _Sources) -> Range | None:
    if not _plain(words, sources.bits):
        return None
    one, other = (sources.value(each, sources.bits) for each in (0, 1))
    return Range(one.low + other.low, one.high + other.high)


def _difference(words: tuple[str, ...], sources: _Sources) -> Range | None:
    if not _plain(words, sources.bits):
        return None
    one, other = (sources.value(each, sources.bits) for each in (0, 1))
    return Range(one.low - other.high, one.high - other.low)


def _product(words: tuple[str, ...], sources: _Sources) -> Range | None:
    how, kind = words if len(words) == 2 else ("", "")
    if how == "lo" and _plain((kind,), sources.bits):
        return _times(sources.value(0, sources.bits), sources.value(1, sources.bits))
    if how == "wide" and kind in ("s32", "u32") and sources.bits == 64:
        return _times(*(number(sources.value(each, 32), 32, kind[0]) for each in (0, 1)))
    return None


def _multiplied_and_added(words: tuple[str, ...], sources: _Sources) -> Range | None:
    made = _product(words, sources)
    if made is None:
        return None
    other = sources.value(2, sources.bits)
    return Range(made.low + other.low, made.high + other.high)


def _shifted_left(words: tuple[str, ...], sources: _Sources) -> Range | None:
    count = sources.constant(1)
    if not _plain(words, sources.bits) or not 0 <= count < sources.bits:
        return None
    value = sources.value(0, sources.bits)
    return Range(value.low << count, value.high << count)


def _shifted_right(words: tuple[str, ...], sources: _Sources) -> Range | None:
    count = sources.constant(1)
    if not _plain(words, sources.bits) or not 0 <= count < sources.bits:
        return None
    value = number(sources.value(0, sources.bits), sources.bits, words[0][0])
    return Range(value.low >> count, value.high >> count)


def _both(words: tuple[str, ...], sources: _Sources) -> Range | None:
    if not _plain(words, sources.bits):
        return None
    values = [number(sources.value(each, sources.bits), sources.bits, "u") for each in (0, 1)]
    values += [unsigned(sources.bits)]
    for at, each in enumerate(sources.operands):
        if isinstance(each, Int):  # a negative number stands for its low bits
            masked = each.value & unsigned(sources.bits).high
            values[at] = Range(masked, masked)
    return Range(0, min(each.high for each in values))


def _either(words: tuple[str, ...], sources: _Sources) -> Range | None:
    if not _plain(words, sources.bits):
        return None
    values = [number(sources.value(each, sources.bits), sources.bits, "u") for each in (0, 1)]
    return Range(0, (1 << max(each.high for each in values).bit_length()) - 1)


def _least(words: tuple[str, ...], sources: _Sources) -> Range | None:
    if not _plain(words, sources.bits):
        return None
    one, other = (number(sources.value(each, sources.bits), sources.bits, words[0][0]) for each in (0, 1))
    return Range(min(one.low, other.low), min(one.high, other.high))


def _greatest(words: tuple[str, ...], sources: _Sources) -> Range | None:
    if not _plain(words, sources.bits):
        return None
    one, other = (number(sources.value(each, sources.bits), sources.bits, words[0][0]) for each in (0, 1))
    return Range(max(one.low, other.low), max(one.high, other.high))


def _remainder(words: tuple[str, ...], sources: _Sources) -> Range | None:
    divisor = sources.constant(1)
    if not _plain(words, sources.bits) or not 0 < divisor < 1 << (sources.bits - 1):
        return None
    value = number(sources.value(0, sources.bits), sources.bits, words[0][0])
    low = max(value.low, 1 - divisor) if value.low < 0 else 0
    return Range(low, min(max(value.high, 0), divisor - 1))


def _chosen(words: tuple[str, ...], sources: _Sources) -> Range | None:
    if not _plain(words, sources.bits):
        return None
    one, other = (sources.value(each, sources.bits) for each in (0, 1))
    return Range(min(one.low, other.low), max(one.high, other.high))


def _converted(words: tuple[str, ...], sources: _Sources) -> Range | None:
    to, of = words if len(words) == 2 else ("", "")
    if to not in (f"s{sources.bits}", f"u{sources.bits}") or of not in ("s32", "u32", "s64", "u64"):
        return None
    bits = int(of[1:])
    value = sources.value(0, bits)
    return value if bits >= sources.bits else number(value, bits, of[0])


_RULES: Final[Mapping[tuple[str, int], _Rule]] = {
    ("mov", 1): _move,
    ("add", 2): _sum,
    ("sub", 2): _difference,
    ("mul", 2): _product,
    ("mad", 3): _multiplied_and_added,
    ("shl", 2): _shifted_left,
    ("shr", 2): _shifted_right,
    ("and", 2): _both,
    ("or", 2): _either,
    ("min", 2): _least,
    ("max", 2): _greatest,
    ("rem", 2): _remainder,
    ("selp", 3): _chosen,
    ("cvt", 1): _converted,
}
"""Ranges of results, by opcode and number of sources; None for an operation whose result may be any number."""
