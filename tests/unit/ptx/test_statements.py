import pytest

from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.lexer import Cursor
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Block,
    Directive,
    Function,
    Guard,
    Instruction,
    Int,
    Label,
    Name,
    TargetList,
    Variable,
    Vector,
)
from tensorwasm.ptx.parser import MAX_BLOCK_DEPTH, parse_body


def body(text):
    cursor = Cursor(text + "}")
    statements = parse_body(cursor)
    assert cursor.peek() == ""
    return statements


def names(*words):
    return tuple(map(Name, words))


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("ret;", Instruction("ret")),
        ("bra.uni L;", Instruction("bra", ("uni",), names("L"))),
        ("@p bra L;", Instruction("bra", (), names("L"), Guard(Name("p")))),
        ("@!%p1 ret;", Instruction("ret", (), (), Guard(Name("%p1"), True))),
        ("add.rn.ftz.f32 a, b, c;", Instruction("add", ("rn", "ftz", "f32"), names("a", "b", "c"))),
        ("mov .u32 a, b;", Instruction("mov", ("u32",), names("a", "b"))),
        ("ld .shared::cta.b32 a, [b];", Instruction("ld", ("shared::cta", "b32"), (Name("a"), Address(Name("b"))))),
        ("bar.sync 0, 64;", Instruction("bar", ("sync",), (Int(0), Int(64)))),
        (
            "cp.async.cg.shared.global.L2::128B [a], [b+16], 0x10;",
            Instruction(
                "cp",
                ("async", "cg", "shared", "global", "L2::128B"),
                (Address(Name("a")), Address(Name("b"), 16), Int(16)),
            ),
        ),
        ("mma.m16n8k8 {a}, {b};", Instruction("mma", ("m16n8k8",), (Vector(names("a")), Vector(names("b"))))),
        ("call f;", Instruction("call", (), names("f"))),
        ("call f, ();", Instruction("call", (), (Name("f"), Arguments(())))),
        ("call.uni f, (a, 1);", Instruction("call", ("uni",), (Name("f"), Arguments((Name("a"), Int(1)))))),
        ("call (r), f;", Instruction("call", (), (Arguments(names("r")), Name("f")))),
        ("call (r), f, (a), P;",
         Instruction("call", (), (Arguments(names("r")), Name("f"), Arguments(names("a")), Name("P")))),
        ("call f, P;", Instruction("call", (), names("f", "P"))),
        ("L:", Label("L")),
        ("$L__BB0_1 :", Label("$L__BB0_1")),
        ("{ ret; { } }", Block((Instruction("ret"), Block(())))),
        ("T: .branchtargets A, B;", TargetList("T", "branchtargets", ("A", "B"))),
        ("T: .calltargets f;", TargetList("T", "calltargets", ("f",))),
        (
            "P: .callprototype (.param .b32 _) _ (.param .b64 _, .reg .u32 _);",
            TargetList(
                "P",
                "callprototype",
                (),
                Function(
                    False,
                    "_",
                    (Variable("param", "b64", "_"), Variable("reg", "u32", "_")),
                    (Variable("param", "b32", "_"),),
                ),
            ),
        ),
        ("P: .callprototype ()_ () .noreturn;",
         TargetList("P", "callprototype", (), Function(False, "_", directives=(Directive("noreturn"),)))),
        ("P: .callprototype _;", TargetList("P", "callprototype", (), Function(False, "_"))),
        (".loc 1 2 3", Directive("loc", ("1", "2", "3"))),
        (
            ".loc 1 2 3, function_name $L+4, inlined_at 5 6 7",
            Directive("loc", ("1", "2", "3", "function_name", "$L", "+", "4", "inlined_at", "5", "6", "7")),
        ),
        ('.pragma "nounroll";', Directive("pragma", ('"nounroll"',))),
        ('.pragma "a", "b";', Directive("pragma", ('"a"', '"b"'))),
        (".local .b8 d[4];", Variable("local", "b8", "d", shape=(4,))),
        (".section .debug_str { a: .b8 1,-2 .b32 a+4 }",
         Directive("section", (".debug_str", "a", ":", ".b8", "1", ",", "-", "2", ".b32", "a", "+", "4"))),
    ],
)  # fmt: skip
def test_statements(text, statement):
    assert body(text) == (statement,)


def test_positions_are_where_statements_begin():
    (guarded, label, block) = body("\n  @p ret;\n\tL:{ ret; }")
    assert (guarded.position.line, guarded.position.column) == (2, 3)
    assert (label.position.line, label.position.column) == (3, 2)
    assert (block.position.line, block.position.column) == (3, 4)
    assert block.body[0].position.column == 6


@pytest.mark.parametrize(
    "text",
    [
        ";",
        "ret",
        "Ret;",
        "1;",
        "@p { ret; }",
        "@p L:",
        "@ ret;",
        "add a b;",
        "add a,;",
        "add a, b,, c;",
        "_: ret;",
        "a.b: ret;",
        "call;",
        "call (r);",
        "call f g;",
        "call f, (a), (b);",
        "call f, (a;",
        ".entry k;",
        ".branchtargets L;",
        "T: .branchtargets;",
        "T: .branchtargets A B;",
        "P: .callprototype (.param .b32 _) _ (.param .b64 _)",
        ".loc 1 2",
        ".loc 1 2 3, inlined_at 1 2 3",
        ".pragma nounroll;",
        '.pragma "a" "b";',
        ".file 1 name",
        ".section { }",
        ".section .x { { } }",
        '.section .x { "s" }',
        "mov..u32 a;",
        "mov.u32. a;",
        "mov.shared:: a;",
    ],
)
def test_texts_that_are_not_statements(text):
    with pytest.raises(MalformedPtx) as caught:
        body(text)
    assert caught.value.line == 1


def test_depth_is_limited():
    assert body("{" * MAX_BLOCK_DEPTH + "}" * MAX_BLOCK_DEPTH)
    with pytest.raises(MalformedPtx, match="nested"):
        body("{" * (MAX_BLOCK_DEPTH + 1))


def test_an_unterminated_body_is_refused():
    with pytest.raises(MalformedPtx, match="ends inside"):
        parse_body(Cursor("ret;"))


@pytest.mark.parametrize(
    "text",
    [
        "add.s32 \t%r1, %r2, -1;",
        "mov.u32 \t%r1, %tid.x;",
        "mov.f32 %f1, 0f3F800000;",
        "ld.global.u32 %r1, [%rd1];",
        "st.shared::cta.u32 [%rd1+16], %r1;",
        "@!%p1 bra $L__BB0_2;",
        "prmt.b32 _, a, 0, 7;",
        "add .s32 %r1, %r2, 1;",
        "call f, (x);",
        "call f;",
        "mov.u32 %r1, %tid.x.y;",
        "mov.u32 %r1, 010;",
        "add.s32 %r1,%r2, 1/*x*/;",
        "add.s32 %r1, %r2 + 1;",
        "a b;c d; // e f;",
    ],
)
def test_an_instruction_means_the_same_whether_it_is_one_token_or_many(text: str) -> None:
    def read(*, instructions: bool) -> object:
        try:
            return repr(parse_body(Cursor("\n  " + text + "\n}", instructions=instructions)))
        except MalformedPtx as error:
            return type(error)

    assert read(instructions=True) == read(instructions=False)
