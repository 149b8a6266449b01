"""Ranges of registers and greatest numbers of turns hold for whatever programs do; an interpreter is the oracle."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tensorwasm.ptx import parse
from tensorwasm.ptx.model import Directive, Function, Guard, Instruction, Int, Label, Name
from tensorwasm.ptx.templates import instruction
from tensorwasm.ptx.verifier.costs import sums
from tensorwasm.ptx.verifier.ranges import Range, signed, unsigned
from tensorwasm.ptx.verifier.turns import find_turns, most_turns
from tensorwasm.watch import UNLIMITED

BITS = 5
COMPARED = {
    "lt": lambda one, other: one < other,
    "le": lambda one, other: one <= other,
    "gt": lambda one, other: one > other,
    "ge": lambda one, other: one >= other,
    "ne": lambda one, other: one != other,
    "eq": lambda one, other: one == other,
}


def read(value, bits, kind):
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind == "s" and value >> (bits - 1) else value


def run_turns(compared, kind, first, step, limit):
    """Return the turns of a loop, None if it has no end."""
    for turn in range(1, (1 << BITS) + 2):
        if not COMPARED[compared](read(first, BITS, kind), read(limit, BITS, kind)):
            return turn
        first += step
    return None


@pytest.mark.parametrize(("compared", "kind"), [*product(COMPARED, "sub")])
def test_turns_are_never_more_than_the_greatest_number(compared, kind):
    rng, certain = random.Random(f"{compared}{kind}"), 0
    for _ in range(4000):
        first, limit = (Range(low, low + rng.choice((0, 0, 1, 5))) for low in (rng.randrange(-40, 40) for _ in "ab"))
        step = rng.choice((1, 1, 2, 3, 4, 7, 15, -1, -2, -3, -4, -8, -16))
        most = most_turns(compared, kind, BITS, first, step, limit)
        if most is None:
            continue
        certain += 1
        for begin in range(first.low, first.high + 1):
            for end in range(limit.low, limit.high + 1):
                turns = run_turns(compared, kind, begin, step, end)
                assert turns is not None
                assert turns <= most
    assert (certain > 300) == (compared != "eq" and (kind != "b" or compared == "ne"))


def test_a_greatest_number_of_turns_is_exact_for_known_numbers():
    assert most_turns("ne", "b", 32, Range(192, 192), 128, Range(2112, 2112)) == 16
    assert most_turns("lt", "s", 32, Range(0, 1215), 256, Range(256, 256)) == 2
    assert most_turns("gt", "s", 32, Range(15, 15), -1, Range(0, 0)) == 16
    assert most_turns("lt", "u", 32, Range(0, 0), 1, Range(100, 100)) == 101
    assert most_turns("lt", "s", 32, Range(0, 0), 1 << 30, Range((1 << 31) - 1, (1 << 31) - 1)) is None


# ------------------------------------------------------------------------------------------ programs at random

REGISTERS = [Name(f"%r{at}") for at in range(6)]
NUMBERS = (0, 1, 2, 3, 4, 7, 16, 31, 64, 100, 1023, -1, -4, -16, 4294967232, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
OPERATIONS = {
    "add.s32": lambda one, other: one + other,
    "sub.s32": lambda one, other: one - other,
    "mul.lo.s32": lambda one, other: one * other,
    "and.b32": lambda one, other: one & other,
    "or.b32": lambda one, other: one | other,
    "min.u32": lambda one, other: min(read(one, 32, "u"), read(other, 32, "u")),
    "max.s32": lambda one, other: max(read(one, 32, "s"), read(other, 32, "s")),
    "min.s32": lambda one, other: min(read(one, 32, "s"), read(other, 32, "s")),
    "max.u32": lambda one, other: max(read(one, 32, "u"), read(other, 32, "u")),
}
WITH_NUMBERS = {
    "shl.b32": (lambda one, count: one << count, range(32)),
    "shr.u32": (lambda one, count: read(one, 32, "u") >> count, range(32)),
    "shr.s32": (lambda one, count: read(one, 32, "s") >> count, range(32)),
    "rem.u32": (lambda one, other: read(one, 32, "u") % other, range(1, 40)),
    "rem.s32": (lambda one, other: remainder(read(one, 32, "s"), other), range(1, 40)),
}


def remainder(one, other):
    return abs(one) % other * (-1 if one < 0 else 1)


def draw(rng):
    """Return a statement of straight code."""
    target, one, other = (rng.choice(REGISTERS) for _ in range(3))
    if rng.random() < 0.3:
        one = target  # what a loop adds to in each turn
    when = Guard(Name("%p0"), rng.random() < 0.5) if rng.random() < 0.15 else None
    if rng.random() < 0.5:
        other = Int(rng.choice(NUMBERS))
    kind = rng.random()
    if kind < 0.3:
        source = rng.choice((Name("%tid", "x"), Name("%laneid"), Int(rng.choice(NUMBERS)), one))
        made = instruction("mov.u32", target, source)
    elif kind < 0.75:
        word = "add.s32" if one == target else rng.choice(list(OPERATIONS))
        made = instruction(word, target, one, other)
    elif kind < 0.95:
        word = rng.choice(list(WITH_NUMBERS))
        made = instruction(word, target, one, Int(rng.choice(WITH_NUMBERS[word][1])))
    else:
        made = instruction("setp.lt.u32", Name("%p0"), one, other)
    return Instruction(made.opcode, made.modifiers, made.operands, when)


def draw_loop(rng, labels, depth):
    """Return a loop, of the form that is proved or almost of it."""
    counter, head, predicate = rng.choice(REGISTERS), f"L{len(labels)}", Name(f"%p{1 + depth}")
    labels.append(head)
    step = rng.choice((1, 1, 2, 4, 16, 3, -1, -4))
    compared = rng.choice(("lt", "ne", "ne", "le", "gt", "ge"))
    limit = Int(rng.choice((4, 8, 16, 17, 64, 0, -8))) if rng.random() < 0.9 else rng.choice(REGISTERS)
    begin = instruction("mov.u32", counter, rng.choice((Int(rng.choice((0, 8, 64))), Name("%tid", "x"))))
    inner = [each for _ in range(rng.randrange(3)) for each in draw_part(rng, labels, depth + 1)]
    kept = [each for each in inner if not writes(each, counter)] if rng.random() < 0.8 else inner
    kind = rng.choice(("s32", "u32", "s32"))
    end = [
        instruction("add.s32", counter, counter, Int(step)),
        instruction(f"setp.{compared}.{kind}", predicate, counter, limit),
        Instruction("bra", (), (Name(head),), Guard(predicate, rng.random() < 0.2)),
    ]
    if rng.random() < 0.2:
        end[:2] = end[1::-1]
    if rng.random() < 0.15:  # a way in the middle, or out of it
        aim = rng.choice(labels)
        kept.append(Instruction("bra", (), (Name(aim),), Guard(Name("%p0"), rng.random() < 0.5)))
    before = [begin] if rng.random() < 0.9 else []
    behind = []
    if rng.random() < 0.3:  # a loop that is passed by
        behind = [Label(f"{head}_passed")]
        before = [
            instruction("and.b32", counter, rng.choice(REGISTERS), Int(rng.choice((1, 3, 7)))),
            instruction(f"setp.{rng.choice(('eq', 'eq', 'ne'))}.s32", Name("%p0"), counter, Int(rng.choice((0, 0, 3)))),
            *([draw(rng)] if rng.random() < 0.5 else []),
            Instruction("bra", (), (Name(behind[0].name),), Guard(Name("%p0"), rng.random() < 0.2)),
            *([draw(rng)] if rng.random() < 0.5 else []),
        ]
    return [*before, Label(head), *kept, *end, *behind]


def writes(statement, register):
    return isinstance(statement, Instruction) and statement.operands[:1] == (register,)


def draw_part(rng, labels, depth):
    return draw_loop(rng, labels, depth) if depth < 3 and rng.random() < 0.4 else [draw(rng)]


class Interpreter:
    """Runs a program, and holds every value that is read, and the turns of every loop, against what is proved."""

    def __init__(self, body, thread):
        self.body, self.thread = body, thread
        work = [0] * (len(body) + 1)
        function = Function(True, "k", directives=(Directive("maxntid", ("128", "1", "1")),))
        self.turns = find_turns(function, body, {}, work, UNLIMITED)
        self.values = {each.name: 0 for each in REGISTERS}
        self.predicates = {}
        self.labels = {each.name: at for at, each in enumerate(body) if isinstance(each, Label)}
        self.counts = {}

    def value(self, operand, at):
        if isinstance(operand, Int):
            return operand.value
        special = {"%tid": self.thread, "%laneid": self.thread % 32}
        value = special.get(operand.name, self.values.get(operand.name, 0))
        found = self.turns.ranges.at(operand, at, 32)
        assert (value - found.low) % (1 << 32) <= found.high - found.low, (at, operand)
        return value

    def run(self, steps):
        at = 0
        for _ in range(steps):
            if at >= len(self.body):
                return
            at = self.step(at)

    def step(self, at):
        each = self.body[at]
        if not isinstance(each, Instruction):
            return at + 1
        holds = each.guard is None or self.predicates.get(each.guard.predicate.name, False) != each.guard.negated
        if each.opcode == "bra":
            return self.branch(each, at, holds)
        values = [self.value(operand, at) for operand in each.operands[1:]]
        if holds:
            self.write(each, values)
        for branch, loop in self.turns.loops.items():
            if not loop.head <= at <= branch:
                self.counts[branch] = 1
        return at + 1

    def branch(self, each, at, holds):
        loop = self.turns.loops.get(at)
        if loop is not None and holds:
            self.counts[at] = self.counts.get(at, 1) + 1
            assert self.counts[at] <= loop.turns
        elif loop is not None:
            self.counts[at] = 1
        return self.labels[each.operands[0].name] if holds else at + 1

    def write(self, each, values):
        target, word = each.operands[0].name, ".".join((each.opcode, *each.modifiers))
        if each.opcode == "setp":
            compared, kind = each.modifiers
            self.predicates[target] = COMPARED[compared](*(read(one, 32, kind[0]) for one in values))
        elif each.opcode == "mov":
            self.values[target] = values[0] & 0xFFFFFFFF
        else:
            operate = OPERATIONS[word] if word in OPERATIONS else WITH_NUMBERS[word][0]
            self.values[target] = operate(*(one & 0xFFFFFFFF for one in values)) & 0xFFFFFFFF


@pytest.mark.parametrize("part", range(4))
def test_what_programs_do_is_what_is_proved_of_them(part):
    bounded = 0
    for seed in range(part * 400, part * 400 + 400):
        rng = random.Random(seed)
        body, labels = [], []
        for _ in range(rng.randrange(1, 8)):
            body += draw_part(rng, labels, 0)
        for thread in (0, 5, 127):
            oracle = Interpreter(body, thread)
            oracle.run(600)
            bounded += len(oracle.turns.loops)
    assert bounded > 150


# -------------------------------------------------------------------------------------------- forms of loops

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u32 n) .maxntid 128, 1, 1 {
.reg .pred %p<9>; .reg .b32 %r<30>; .reg .b64 %d<20>; .reg .b16 %h<5>;
ld.param.u32 %r9, [n]; mov.u32 %r8, %tid.x;
"""
BEGIN = "mov.u32 %r1, 0;"
END = "add.s32 %r1, %r1, 1; setp.ne.s32 %p1, %r1, 16; @%p1 bra L;"

