"""Which registers hold multiples of a power of two, whatever a kernel does.

The analysis ignores the order of statements: a register is as aligned as the least aligned value that any instruction
gives it. All registers begin as 0. Only operations that compilers use for addresses are followed.

Source: PTX ISA 9.7.1 (Integer Arithmetic), 9.7.8 (Logic and Shift), 9.7.9 (Data Movement and Conversion).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tensorwasm.ptx.model import Address, Instruction, Int, Name, Operand, Pair, Statement, Vector, names
from tensorwasm.ptx.symbols import SPECIALS
from tensorwasm.watch import Watch

MAX_ALIGN_BITS: Final = 4
_PLAIN_WORDS: Final = frozenset({"lo", "wide", *(f"{kind}{bits}" for kind in "bus" for bits in (32, 64))})
"""Modifiers with which an operation is plain arithmetic of 32 or 64 bits, without saturation."""
_Facts = Callable[[Operand], int]


def aligned_registers(body: Iterable[Statement], params: Mapping[str, int], watch: Watch) -> dict[str, int]:
    """Return the bytes, from 1 to 16, that each register's values are multiples of; one that is not named is never set.

    Args:
        body: of a function, without scopes.
        params: bytes that parameters of 8 bytes are multiples of, by name.
        watch: of the deadline.
    """
    instructions = [each for each in body if isinstance(each, Instruction) and each.operands]
    facts: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for at, each in enumerate(watch.over(instructions)):
        for operand in each.operands[1:]:
            for name in names(operand):
                readers.setdefault(name, []).append(at)

    def known(operand: Operand) -> int:
        if isinstance(operand, Int):
            return _zeros(operand.value)
        if isinstance(operand, Name) and operand.component is None and operand.name not in SPECIALS:
            return facts.get(operand.name, MAX_ALIGN_BITS)
        return 0

    waiting = list(range(len(instructions)))[::-1]
    while waiting:
        watch.step()
        instruction = instructions[waiting.pop()]
        for target, bits in _results(instruction, known, params):
            if bits < facts.get(target, MAX_ALIGN_BITS):
                facts[target] = bits
                waiting += readers.get(target, ())
            facts.setdefault(target, bits)
    return {name: 1 << bits for name, bits in facts.items()}


def _zeros(value: int) -> int:
    return min((value & -value).bit_length() - 1, MAX_ALIGN_BITS) if value else MAX_ALIGN_BITS


def _results(instruction: Instruction, known: _Facts, params: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return what an instruction writes, with the low bits of each that are certainly 0."""
    target = instruction.operands[0]
    if instruction.opcode == "call":
        return [(name, 0) for operand in instruction.operands for name in names(operand)]
    if isinstance(target, Vector) and instruction.opcode == "mov" and len(instruction.operands) == 2:
        low, *others = target.elements
        bits = known(instruction.operands[1]) if instruction.modifiers == ("b64",) and len(others) == 1 else 0
        made = [(name, bits) for name in names(low)]
        return made + [(name, 0) for other in others for name in names(other)]
    if not isinstance(target, Name):
        return [(name, 0) for name in names(target)] if isinstance(target, (Vector, Pair)) else []
    return [(target.name, _value(instruction, known, params))]


def _value(instruction: Instruction, known: _Facts, params: Mapping[str, int]) -> int:
    opcode, words, operands = instruction.opcode, instruction.modifiers, instruction.operands[1:]
    if opcode == "ld" and words[:1] == ("param",) and isinstance(operands[0], Address):
        base = operands[0].base
        whole = isinstance(base, Name) and not operands[0].offset and words[-1] in ("u64", "b64", "s64")
        return _zeros(params.get(base.name, 1)) if whole and isinstance(base, Name) else 0
    rule = _RULES.get((opcode, len(operands)))
    if rule is None or not _PLAIN_WORDS.issuperset(words):
        return 0
    return max(0, min(rule(words, list(operands), known), MAX_ALIGN_BITS))


def _moved(words: tuple[str, ...], operands: list[Operand], known: _Facts) -> int:
    source = operands[0]
    if isinstance(source, Vector):
        return known(source.elements[0]) if len(source.elements) == 2 and words == ("b64",) else 0
    return known(source)


def _least(_words: tuple[str, ...], operands: list[Operand], known: _Facts) -> int:
    return min(map(known, operands))


def _product(_words: tuple[str, ...], operands: list[Operand], known: _Facts) -> int:
    return known(operands[0]) + known(operands[1])


def _multiplied_and_added(words: tuple[str, ...], operands: list[Operand], known: _Facts) -> int:
    return min(_product(words, operands, known), known(operands[2]))


def _shifted(_words: tuple[str, ...], operands: list[Operand], known: _Facts) -> int:
    count = operands[1].value if isinstance(operands[1], Int) else 0
    return known(operands[0]) + min(max(count, 0), MAX_ALIGN_BITS)


_RULES: Final[Mapping[tuple[str, int], Callable[[tuple[str, ...], list[Operand], _Facts], int]]] = {
    ("mov", 1): _moved,
    ("cvt", 1): _moved,
    ("add", 2): _least,
    ("sub", 2): _least,
    ("min", 2): _least,
    ("or", 2): _least,
    ("xor", 2): _least,
    ("and", 2): lambda _words, operands, known: max(map(known, operands)),
    ("selp", 3): lambda _words, operands, known: min(map(known, operands[:2])),
    ("mul", 2): _product,
    ("mad", 3): _multiplied_and_added,
    ("shl", 2): _shifted,
}
"""What is certainly 0 at the end of an instruction's result, by opcode and number of sources."""
