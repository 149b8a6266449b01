"""Random structured programs on four 32-bit registers, and their PTX.

A program is a tuple of statements. Registers are 0 to 3; ``THREAD`` reads the thread's number in the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

REGISTERS = 4
THREAD = REGISTERS
OPERATIONS = {"add": "add.u32", "sub": "sub.u32", "mul": "mul.lo.u32", "xor": "xor.b32", "and": "and.b32"}
COMPARISONS = ("lt", "ge", "eq", "ne")


@dataclass(frozen=True)
class Compute:
    """``target = left <operation> right``; right is a register or, negative, the constant ``-right``."""

    operation: str
    target: int
    left: int
    right: int


@dataclass(frozen=True)
class Branch:
    """Run one of two bodies."""

    comparison: str
    left: int
    bound: int
    then: tuple
    otherwise: tuple


@dataclass(frozen=True)
class Loop:
    """Run a body as often as the low bits of a register say."""

    register: int
    mask: int
    body: tuple


@dataclass(frozen=True)
class Guarded:
    """Compute, in the lanes where a comparison holds, by a guard."""

    comparison: str
    left: int
    bound: int
    compute: Compute


@dataclass(frozen=True)
class Leave:
    """Exit, in the lanes whose register has these low bits, with the registers as they are."""

    register: int
    bits: int


@dataclass(frozen=True)
class Call:
    """Run a function of the program on a register; the result replaces it."""

    register: int


_register = st.integers(0, REGISTERS - 1)
_source = st.integers(0, REGISTERS)
_computes = st.builds(
    Compute, st.sampled_from(sorted(OPERATIONS)), _register, _source, st.one_of(_source, st.integers(-9, -1))
)
_comparison = st.sampled_from(COMPARISONS)
_bound = st.integers(0, 40)


def _statements(depth):
    leaves = [
        _computes,
        st.builds(Guarded, _comparison, _source, _bound, _computes),
        st.builds(Leave, _source, st.integers(0, 7)),
        st.builds(Call, _register),
    ]
    if depth:
        inner = st.lists(_statements(depth - 1), max_size=4).map(tuple)
        leaves += [
            st.builds(Branch, _comparison, _source, _bound, inner, inner),
            st.builds(Loop, _source, st.sampled_from((1, 3, 7)), inner),
        ]
    return st.one_of(leaves)


def programs():
    """Draw programs, up to three bodies deep."""
    return st.lists(_statements(3), min_size=1, max_size=6).map(tuple)


class _Writer:
    def __init__(self):
        self.lines, self.labels = [], 0

    def label(self):
        self.labels += 1
        return f"L{self.labels}"

    def condition(self, comparison, left, bound):
        self.lines.append(f"setp.{comparison}.u32 %p0, {name(left)}, {bound};")

    def write(self, body):
        for statement in body:
            getattr(self, f"write_{type(statement).__name__.lower()}")(statement)

    def write_compute(self, one, guard=""):
        right = name(one.right) if one.right >= 0 else str(-one.right)
        self.lines.append(f"{guard}{OPERATIONS[one.operation]} {name(one.target)}, {name(one.left)}, {right};")

    def write_guarded(self, one):
        self.condition(one.comparison, one.left, one.bound)
        self.write_compute(one.compute, "@%p0 ")

    def write_leave(self, one):
        self.lines += [f"and.b32 %t, {name(one.register)}, 7;", f"setp.eq.u32 %p0, %t, {one.bits};", "@%p0 bra out;"]

    def write_branch(self, one):
        otherwise, end = self.label(), self.label()
        self.condition(one.comparison, one.left, one.bound)
        self.lines.append(f"@!%p0 bra {otherwise};")
        self.write(one.then)
        self.lines += [f"bra {end};", f"{otherwise}:"]
        self.write(one.otherwise)
        self.lines.append(f"{end}:")

    def write_loop(self, one):
        count, again, end = f"%c{self.labels}", self.label(), self.label()
        self.lines += [f".reg .b32 {count};", f"and.b32 {count}, {name(one.register)}, {one.mask};", f"{again}:"]
        self.lines += [f"setp.eq.u32 %p0, {count}, 0;", f"@%p0 bra {end};"]
        self.write(one.body)
        self.lines += [f"sub.u32 {count}, {count}, 1;", f"bra {again};", f"{end}:"]

    def write_call(self, one):
        self.lines.append(f"call.uni ({name(one.register)}), mix, ({name(one.register)});")


def name(register):
    """Return the PTX name of a register."""
    return "%thread" if register == THREAD else f"%x{register}"


MIX = """
.func (.reg .b32 %result) mix(.reg .b32 %value)
{
    .reg .pred %p; .reg .b32 %half, %rest;
    setp.lt.u32 %p, %value, 2;
    @%p bra small;
    shr.u32 %half, %value, 16;
    call (%rest), mix, (%half);
    xor.b32 %result, %value, %rest;
    add.u32 %result, %result, 77;
    ret;
small:
    mov.u32 %result, 5;
    ret;
}
"""


def mix(value):
    """Return what the function of the programs computes."""
    return 5 if value < 2 else ((value ^ mix(value >> 16)) + 77) % 2**32


def render(program):
    """Return the PTX of a program, an entry ``k`` that stores four registers for each thread at its parameter."""
    writer = _Writer()
    writer.write(program)
    body = "\n".join(writer.lines)
    return f"""
.version 8.0
.target sm_80
.address_size 64
{MIX}
.visible .entry k(.param .u64 p0)
{{
    .reg .b32 %x<{REGISTERS}>, %thread, %t, %n; .reg .b64 %at; .reg .pred %p0;
    mov.u32 %t, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %thread, %tid.x; mad.lo.u32 %thread, %t, %n, %thread;
    mov.u32 %x0, 1; mov.u32 %x1, %thread; mov.u32 %x2, 3; mul.lo.u32 %x3, %thread, 2654435761;
    {body}
out:
    ld.param.u64 %at, [p0];
    mad.wide.u32 %at, %thread, 16, %at;
    st.global.v4.b32 [%at], {{%x0, %x1, %x2, %x3}};
    ret;
}}
"""
