"""A kernel taken out of its module brings what it reaches, and answers for nothing else."""

import pytest

from oracles.ptx import check_kernel
from strategies.ptx import CORPUS
from tensorwasm.errors import InvalidKernel, MalformedPtx, UnsupportedPtx
from tensorwasm.ptx import extract, parse, render, signature
from tensorwasm.ptx.model import Function

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
def test_a_kernel_brings_what_it_reaches_and_nothing_else(entry, kept):
    assert names(extract(MODULE, entry)) == kept


def test_an_alias_comes_with_its_function_and_its_declaration():
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
def test_a_kernel_alone_has_the_signature_that_it_had(name):
    module = parse(CORPUS[name])
    for function in module.functions():
        if function.entry and function.body is not None:
            check_kernel(module, function.name)


def test_an_unknown_kernel_is_named():
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
def test_what_is_not_understood_refuses_the_kernels_that_reach_it_with_its_line(partly, entry, line, reason):
    with pytest.raises(UnsupportedPtx, match=reason) as caught:
        extract(partly, entry)
    assert caught.value.line == line
    assert "plain" not in caught.value.message


def test_other_kernels_are_printed_without_what_is_not_understood(partly):
    alone = extract(partly, "plain")
    assert names(alone) == ["plain"]
    assert parse(render(alone)) == alone
    assert signature(partly, "plain") == signature(alone, "plain")
    with pytest.raises(UnsupportedPtx):
        render(partly)


def test_a_refused_function_still_has_a_name_that_is_taken_and_an_end():
    with pytest.raises(MalformedPtx, match="defined twice"):
        parse(HEADER + f".entry k() {{ .reg .b32 r; {UNKNOWN} }} .entry k() {{ ret; }}")
    with pytest.raises(MalformedPtx, match="ends too early"):
        parse(HEADER + f".entry k() {{ {UNKNOWN}")
    module = parse(HEADER + f".entry k() .maxntid 1 {{ .reg .b32 r; {UNKNOWN} }} .entry l() {{ ret; }}")
    assert [type(item) for item in module.items] == [Function, Function]