DOWN = "add.s32 %r1, %r1, -1; setp.ne.s32 %p1, %r1, 0; @%p1 bra L;"


def loops_of(text):
    function = parse(f"{HEAD}{text}\nret;\n}}").entry("k")
    body = [each for each in function.body if isinstance(each, (Instruction, Label))]
    return find_turns(function, body, {}, sums(body, {}), UNLIMITED).loops.values()


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        (f"{BEGIN} L: {END}", 16),
        (f"{BEGIN} L: @%p2 bra OUT; {END} OUT:", 16),
        ("mov.u32 %r1, %r8; L: add.s32 %r2, %r1, 64; setp.lt.s32 %p1, %r1, 192; mov.u32 %r1, %r2; @%p1 bra L;", 4),
        ("mov.u32 %r1, 9; L: sub.s32 %r1, %r1, 1; setp.eq.s32 %p1, %r1, 0; @!%p1 bra L;", 9),
        (
            f"and.b32 %r1, %r9, 3; setp.eq.s32 %p2, %r1, 0; @%p2 bra OUT; L: {DOWN} OUT:",
            3,
        ),
        ("mov.u64 %d1, 0; L: add.s64 %d1, %d1, 4; setp.lt.u64 %p1, %d1, 64; @%p1 bra L;", 16),
        ("mov.u32 %r1, 8; L: add.u32 %r1, %r1, 4294967295; setp.gt.s32 %p1, %r1, 0; @%p1 bra L;", 8),
    ],
)
def test_a_loop_of_known_begin_step_and_end_has_its_turns(text, turns):
    assert [loop.turns for loop in loops_of(text)] == [turns]


