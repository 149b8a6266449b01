import random
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oracles.ptx import check_any_text
from strategies.ptx import CORPUS, mutate
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx import MAX_PTX_BYTES, parse, parse_variants
from tensorwasm.ptx.model import Directive, Function, Module, Variable

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def items(text):
    return parse(HEADER + text).items


def test_an_empty_module():
    assert parse(HEADER) == Module((8, 0), ("sm_80",), 64)


def test_bytes_and_text_mean_the_same():
    for text in CORPUS.values():
        assert parse(text.encode("ascii")) == parse(text)


def test_a_text_may_end_with_one_nul_as_nvrtc_returns_it():
    text = CORPUS["vector_add.sm_90.ptx"]
    assert parse(text + "\0") == parse(text.encode() + b"\0") == parse(text)
    for wrong in (text + "\0\0", text + "\0\n", "\0" + text, text.replace("ret", "r\0t")):
        with pytest.raises(MalformedPtx, match="without NUL"):
            parse(wrong)


def test_addresses_have_32_bits_unless_stated():
    assert parse(".version 6.0 .target sm_50, debug").address_size == 32


@pytest.mark.parametrize("version", ["6.0", "7.8", "8.10", "9.0", "9.1", "9.5"])
def test_supported_versions(version):
    assert parse(f".version {version}\n.target sm_50").version == tuple(map(int, version.split(".")))


@pytest.mark.parametrize("version", ["5.9", "1.0", "10.0", "99.1"])
def test_unsupported_versions(version):
    with pytest.raises(UnsupportedPtx, match=f"PTX ISA {version}: versions 6.0 to 9.5 are") as caught:
        parse(f".version {version}\n.target sm_50")
    assert (caught.value.line, caught.value.column) == (1, 10)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        ".target sm_80",
        ".version",
        ".version 8",
        ".version 8.0U",
        ".version 8.0",
        ".version 8.0 .version 8.0 .target sm_80",
        ".version 8.0 .target",
        ".version 8.0 .target debug",
        ".version 8.0 .target sm_80,",
        ".version 8.0 .target sm_80, sm_80",
        ".version 8.0 .target avr5",
        ".version 8.0 .target sm_80 .address_size 16",
        HEADER + HEADER,
        HEADER + "ret;",
        HEADER + ".reg .b32 r;",
        HEADER + ".local .b32 r;",
        HEADER + ".loc 1",
        HEADER + ".entry",
        HEADER + ".entry k",
        HEADER + ".entry k (.param .u32 a) {",
        HEADER + ".entry (.param .u32 r) k () { ret; }",
        HEADER + ".entry k () .maxfoo 1 { ret; }",
        HEADER + ".entry k () .maxntid { ret; }",
        HEADER + ".entry k () .maxntid 0 { ret; }",
        HEADER + ".entry k () .maxntid 1,1,1,1 { ret; }",
        HEADER + ".entry k () { ret; } }",
        HEADER + ".alias a b;",
        HEADER + ".visible",
        HEADER + '.file "a" 1',
    ],
)
def test_texts_that_are_not_modules(text):
    with pytest.raises(MalformedPtx) as caught:
        parse(text)
    assert not isinstance(caught.value, UnsupportedPtx)
    assert caught.value.line >= 1
    assert caught.value.message.startswith(f"{caught.value.line}:{caught.value.column}: ")


def test_functions():
    (declared, defined) = items(
        ".extern .func (.reg .u32 r) f (.reg .u32 a) .noreturn;"
        '.visible .entry k (.param .u64 p) .maxntid 0x10, 2 .minnctapersm 1 .pragma "x"; { ret; }'
    )
    assert declared == Function(
        False,
        "f",
        (Variable("reg", "u32", "a"),),
        (Variable("reg", "u32", "r"),),
        ("extern",),
        (Directive("noreturn"),),
    )
    assert defined.entry
    assert defined.directives == (
        Directive("maxntid", ("16", "2")),
        Directive("minnctapersm", ("1",)),
        Directive("pragma", ('"x"',)),
    )
    assert parse(HEADER + ".entry k { ret; }").entry("k").params == ()


