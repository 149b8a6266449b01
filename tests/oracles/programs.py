"""Runs the programs of `strategies.programs` one thread after the other, in plain Python."""

from __future__ import annotations

import operator
from contextlib import suppress

from strategies.programs import THREAD, Branch, Call, Compute, Guarded, Leave, Loop, mix

_OPERATIONS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "xor": operator.xor, "and": operator.and_}
_COMPARISONS = {"lt": operator.lt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne}


class _Left(Exception):
    pass


def run(program, thread):
    """Return the four registers of a thread after a program."""
    registers = [1, thread, 3, thread * 2654435761 % 2**32, thread]
    with suppress(_Left):
        _run(program, registers)
    return registers[:THREAD]


def _run(body, registers):
    for one in body:
        match one:
            case Compute():
                right = registers[one.right] if one.right >= 0 else -one.right
                registers[one.target] = _OPERATIONS[one.operation](registers[one.left], right) % 2**32
            case Guarded():
                if _COMPARISONS[one.comparison](registers[one.left], one.bound):
                    _run((one.compute,), registers)
            case Branch():
                holds = _COMPARISONS[one.comparison](registers[one.left], one.bound)
                _run(one.then if holds else one.otherwise, registers)
            case Loop():
                for _ in range(registers[one.register] & one.mask):
                    _run(one.body, registers)
            case Leave():
                if registers[one.register] & 7 == one.bits:
                    raise _Left
            case Call():
                registers[one.register] = mix(registers[one.register])