@pytest.mark.parametrize(
    "text",
    [
        f"mov.u32 %r1, %r9; L: {END}",
        *(
            f"and.b32 %r1, %r9, 3; {before} L: {DOWN} OUT:"
            for before in (
                "setp.ne.s32 %p2, %r1, 0; @%p2 bra OUT;",
                "setp.eq.s32 %p2, %r1, 0; @!%p2 bra OUT;",
                "setp.eq.s32 %p2, %r1, 1; @%p2 bra OUT;",
                "setp.eq.s32 %p2, %r1, 0; @%p2 bra OUT; M: @%p3 bra M;",
                "setp.eq.s32 %p2, %r1, 0; setp.eq.s32 %p2, %r9, 0; @%p2 bra OUT;",
                "setp.eq.s32 %p2, %r1, 0; @%p2 bra OUT; and.b32 %r1, %r8, 3;",
                "setp.eq.s32 %p2, %r1, 0; and.b32 %r1, %r8, 3; @%p2 bra OUT;",
                "@%p4 setp.eq.s32 %p2, %r1, 0; @%p2 bra OUT;",
                "setp.eq.f32 %p2, %r1, 0; @%p2 bra OUT;",
                "M: setp.eq.s32 %p2, %r1, 0; @%p2 bra M;",
            )
        ),
        f"bra M; {BEGIN} L: M: {END}",
        f"@%p2 bra M; {BEGIN} L: mov.u32 %r3, 1; M: {END}",
        f"{BEGIN} L: @%p2 mov.u32 %r1, 0; {END}",
        f"{BEGIN} L: @%p2 bra L; {END}",
        f"{BEGIN} L: mov.u32 %r1, %r8; {END}",
        f"{BEGIN} A: L: {END} setp.lt.u32 %p3, %r9, 7; @%p3 bra A;",
        f"{BEGIN} L: {END.replace('add.s32', '@%p2 add.s32')}",
        f"{BEGIN} L: {END.replace('add.s32', 'add.sat.s32')}",
        f"{BEGIN} L: {END.replace('%r1, 1;', '%r1, 3;')}",
        f"{BEGIN} L: {END.replace('%r1, 1;', '%r1, %r8;')}",
        f"{BEGIN} L: {END.replace('ne.s32', 'lt.s32').replace('16', '2147483647').replace('%r1, 1;', '%r1, 2;')}",
        f"{BEGIN} L: {END.replace('ne.s32', 'gt.s32').replace('16', '-1')}",
        f"{BEGIN} L: {END.replace('ne.s32', 'ne.f32')}",
        f"{BEGIN} L: {END.replace('ne.s32', 'ne.or.s32').replace('16;', '16, %p4;')}",
        f"{BEGIN} L: {END.replace('@%p1', 'setp.eq.s32 %p1, 0, 0; @%p1')}",
        f"{BEGIN} L: {END.replace('@%p1', '@%p2 setp.eq.s32 %p1, 0, 0; @%p1')}",
        f"{BEGIN} L: {END.replace('setp', '@%p2 setp')}",
        f"{BEGIN} L: {END.replace('@%p1', '@!%p1')}",
        f"{BEGIN} mov.u32 %r2, 16; L: add.s32 %r2, %r2, 1; {END.replace('ne.s32', 'lt.s32').replace('16', '%r2')}",
    ],
)
def test_a_loop_that_may_have_more_turns_has_no_greatest_number(text):
    assert not loops_of(text)


