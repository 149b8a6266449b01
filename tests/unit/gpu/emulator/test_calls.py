import pytest

from fakes.emulation import HEAD, kernel, store_result
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER

FACTORIAL = """
.func (.param .b32 out) factorial(.param .b32 in)
{
    .reg .b32 %n, %rest; .reg .pred %p; .local .b32 mine;
    ld.param.u32 %n, [in];
    st.local.u32 [mine], %n;
    mov.u32 %rest, 1;
    setp.lt.u32 %p, %n, 2;
    @%p bra done;
    {
        .param .b32 a; .param .b32 b;
        sub.u32 %rest, %n, 1;
        st.param.b32 [a], %rest;
        call.uni (b), factorial, (a);
        ld.param.b32 %rest, [b];
    }
    ld.local.u32 %n, [mine];
    mul.lo.u32 %rest, %rest, %n;
done:
    st.param.b32 [out], %rest;
    ret;
}
"""
CALL = """{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call (b), factorial, (a); ld.param.b32 %r1, [b]; }"""


def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1) % 2**32


@pytest.mark.parametrize("threads", [1, 7, 64])
def test_recursion_to_another_depth_in_every_lane(emulation, threads):
    text = kernel("rem.u32 %r2, %r0, 13;" + CALL + store_result(), before=FACTORIAL)
    assert emulation.run(text, threads, block=(threads, 1, 1)).tolist() == [factorial(t % 13) for t in range(threads)]


def test_recursion_without_end_is_a_fault(emulation):
    text = kernel("mov.u32 %r2, 1000;" + CALL, before=FACTORIAL)
    message = emulation.fault(text, emulation.buffer([0]))
    assert "calls more than 64 functions deep" in message
    assert "call.uni (b), factorial, (a)" in message


def test_many_functions_deep_without_recursion_is_fine(emulation):
    functions = [".func (.reg .b32 %o) f0(.reg .b32 %i) { add.u32 %o, %i, 1; ret; }"] + [
        f".func (.reg .b32 %o) f{n}(.reg .b32 %i) {{ call (%o), f{n - 1}, (%i); add.u32 %o, %o, 1; ret; }}"
        for n in range(1, 100)
    ]
    text = kernel("call (%r1), f99, (%r0);" + store_result(), before="\n".join(functions))
    assert emulation.run(text, 4, block=(4, 1, 1)).tolist() == [100, 101, 102, 103]


@pytest.mark.rule("4-local-memory")
def test_local_variables_of_two_calls_are_not_shared(emulation):
    function = """
    .func (.reg .b32 %o) f(.reg .b32 %i)
    {
        .local .b32 x; .reg .pred %p;
        setp.eq.u32 %p, %i, 1; @%p st.local.u32 [x], 9; ld.local.u32 %o, [x]; ret;
    }
    """
    text = kernel("call (%r1), f, (1); call (%r1), f, (2);" + store_result(), before=function)
    assert emulation.run(text, 1, block=(1, 1, 1)).tolist() == [0]


INDIRECT = """
.func (.param .b32 o) double(.param .b32 i)
{ .reg .b32 %r; ld.param.u32 %r, [i]; add.u32 %r, %r, %r; st.param.u32 [o], %r; ret; }
.func (.param .b32 o) square(.param .b32 i)
{ .reg .b32 %r; ld.param.u32 %r, [i]; mul.lo.u32 %r, %r, %r; st.param.u32 [o], %r; ret; }
.func other(.param .b64 i) { ret; }
.global .u64 table[2] = {double, square};
"""


def indirect(address, declared):
    return kernel(
        f"""
        and.b32 %r2, %r0, 1; mov.u64 %rd0, table; mad.wide.u32 %rd0, %r2, 8, %rd0; ld.global.u64 %rd1, [%rd0];
        {address}
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r0;
        {declared}
        call (b), %rd1, (a), shape;
        ld.param.b32 %r1, [b]; }}
        """
        + store_result(),
        before=INDIRECT,
    )


@pytest.mark.parametrize(
    "declared", ["shape: .callprototype (.param .b32 _) _ (.param .b32 _);", "shape: .calltargets double, square;"]
)
def test_lanes_call_different_functions_by_address(emulation, declared):
    found = emulation.run(indirect("", declared), 32)
    assert found.tolist() == [t * t if t % 2 else 2 * t for t in range(32)]


@pytest.mark.parametrize("address", ["mov.u64 %rd1, 16;", "mov.u64 %rd1, other;", "add.u64 %rd1, %rd1, 1;"])
def test_a_call_to_what_is_no_such_function_is_a_fault(emulation, address):
    text = indirect(address, "shape: .callprototype (.param .b32 _) _ (.param .b32 _);")
    assert "which is no function it may call" in emulation.fault(text, emulation.buffer([0] * 32))


def test_a_failed_assertion_is_a_fault(emulation):
    text = kernel(
        """
        setp.ne.u32 %p0, %r0, 3; @%p0 bra fine;
        { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
        st.param.b64 [a], 0; st.param.b64 [b], 0; st.param.b32 [c], 0; st.param.b64 [d], 0; st.param.b64 [e], 1;
        call.uni __assertfail, (a, b, c, d, e); }
        fine:
        """,
        params=0,
        before=".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);",
    )
    message = emulation.fault(text)
    assert "thread (3, 0, 0)" in message
    assert "fails an assertion" in message


@pytest.mark.parametrize(
    ("before", "body", "part"),
    [
        (".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);", "", None),
        (
            ".extern .func f (.param .b32 a);",
            "{ .param .b32 a; st.param.b32 [a], 1; call f, (a); }",
            "function f, which the module does not define",
        ),
        ("", ".reg .b128 %q; mov.b128 %q, {%rd1, %rd2};", "128-bit"),
    ],
)
def test_a_missing_symbol_is_named_when_it_is_used(emulation, before, body, part):
    text = kernel(body, before=before).replace("8.0", "8.3")
    if part is None:
        emulation.launch(text, emulation.buffer([0]))
        return
    with pytest.raises(UnsupportedPtx) as caught:
        emulation.device.load(parse(text), NEVER)
    assert part in caught.value.message
    assert caught.value.line > 0


def test_a_structure_of_another_size_does_not_fit(emulation):
    text = f"""{HEAD}
    .func f(.param .align 4 .b8 s[8]) {{ ret; }}
    .entry k() {{ .param .align 4 .b8 t[12]; call f, (t); ret; }}
    """
    with pytest.raises(MalformedPtx):
        emulation.device.load(parse(text), NEVER)
