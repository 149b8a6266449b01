import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.ptx import modules
from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx import parse, render
from tensorwasm.ptx.model import Function, Variable
from tensorwasm.ptx.symbols import SymbolTable, check

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def module(text):
    return parse(HEADER + text)


def body(text):
    before = ".global .b32 g; .func (.reg .u32 o) f (.reg .u32 i); .entry k (.param .u64 a)"
    return module(f"{before} {{ .reg .pred %p<3>; .reg .b32 %r<12>;\n{text}\n}}")


@pytest.mark.parametrize(
    "text",
    [
        "mov.b32 %r0, %r11;",
        "mov.u32 %r1, %tid.x; mov.u32 %r1, %laneid; mov.v4.u32 {%r1, _, _, _}, %tid;",
        "ld.param.u64 _, [a]; mov.u64 _, g; mov.u64 _, g+4; mov.u64 _, f;",
        "bra L; L: ret;",
        "L: { bra L; }",
        "L: { L: bra L; }",
        "{ bra M; } M:",
        "{ .reg .b32 %r<99>; mov.b32 %r98, 0; } mov.b32 %r11, 0;",
        "{ .reg .b32 g; mov.b32 g, 1; }",
        ".reg .b32 g; mov.b32 g, 1;",
        ".reg .b32 a1x, a01; .reg .b32 a<2>; mov.b32 a01, a1;",
        "T: .branchtargets L, M; L: M: brx.idx %r1, T;",
        "brx.idx %r1, T; T: .branchtargets L; L:",
        "call (%r1), f, (%r2);",
        "call (_), f, (5);",
        ".reg .b64 q; P: .callprototype (.reg .u32 _) _ (.reg .u32 _); call (%r1), q, (%r2), P;",
        ".reg .b64 q; T: .calltargets f; call (%r1), q, (%r2), T;",
        ".reg .v4 .f32 v; mov.f32 v.x, v.w; mov.f32 v.a, v.r;",
        ".reg .v2 .f32 v; mov.f32 v.x, v.g;",
        "@%p1 ret; @!%p2 ret;",
        "{ .reg .pred g; @g ret; }",
        ".reg .b32 q<10>, q0a;",
    ],
)
def test_consistent(text):
    assert body(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mov.b32 %r0, %r12;", "'%r12' is not declared"),
        ("mov.b32 %r01, 0;", "'%r01' is not declared"),
        ("mov.b32 %r, 0;", "'%r' is not declared"),
        ("mov.b32 %r1, [b+4];", "'b' is not declared"),
        ("mov.b32 %r1, {%r2, c};", "'c' is not declared"),
        ("mov.b32 %r1, [%r1, {c}];", "'c' is not declared"),
        ("mov.b32 %r1|c, 0;", "'c' is not declared"),
        ("mov.b32 %r1, !c;", "'c' is not declared"),
        ("mov.b32 %r1, c+4;", "'c' is not declared"),
        ("mov.b32 later, 0; .reg .b32 later;", "'later' is not declared"),
        ("{ .reg .b32 x; } mov.b32 x, 0;", "'x' is not declared"),
        (".reg .b32 x, x;", "'x' is declared twice"),
        (".reg .b32 %r<3>;", "'%r<...>' is declared twice"),
        (".reg .b32 %r3;", "'%r3' is declared twice"),
        (".reg .b32 q3; .reg .b32 q<4>;", "'q3' is declared twice"),
        (".reg .b32 %r1<3>;", "names that are taken"),
        (".reg .b32 q1<3>; .reg .b32 q<11>;", "names that are taken"),
        (".reg .b64 a;", "'a' is declared twice"),
        (".reg .b32 %tid;", "special register"),
        (".reg .b32 %pm<8>;", "names that are taken"),
        ("L: L:", "'L' is declared twice"),
        ("L: .reg .b32 L;", "'L' is declared twice"),
        ("bra L;", "'L' is not a label"),
        ("bra L; { L: }", "'L' is not a label"),
        ("bra %r1;", "'%r1' is not a label"),
        ("bra k;", "'k' is not a label"),
        ("bra 5;", "bra takes one label"),
        ("L: bra L, L;", "bra takes one label"),
        ("L: mov.u64 _, L;", "'L' is a label"),
        ("@%r1 ret;", "'%r1' is not a predicate"),
        ("@nobody ret;", "'nobody' is not a predicate"),
        ("brx.idx %r1, L; L:", "branchtargets expected"),
        ("brx.idx %r1;", "brx.idx takes"),
        ("T: .branchtargets nowhere;", "'nowhere' is not a label"),
        ("T: .calltargets g;", "'g' is not a function"),
        ("call nobody;", "'nobody' is not declared"),
        ("call (%r1), f, ();", "0 arguments for 1 parameters"),
        ("call f, (%r1);", "0 results of 1"),
        ("call (%r1, %r2), f, (%r1);", "2 results of 1"),
        ("call %r1, (%r1);", "needs a prototype"),
        ("call %r1, (%r1), g;", "callprototype or calltargets expected"),
        ("P: .callprototype _ (.reg .u32 _); call %r1, (), P;", "0 arguments for 1"),
        ("mov.b32 %r1, %r2.x;", "no component x"),
        ("mov.b32 %r1, %laneid.x;", "no component x"),
        (".reg .v2 .b32 v; mov.b32 %r1, v.z;", "no component z"),
        (".reg .b32 a_<1048576>; .reg .b32 b_<1048576>;", "more than 1048576 registers"),
    ],
)
def test_inconsistent(text, message):
    with pytest.raises(MalformedPtx, match=message.replace("<...>", "<.*>")) as caught:
        body(text)
    assert caught.value.line