def test_all_turns_of_nested_loops_together_are_bounded():
    loop = f"{BEGIN} L: {END}".replace("16", "250")
    outer = "mov.u32 %r2, 0; A: {} add.s32 %r2, %r2, 1; setp.lt.s32 %p2, %r2, {}; @%p2 bra A;"
    assert sorted(each.turns for each in loops_of(outer.format(loop, 5))) == [5, 250]
    assert sorted(each.turns for each in loops_of(outer.format(loop, 500))) == [250]


@pytest.mark.parametrize(
    ("directives", "most"),
    [([], 1023), (["128"], 127), (["8", "4", "2"], 63), (["0"], 1023), (["64", "0"], 1023), (["4096"], 1023)],
)
def test_threads_of_a_block_are_at_most_those_that_are_declared(directives, most):
    given = (Directive("maxntid", tuple(directives)),) if directives else ()
    for entry in (True, False):
        made = find_turns(Function(entry, "k", directives=given), [], {}, [0], UNLIMITED)
        assert made.ranges.at(Name("%tid", "x"), 0, 32) == (0, most if entry else 1023)


def test_code_that_no_way_leads_to_has_no_ranges():
    assert not loops_of(f"bra OUT; mov.u32 %r2, %r1; L: {END} OUT:")


def test_the_widest_ranges_are_those_of_all_numbers():
    assert (signed(8), unsigned(8)) == ((-128, 127), (0, 255))
