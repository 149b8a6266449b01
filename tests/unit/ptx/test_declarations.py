import pytest

from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.declarations import MAX_REGISTERS, parse_linkage, parse_params, parse_variables
from tensorwasm.ptx.layout import element_count, variable_align, variable_bytes
from tensorwasm.ptx.lexer import Cursor
from tensorwasm.ptx.model import Float, Generic, Int, Masked, Name, Offset, Property, Variable


def declared(text):
    cursor = Cursor(text)
    variables = parse_variables(cursor, parse_linkage(cursor))
    assert cursor.peek() == ""
    return variables


def values(text):
    return declared(text)[0].initializer


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        (".reg .b32 %r<5>;", [Variable("reg", "b32", "%r", count=5)]),
        (".reg .pred p, %p<2>;", [Variable("reg", "pred", "p"), Variable("reg", "pred", "%p", count=2)]),
        (".reg .v4 .f32 v;", [Variable("reg", "f32", "v", 4)]),
        (".local .align 8 .b8 d[24];", [Variable("local", "b8", "d", align=8, shape=(24,))]),
        (".shared .f32 t[16][17];", [Variable("shared", "f32", "t", shape=(16, 17))]),
        (".extern .shared .align 16 .b8 s[];", [Variable("shared", "b8", "s", 1, 16, (0,), linkage=("extern",))]),
        (".const .u32 a = 1, b[2];",
         [Variable("const", "u32", "a", initializer=(Int(1),)), Variable("const", "u32", "b", shape=(2,))]),
        (".visible .const .f64 c;", [Variable("const", "f64", "c", linkage=("visible",))]),
        (
            ".global .attribute(.managed, .unified(19, 95)) .align 4 .v2 .u8 m;",
            [Variable("global", "u8", "m", 2, 4, attributes=("managed", "unified(19,95)"))],
        ),
        (".global .texref t;", [Variable("global", "texref", "t")]),
        (".reg .b128 q;", [Variable("reg", "b128", "q")]),
    ],
)  # fmt: skip
def test_variables(text, variables):
    assert declared(text) == tuple(variables)


def ints(*numbers):
    return tuple(map(Int, numbers))