def test_items_keep_their_order():
    kinds = [type(item) for item in items('.file 1 "a" .global .u32 a, b; .func f; .alias f, f; .section .x { }')]
    assert kinds == [Directive, Variable, Variable, Function, Directive, Directive]


BODY = HEADER + ".entry k (.param .u64 a) { .reg .b32 %r<5>;\n"
MOST = MAX_PTX_BYTES - 200
HOSTILE = {
    "braces": HEADER + "{" * MOST,
    "braces in a body": BODY + "{" * 300_000,
    "parentheses": BODY + "mov.u32 %r1, " + "(" * 300_000,
    "one token": BODY + "a" * MOST,
    "one number": BODY + "mov.u32 %r1, " + "9" * MOST,
    "one mnemonic": BODY + "a" + ".a" * (MOST // 2),
    "comments that open": HEADER + "/*" * (MOST // 2),
    "stars": HEADER + "/" + "*" * MOST,
    "strings that open": HEADER + '"\n' * 100_000,
    "signs": BODY + "mov.u32 %r1, " + "-" * 300_000 + ";",
    "conditionals": BODY + "mov.u32 %r1, " + "1?1:" * 200_000 + "1;",
    "registers": BODY + ".reg .b32 %q<4294967295>; ret; }",
    "registers in all": BODY + "".join(f".reg .b32 a{i}_<1000000>;" for i in range(100)) + "}",
    "dimensions": HEADER + ".global .b8 g" + "[9]" * 100_000 + ";",
    "gaps": HEADER + "".join(f".global .b8 g{i}[][1000000]={{{{1}},{{1}}}};" for i in range(1000)),
    "vectors": BODY + "mov.b32 " + "{" * 300_000,
    "pairs": BODY + "mov.b32 " + "%r1|" * 100_000 + "%r1;",
    "nothing": "\n" * MOST,
    "parameters": HEADER + ".entry k2 (" + ".param .u32 a," * 100_000,
    "nonsense": HEADER + "!@" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_in_time(name):
    assert check_any_text(HOSTILE[name]) is None


def test_ten_megabytes_are_refused_without_parsing():
    with pytest.raises(MalformedPtx, match="more than"):
        parse("{" * 10_000_000)


def test_a_long_valid_text_is_parsed():
    statements = "".join(f"L{i}: add.s32 %r1, %r2, {i}; @%p bra L{i};\n" for i in range(5_000))
    module = check_any_text(HEADER + ".entry k () { .reg .pred %p; .reg .b32 %r<5>;" + statements + "}")
    assert len(module.entry("k").body) == 15_002


@given(st.text() | st.text('{}();.,:@%$_-+ \n"/*<>=abr0123456789', max_size=80))
def test_arbitrary_text_is_parsed_or_refused(text):
    check_any_text(text)
    check_any_text(HEADER + text)
    check_any_text(HEADER + ".entry k () {" + text)


@given(st.binary())
def test_arbitrary_bytes_are_parsed_or_refused(data):
    check_any_text(data)


def test_the_package_is_cheap_to_import():
    code = "import sys, tensorwasm.ptx; print(sorted({'numpy', 'wasmtime', 'asyncio', 'ctypes'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_modules_that_follow_one_another_are_variants():
    one = ".version 8.0\n.target sm_80\n.address_size 64\n"
    other = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"
    assert parse_variants(one + other) == (parse(one), parse(other))
    assert parse_variants(one) == (parse(one),)
    with pytest.raises(MalformedPtx, match="another"):
        parse(one + other)
    with pytest.raises(MalformedPtx):
        parse_variants("")


@given(st.sampled_from(sorted(CORPUS)), st.integers(0, 1 << 32))
def test_a_mutated_corpus_file_is_parsed_or_refused(name, seed):
    check_any_text(mutate(random.Random(seed), CORPUS[name]))


@given(st.sampled_from(sorted(CORPUS)), st.data())
def test_a_truncated_corpus_file_is_parsed_or_refused(name, data):
    text = CORPUS[name]
    check_any_text(text[: data.draw(st.integers(0, len(text)))])


@example(b"\xff")
@given(st.binary(max_size=8))
def test_arbitrary_bytes_inside_a_file(data):
    text = CORPUS["syntax.ptx"].encode("ascii")
    check_any_text(text[:500] + data + text[500:])