def test_errors_have_positions():
    with pytest.raises(MalformedPtx) as caught:
        body("ret;\n  mov.b32 nobody, 0;")
    assert (caught.value.line, caught.value.column) == (6, 3)


@pytest.mark.parametrize(
    "text",
    [
        ".entry k(); .entry k() { ret; }",
        ".func f(.reg .u32 a); .func f(.reg .s32 b) { ret; } .func f(.reg .f32 c);",
        ".extern .global .u32 x; .visible .global .u32 x;",
        ".visible .global .u32 x; .extern .global .u32 x;",
        ".global .u64 p = q; .global .u64 q = generic(p);",
        ".global .u64 p = f; .func f { ret; }",
        ".func f { ret; } .func g; .alias g, f;",
        ".func f { call g; } .func g { call f; }",
    ],
)
def test_consistent_modules(text):
    assert module(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".entry k() { ret; } .entry k() { ret; }", "defined twice"),
        (".func k() { ret; } .entry k() { ret; }", "twice"),
        (".func k(); .entry k();", "other parameters"),
        (".func f(.reg .u32 a); .func f(.reg .u64 a) { ret; }", "other parameters"),
        (".func f(.reg .u32 a); .func f() { ret; }", "other parameters"),
        (".func f(.param .u32 a); .func f(.reg .u32 a);", "other parameters"),
        (".global .u32 x; .global .u32 x;", "declared twice"),
        (".extern .global .u32 x; .global .u64 x;", "another type"),
        (".global .u32 f; .func f;", "declared twice"),
        (".entry k(.param .u32 a, .param .u32 a) { ret; }", "declared twice"),
        (".global .u64 p = nobody;", "not declared"),
        (".global .u64 p[2] = {0, generic(nobody)+4};", "not declared"),
        (".global .u8 p[1] = {0xff(nobody)};", "not declared"),
        (".func f; .alias f, nobody;", "not a function"),
        (".global .u32 %tid;", "special register"),
    ],
)
def test_inconsistent_modules(text, message):
    with pytest.raises(MalformedPtx, match=message):
        module(text)


@settings(max_examples=30)
@given(modules(), st.data())
def test_a_module_without_a_declaration_it_uses_is_refused(made, data):
    """Taking a declaration away never lets a use of it through: the text then means another thing or nothing."""
    functions = [item for item in made.items if isinstance(item, Function) and item.body]
    registers = [(f, s) for f in functions for s in f.body if isinstance(s, Variable)]
    if not registers:
        check(made)
        return
    function, gone = data.draw(st.sampled_from(registers))
    text = render(made)
    uses = text.count(gone.name) - 1
    less = Function(
        function.entry,
        function.name,
        function.params,
        function.returns,
        function.linkage,
        function.directives,
        tuple(statement for statement in function.body if statement is not gone),
    )
    items = tuple(less if item is function else item for item in made.items)
    changed = type(made)(made.version, made.target, made.address_size, items)
    if uses:
        with pytest.raises(MalformedPtx):
            check(changed)
    else:
        check(changed)


def test_register_families_hold_numbers_without_leading_zeros():
    scope = SymbolTable()
    family = Variable("reg", "b32", "%r", count=1000)
    scope.declare("%r", family)
    assert all(scope.find(f"%r{number}") is family for number in (0, 9, 10, 99, 999))
    assert all(scope.find(name) is None for name in ("%r", "%r1000", "%r00", "%r007", "%r1x", "r1", "%r99999999999"))