@pytest.mark.parametrize(
    ("text", "initial"),
    [
        (".global .u32 a = 3 * 4;", ints(12)),
        (".global .u32 a[4] = {1, 2};", ints(1, 2)),
        (".global .u32 a[2] = {};", ()),
        (".global .u32 a[2][2] = {{1}, {3, 4}};", ints(1, 0, 3, 4)),
        (".global .u32 a[3][2] = {{1, 2}, {}, {3}};", ints(1, 2, 0, 0, 3)),
        (".global .u32 a[2][2][2] = {{{1}}, {{2}, {3}}};", ints(1, 0, 0, 0, 2, 0, 3)),
        (".global .u32 a[][2] = {{1}, {2}};", ints(1, 0, 2)),
        (".global .v2 .u32 a = {1, 2};", ints(1, 2)),
        (".global .v2 .u32 a[2] = {{1, 2}, {3, 4}};", ints(1, 2, 3, 4)),
        (".global .f32 a[2] = {0f3F800000, -1.5};", (Float(0x3F800000, 32), Float(0xBFF8000000000000, 64))),
        (".const .u64 a[4] = {g, g+4, generic(g), generic(g)+-4};",
         (Name("g"), Offset(Name("g"), 4), Generic(Name("g")), Generic(Name("g"), -4))),
        (".global .u8 a[2] = {0xff(g), 0xff00(generic(g)+8)};",
         (Masked(0xFF, Name("g")), Masked(0xFF00, Generic(Name("g"), 8)))),
        (".global .samplerref s = {filter_mode = nearest, width = 4};",
         (Property("filter_mode", Name("nearest")), Property("width", Int(4)))),
    ],
)  # fmt: skip
def test_initial_values(text, initial):
    assert values(text) == initial


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("()", []),
        ("(.param .u64 a)", [Variable("param", "u64", "a")]),
        ("(.param .u64 .ptr a)", [Variable("param", "u64", "a", pointer=("", 0))]),
        ("(.param .u64 .ptr .align 8 a)", [Variable("param", "u64", "a", pointer=("", 8))]),
        ("(.param .u64 .ptr .global .align 4 a)", [Variable("param", "u64", "a", pointer=("global", 4))]),
        ("(.param .u32 .ptr .shared a)", [Variable("param", "u32", "a", pointer=("shared", 0))]),
        ("(.param .align 8 .b8 a[24], .reg .f32 b)",
         [Variable("param", "b8", "a", align=8, shape=(24,)), Variable("reg", "f32", "b")]),
    ],
)  # fmt: skip
def test_parameters(text, params):
    assert parse_params(Cursor(text)) == tuple(params)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".reg .b32 %r<4294967295>;", f"more than {MAX_REGISTERS}"),
        (".reg .b32 %r<0>;", "from one up"),
        (".reg .b32 %r<-1>;", "expected"),
        (".global .b32 g<4>;", "only registers"),
        (".reg .b32 r[4];", "cannot form arrays"),
        (".reg .b32 r = 4;", "initial values"),
        (".shared .b32 r = 4;", "initial values"),
        (".reg b32 r;", "needs a type"),
        (".reg .bf16 r;", "not allowed"),
        (".reg .f32 .u32 r;", "not allowed"),
        (".global .pred p;", "needs a type"),
        (".global .align 3 .b32 g;", "power of two"),
        (".global .align 0 .b32 g;", "power of two"),
        (".global .align 4294967296 .b32 g;", "more than"),
        (".global .b8 g[9223372036854775807][2];", "any memory"),
        (".global .b64 g[1152921504606846976];", "any memory"),
        (".global .b8 g[-1];", "negative"),
        (".global .b8 g[2][];", "all but the first"),
        (".global .b8 g" + "[1]" * 17 + ";", "dimensions"),
        (".global .b8 g[2] = {1, 2, 3};", "more initial values"),
        (".global .b8 g[2][2] = {1, 2, 3, 4};", "expected"),
        (".global .b8 g = {1};", "initial value"),
        (".global .u8 g[2] = {0x00(g)};", "selects no bits"),
        (".global .b8 g[2] = {1,};", "initial value"),
        (".global .b8 g[][1000000000] = {{1}, {2}};", "leave out too many"),
        (".global .v4 .f32 v = {1.0};", "or none"),
        (".visible .visible .global .b8 g;", "twice"),
        (".global .b8 _;", "cannot be declared"),
        (".global .b8 WARP_SZ;", "cannot be declared"),
        (".global .b8 a.b;", "expected"),
        (".global .attribute(.mine) .b8 g;", "not an attribute"),
        (".global .b8 g", "expected"),
    ],
)
def test_refused(text, message):
    with pytest.raises(MalformedPtx, match=message):
        declared(text)


@pytest.mark.parametrize("text", ["(.param .b32 _)", "(.global .b32 a)", "(.param .b32 a", "(.param .b32 a,)"])
def test_refused_parameters(text):
    with pytest.raises(MalformedPtx):
        parse_params(Cursor(text))


def test_many_gaps_in_initializers_share_one_budget():
    text = ".global .b8 g[][100000] = {" + ",".join(["{1}"] * 12) + "};"
    with pytest.raises(MalformedPtx, match="leave out too many"):
        declared(text)


@pytest.mark.parametrize(
    ("text", "size", "align"),
    [
        (".global .b8 g;", 1, 1),
        (".global .f64 g[3];", 24, 8),
        (".global .v4 .f32 g[3];", 48, 16),
        (".global .align 16 .b8 g[5];", 5, 16),
        (".extern .global .b32 g[];", 0, 4),
        (".global .b32 g[] = {1, 2, 3};", 12, 4),
        (".global .b32 g[][4] = {{1}, {2}};", 32, 4),
        (".global .v2 .b32 g[] = {{1, 2}, {3, 4}};", 16, 8),
        (".global .texref g;", 8, 8),
        (".global .f16x2 g[2][2];", 16, 4),
    ],
)
def test_sizes(text, size, align):
    (variable,) = declared(text)
    assert (variable_bytes(variable), variable_align(variable)) == (size, align)
    assert element_count(variable) >= 0
