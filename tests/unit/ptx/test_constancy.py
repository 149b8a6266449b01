"""Which kernels may change variables of their modules, and which only look something up there."""

from __future__ import annotations

import pytest

from tensorwasm.errors import InvokeTimeout
from tensorwasm.ptx import may_write, parse
from tensorwasm.values import Deadline

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
REGISTERS = ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>;"
TABLE = ".global .align 4 .u32 table[4] = {1, 2, 3, 4};\n.const .align 4 .u32 fixed[2] = {5, 6};\n"


def module(body, before=TABLE, more=""):
    text = f"{HEAD}{before}.visible .entry k(.param .u64 out)\n{{\n{REGISTERS}\n{body}\nret;\n}}\n{more}"
    return parse(text)


LOOKED_UP = {
    "nothing": "",
    "by name": "ld.global.u32 %r1, [table+4];",
    "by index": "mov.u64 %d1, table; mad.wide.u32 %d2, %r1, 4, %d1; ld.global.nc.u32 %r2, [%d2];",
    "generic": "mov.u64 %d1, table; cvta.global.u64 %d2, %d1; add.u64 %d3, %d2, 8; ld.u32 %r1, [%d3];",
    "backwards": "bra B; A: ld.global.u32 %r1, [%d2]; ret; B: add.u64 %d2, %d1, 4; mov.u64 %d1, table; bra A;",
    "one of two": "mov.u64 %d1, table; mov.u64 %d2, fixed; selp.b64 %d3, %d1, %d2, %p1; ld.u32 %r1, [%d3];",
    "what is found there is stored": "ld.global.u32 %r1, [table]; ld.param.u64 %d1, [out]; st.global.u32 [%d1], %r1;",
    "its end is looked at": "mov.u64 %d1, table; setp.lt.u64 %p1, %d1, %d2; @%p1 bra X; X: ld.global.u32 %r1, [%d1];",
    "constants anywhere": "mov.u64 %d1, fixed; ld.param.u64 %d2, [out]; st.global.u64 [%d2], %d1;",
}
WRITTEN = {
    "by name": "st.global.u32 [table], 1;",
    "by index": "mov.u64 %d1, table; mad.wide.u32 %d2, %r1, 4, %d1; st.global.u32 [%d2], 1;",
    "atomically": "atom.global.add.u32 %r1, [table], 1;",
    "by a reduction": "mov.u64 %d1, table+4; red.global.add.u32 [%d1], 1;",
    "backwards": "bra B; A: st.global.u32 [%d2], 1; ret; B: add.u64 %d2, %d1, 4; mov.u64 %d1, table; bra A;",
    "in halves": "mov.u64 %d1, table; mov.b64 {%r1, %r2}, %d1; mov.b64 %d2, {%r1, %r2}; st.u32 [%d2], 1;",
    "in disguise": "mov.u64 %d1, table; xor.b64 %d2, %d1, 77; sub.u64 %d3, 0, %d2; st.u32 [%d3], 1;",
    "the address gets out": "mov.u64 %d1, table; ld.param.u64 %d2, [out]; st.global.u64 [%d2], %d1;",
    "the address is exchanged": "mov.u64 %d1, table; ld.param.u64 %d2, [out]; atom.global.exch.b64 %d3, [%d2], %d1;",
    "the address is shuffled": "mov.u64 %d1, table; cvt.u32.u64 %r1, %d1; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;",
    "a copy goes there": "mov.u64 %d1, table; cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 16;",
    "a variable of its own": ".global .u32 own; ld.global.u32 %r1, [own]; st.global.u32 [own], %r1;",
    "in a block": "{ .reg .b64 %x; mov.u64 %x, table; st.global.u32 [%x], 1; }",
    "by another name in a block": "{ .reg .b64 %x; mov.u64 %x, table; mov.u64 %d5, %x; } st.global.u32 [%d5], 1;",
}


@pytest.mark.parametrize("body", LOOKED_UP.values(), ids=LOOKED_UP.keys())
def test_what_is_only_looked_up(body):
    assert not may_write(module(body), "k")


@pytest.mark.parametrize("body", WRITTEN.values(), ids=WRITTEN.keys())
def test_what_may_be_written(body):
    assert may_write(module(body), "k")


def test_a_function_that_is_called_may_write_too():
    before = f"{TABLE}.func helper(.reg .u32 %a)\n{{\n st.global.u32 [table], %a;\n ret;\n}}\n"
    assert may_write(module("call helper, (%r1);", before), "k")
    assert not may_write(module("", before), "k")


def test_an_address_that_is_handed_on_may_be_written_through():
    before = f"{TABLE}.func helper(.reg .u64 %a)\n{{\n .reg .u32 %r1; ld.u32 %r1, [%a];\n ret;\n}}\n"
    assert may_write(module("mov.u64 %d1, table; call helper, (%d1);", before), "k")


def test_an_address_that_lies_in_another_variable_may_be_written_through():
    before = f"{TABLE}.global .align 8 .u64 place = table;\n"
    assert may_write(module("ld.global.u64 %d1, [place]; st.global.u32 [%d1], 1;", before), "k")
    constant = f"{TABLE}.const .align 8 .u64 place = generic(table);\n"
    assert may_write(module("ld.const.u64 %d1, [place]; st.u32 [%d1], 1;", constant), "k")


def test_each_kernel_is_judged_for_itself():
    other = f".visible .entry other()\n{{\n{REGISTERS}\nst.global.u32 [table], 1;\nret;\n}}\n"
    found = module("ld.global.u32 %r1, [table];", more=other)
    assert not may_write(found, "k")
    assert may_write(found, "other")
    assert not may_write(found, "no such kernel")


def test_a_chain_is_followed_to_its_end_in_time():
    steps = "".join(f"mov.u64 %d{index + 1}, %d{index};\n" for index in range(3000))
    text = f".reg .b64 %d<3002>;\n{steps}mov.u64 %d0, table;\nst.u32 [%d3000], 1;"
    found = parse(f"{HEAD}{TABLE}.visible .entry k()\n{{\n{text}\nret;\n}}\n")
    assert may_write(found, "k")
    with pytest.raises(InvokeTimeout):
        may_write(found, "k", Deadline.after(0))
