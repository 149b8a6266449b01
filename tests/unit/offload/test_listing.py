"""The listing of a program: what people read of a parallel order."""

import contextlib
import re

from hypothesis import given
from hypothesis import strategies as st

from strategies.nests import MEMORY_BYTES, random_nest
from tensorwasm.offload.declined import Declined
from tensorwasm.offload.listing import list_program
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Constant,
    Input,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
)
from tensorwasm.offload.scheduling.plan import plan


def test_a_sum_of_each_row_is_listed():
    total = Cell(0, "f64", (0,))
    element = Load("f64.load", Affine(0, ((0, 64), (1, 8))), 16)
    zero = Statement(0, ALWAYS, (SetCell(total, Constant("f64", 0)),))
    add = Statement(1, ALWAYS, (element, SetCell(total, Operation("f64", "f64.add", (Carried(total), element)))))
    scaled = Operation("f64", "f64.mul", (Carried(total), Input("f64", 3)))
    keep = Statement(2, ALWAYS, (Store("f64.store", Affine(1024, ((0, 8),)), 0, scaled),))
    nest = Nest((Loop(0, Affine(8), (zero, Loop(1, Affine(6), (add,)), keep)),))
    assert list_program(plan(nest, 65536)) == [
        "A0: bytes 0x10 to 0x1ff, read",
        "A1: bytes 0x400 to 0x43f, filled",
        "x0: f64, a register of a thread",
        "kernel 0:",
        "  parallel p0 = 0 to 7",
        "    S0(p0)",
        "    for c1 = 0 to 5",
        "      S1(p0, c1)",
        "    S2(p0)",
        "S0(c0):",
        "  x0 = 0.0",
        "S1(c0, c1):",
        "  x0 = (x0 + f64 A0[64*c0 + 8*c1])",
        "S2(c0):",
        "  f64 A1[8*c0] = (x0 * local3)",
    ]


@given(st.integers(0, 1 << 32))
def test_all_statements_that_run_are_listed(seed):
    nest = random_nest(seed)
    with contextlib.suppress(Declined):
        text = "\n".join(list_program(plan(nest, MEMORY_BYTES)))
        run = set(re.findall(r"^ .*?\b(S\d+)\(", text, re.MULTILINE))
        assert run == set(re.findall(r"^(S\d+)\(", text, re.MULTILINE))
