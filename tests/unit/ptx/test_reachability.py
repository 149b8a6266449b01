"""What a kernel reaches in its module, and which variables it may write there."""

from __future__ import annotations

import pytest

from oracles.ptx import check_kernel
from strategies.ptx import CORPUS
from tensorwasm.errors import InvalidKernel, InvokeTimeout, MalformedPtx, UnsupportedPtx
from tensorwasm.ptx import extract, may_write, parse, render, signature
from tensorwasm.ptx.model import Function
from tensorwasm.values import Deadline

HEADER = ".version 8.8\n.target sm_80\n.address_size 64\n"
UNKNOWN = ".shared .b32 array[4]; mov.u32 r, array[r];"

MODULE = parse(
    HEADER
    + """
.global .b32 used = 1;
.global .b32 unused[1000];
.extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 values);
.func helper() { .reg .b64 a; mov.b64 a, used; ret; }
.func other() { ret; }
.entry plain() { ret; }
.entry caller() { call helper; ret; }
.entry pointing() { .reg .b64 a; mov.b64 a, other; ret; }
"""
)


def names(module):
    return [item.name for item in module.items]


@pytest.mark.parametrize(
    ("entry", "kept"),
    [("plain", ["plain"]), ("caller", ["used", "helper", "caller"]), ("pointing", ["other", "pointing"])],
)
def test_extract_keeps_what_the_kernel_reaches_and_nothing_else(entry, kept):
    assert names(extract(MODULE, entry)) == kept


def test_an_alias_is_kept_with_its_function_and_its_declaration():
    text = CORPUS["syntax.ptx"]
    for function in parse(text).functions():
        if function.entry:
            check_kernel(parse(text), function.name)
    module = parse(
        HEADER + ".func f() { ret; } .func g(); .alias g, f; .entry k() { call g; ret; } .entry l() { ret; }"
    )
    assert names(extract(module, "k")) == ["f", "g", "alias", "k"]
    assert names(extract(module, "l")) == ["l"]


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_an_extracted_kernel_keeps_its_signature(name):
    module = parse(CORPUS[name])
    for function in module.functions():
        if function.entry and function.body is not None:
            check_kernel(module, function.name)


def test_an_unknown_kernel_is_refused_with_the_names_of_known_ones():
    with pytest.raises(InvalidKernel, match="no kernel 'none'; the module has 'plain', 'caller', 'pointing'"):
        extract(MODULE, "none")


@pytest.fixture
def partly():
    """One kernel that is not understood, one that calls a function that is not, and one that needs neither."""
    return parse(
        HEADER
        + f""".func odd() {{ .reg .b32 r; {{ {UNKNOWN} }} ret; }}
.entry strange()
{{
    .reg .b32 r;
    {UNKNOWN}
    ret;
}}
.entry through() {{ call odd; ret; }}
.entry plain() {{ ret; }}
"""
    )


@pytest.mark.parametrize(("entry", "line", "reason"), [("strange", 8, "strange: "), ("through", 4, "odd: ")])
def test_an_unsupported_construct_refuses_the_kernels_that_reach_it_with_its_line(partly, entry, line, reason):
    with pytest.raises(UnsupportedPtx, match=reason) as caught:
        extract(partly, entry)
    assert caught.value.line == line
    assert "plain" not in caught.value.message


def test_other_kernels_are_printed_without_the_unsupported_function(partly):
    alone = extract(partly, "plain")
    assert names(alone) == ["plain"]
    assert parse(render(alone)) == alone
    assert signature(partly, "plain") == signature(alone, "plain")
    with pytest.raises(UnsupportedPtx):
        render(partly)


def test_a_refused_function_still_declares_its_name_and_has_an_end():
    with pytest.raises(MalformedPtx, match="defined twice"):
        parse(HEADER + f".entry k() {{ .reg .b32 r; {UNKNOWN} }} .entry k() {{ ret; }}")
    with pytest.raises(MalformedPtx, match="ends too early"):
        parse(HEADER + f".entry k() {{ {UNKNOWN}")
    module = parse(HEADER + f".entry k() .maxntid 1 {{ .reg .b32 r; {UNKNOWN} }} .entry l() {{ ret; }}")
    assert [type(item) for item in module.items] == [Function, Function]


# ----------------------------------------------------------------------------------------- written variables

REGISTERS = ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>;"
TABLE = ".global .align 4 .u32 table[4] = {1, 2, 3, 4};\n.const .align 4 .u32 fixed[2] = {5, 6};\n"


def kernel(body, before=TABLE, more=""):
    text = f"{HEADER}{before}.visible .entry k(.param .u64 out)\n{{\n{REGISTERS}\n{body}\nret;\n}}\n{more}"
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
def test_variables_that_are_only_read(body):
    assert not may_write(kernel(body), "k")


@pytest.mark.parametrize("body", WRITTEN.values(), ids=WRITTEN.keys())
def test_variables_that_may_be_written(body):
    assert may_write(kernel(body), "k")


def test_a_called_function_may_write():
    before = f"{TABLE}.func helper(.reg .u32 %a)\n{{\n st.global.u32 [table], %a;\n ret;\n}}\n"
    assert may_write(kernel("call helper, (%r1);", before), "k")
    assert not may_write(kernel("", before), "k")


def test_an_address_passed_to_a_function_counts_as_written():
    before = f"{TABLE}.func helper(.reg .u64 %a)\n{{\n .reg .u32 %r1; ld.u32 %r1, [%a];\n ret;\n}}\n"
    assert may_write(kernel("mov.u64 %d1, table; call helper, (%d1);", before), "k")


def test_an_address_stored_in_another_variable_counts_as_written():
    before = f"{TABLE}.global .align 8 .u64 place = table;\n"
    assert may_write(kernel("ld.global.u64 %d1, [place]; st.global.u32 [%d1], 1;", before), "k")
    constant = f"{TABLE}.const .align 8 .u64 place = generic(table);\n"
    assert may_write(kernel("ld.const.u64 %d1, [place]; st.u32 [%d1], 1;", constant), "k")


def test_kernels_of_a_module_are_analysed_separately():
    other = f".visible .entry other()\n{{\n{REGISTERS}\nst.global.u32 [table], 1;\nret;\n}}\n"
    found = kernel("ld.global.u32 %r1, [table];", more=other)
    assert not may_write(found, "k")
    assert may_write(found, "other")
    assert not may_write(found, "no such kernel")


def test_a_long_chain_of_moves_is_followed_until_the_deadline():
    steps = "".join(f"mov.u64 %d{index + 1}, %d{index};\n" for index in range(3000))
    text = f".reg .b64 %d<3002>;\n{steps}mov.u64 %d0, table;\nst.u32 [%d3000], 1;"
    found = parse(f"{HEADER}{TABLE}.visible .entry k()\n{{\n{text}\nret;\n}}\n")
    assert may_write(found, "k")
    with pytest.raises(InvokeTimeout):
        may_write(found, "k", Deadline.after(0))
