"""Judges of what is done with PTX."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable
from ctypes import c_int64, c_uint64
from pathlib import Path

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx import extract, parse, render, signature
from tensorwasm.ptx.model import Module

SECONDS_A_MEGABYTE = 20.0
"""How much processor time any text may take: several times what the slowest is known to need."""


def check_round_trip(module: Module) -> str:
    """Check that the text of a module says what the module says, and return it."""
    text = render(module)
    assert text.isascii()
    again = parse(text)
    assert again == module
    assert render(again) == text
    return text


def check_any_text(text: str | bytes) -> Module | None:
    """Check that a text is either understood or refused in the way that is promised; return what it means."""
    start = time.process_time()
    try:
        module = parse(text)
    except MalformedPtx:
        module = None
    else:
        if all(function.refusal is None for function in module.functions()):
            check_round_trip(module)
        for function in module.functions():
            if function.entry and function.body is not None:
                check_kernel(module, function.name)
    took = time.process_time() - start
    assert took < 1 + SECONDS_A_MEGABYTE * len(text) / 1e6, f"{took:.1f} s for {len(text)} bytes"
    return module


def check_kernel(module: Module, entry: str) -> None:
    """Check that a kernel is refused by itself, or can be taken out of its module and means there what it meant."""
    try:
        alone = extract(module, entry)
    except UnsupportedPtx:
        return
    check_round_trip(alone)
    assert signature(alone, entry) == signature(module, entry)


def assemble(text: str, folder: Path) -> str | None:
    """Return what ptxas has against a text, empty if nothing; None if there is no ptxas."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return None
    module = parse(text)
    source = folder / "module.ptx"
    source.write_text(text, "ascii")
    debug = ["-g"] if "debug" in module.target else []
    command = [ptxas, f"-arch={module.target[0]}", *debug, "-c", "-o", str(folder / "module.cubin"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr or f"exit status {done.returncode}" if done.returncode else ""


# ----------------------------------------------------------------------------------------- constant expressions

_PRECEDENCE = [
    ["*", "/", "%"],
    ["+", "-"],
    ["<<", ">>"],
    ["<", ">", "<=", ">="],
    ["==", "!="],
    ["&"],
    ["^"],
    ["|"],
    ["&&"],
    ["||"],
]
_LEVEL = {symbol: 10 - index for index, symbols in enumerate(_PRECEDENCE) for symbol in symbols}

Typed = c_int64 | c_uint64


def spell(tree: int | tuple, outer: int = 0) -> str:
    """Return an expression with no more parentheses than C needs."""
    if isinstance(tree, int):
        return str(tree)
    symbol, *operands = tree
    if symbol == "?":
        first, second, third = (spell(operand, 1) for operand in operands)
        text, level = f"{first} ? {second} : {third}", 0
    elif len(operands) == 1:
        sign = f"(.{symbol})" if symbol in {"s64", "u64"} else symbol
        text, level = f"{sign} {spell(operands[0], 11)}", 11
    else:
        level = _LEVEL[symbol]
        text = f"{spell(operands[0], level)} {symbol} {spell(operands[1], level + 1)}"
    return f"({text})" if level < outer else text


def evaluate(tree: int | tuple) -> Typed:
    """Return the value of an expression by the ISA's table of types, in C's own 64-bit integers.

    Raises:
        ZeroDivisionError: something is divided by zero.
    """
    if isinstance(tree, int):
        return c_int64(tree) if tree < 1 << 63 else c_uint64(tree)
    symbol, *operands = tree
    if symbol == "-" and operands == [1 << 63]:
        return c_int64(-(1 << 63))
    values = [evaluate(operand) for operand in operands]
    if symbol == "?":
        return values[1] if values[0].value else values[2]
    return _evaluate_one(symbol, values[0]) if len(values) == 1 else _evaluate_two(symbol, *values)


def _evaluate_one(symbol: str, operand: Typed) -> Typed:
    kind = type(operand)
    table = {
        "s64": c_int64,
        "u64": c_uint64,
        "-": lambda value: kind(-value),
        "+": kind,
        "~": lambda value: c_uint64(~value),
        "!": lambda value: c_int64(value == 0),
    }
    return table[symbol](operand.value)


def _evaluate_two(symbol: str, left: Typed, right: Typed) -> Typed:
    kind = c_uint64 if c_uint64 in {type(left), type(right)} else c_int64
    a, b = kind(left.value).value, kind(right.value).value
    if symbol in {"<<", ">>"}:
        places = min(c_uint64(right.value).value, 64)
        return type(left)(left.value << places if symbol == "<<" else left.value >> places)
    if symbol in {"/", "%"}:
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return kind(quotient if symbol == "/" else a - b * quotient)
    if symbol in {"+", "-", "*"}:
        return kind({"+": a + b, "-": a - b, "*": a * b}[symbol])
    if symbol in {"&", "|", "^"}:
        return c_uint64({"&": a & b, "|": a | b, "^": a ^ b}[symbol])
    truths = {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b, "==": a == b, "!=": a != b}
    return c_int64(truths.get(symbol, bool(a and b) if symbol == "&&" else bool(a or b)))


# ------------------------------------------------------------------------------------------------------- graphs


def reach_slowly(edges: Iterable[tuple[int, int]], seeds: dict[int, int], nodes: int) -> list[int]:
    """Return what reaches each node, by going over all edges until nothing changes."""
    masks = [seeds.get(node, 0) for node in range(nodes)]
    pairs = list(edges)
    changed = True
    while changed:
        changed = False
        for source, target in pairs:
            if masks[source] & ~masks[target]:
                masks[target] |= masks[source]
                changed = True
    return masks
