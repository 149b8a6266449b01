"""Calls: parameters, results, structures, recursion, functions chosen at run time.

Source: PTX ISA 7 (Abstracting the ABI), 9.7.12.5 (call).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from strategies.lanes import LaneKernel, module

LANES = 64
IDS = np.arange(LANES, dtype=np.uint32)


def run(launcher, kernel, sources=(), lanes=LANES, before=(), target="sm_70"):
    return launcher.run_lanes(kernel, list(sources), lanes=lanes, text=module([*before, kernel], target))


MULTIPLY_ADD = """
.func (.param .b32 result) multiply_add(.param .b32 a, .param .b32 b, .param .b64 c)
{
    .reg .b32 %r<4>; .reg .b64 %rd;
    ld.param.b32 %r0, [a];
    ld.param.b32 %r1, [b];
    ld.param.b64 %rd, [c];
    cvt.u32.u64 %r2, %rd;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    st.param.b32 [result], %r3;
    ret;
}
"""

CALL = """
        {
            .param .b32 x; .param .b32 y; .param .b64 z; .param .b32 back;
            st.param.b32 [x], %lane;
            st.param.b32 [y], 3;
            cvt.u64.u32 %rd0, %lane;
            st.param.b64 [z], %rd0;
            call (back), multiply_add, (x, y, z);
            ld.param.b32 %d0, [back];
        }
"""


def test_a_call_passes_parameters_and_a_result(launcher):
    (got,) = run(launcher, LaneKernel("calling", (), ("b32",), CALL), before=[MULTIPLY_ADD])
    assert_array_equal(got, 4 * IDS)


def test_a_call_by_some_lanes(launcher):
    body = f"""
        mov.u32 %d0, 9;
        setp.lt.u32 %p0, %lane, 10;
        @!%p0 bra over;
        {CALL}
    over:
        bar.sync 0;
    """
    (got,) = run(launcher, LaneKernel("some_call", (), ("b32",), body), before=[MULTIPLY_ADD])
    assert_array_equal(got, np.where(IDS < 10, 4 * IDS, 9))


def test_functions_with_register_parameters_and_none(launcher):
    functions = """
    .func (.reg .b32 out) twice(.reg .b32 in) { add.u32 out, in, in; ret; }
    .global .u32 bell;
    .func ring() { red.global.add.u32 [bell], 1; ret; }
    """
    body = """
        call.uni (%d0), twice, (%lane);
        call.uni ring;
        bar.sync 0;
        ld.relaxed.gpu.global.u32 %d1, [bell];
    """
    doubled, rings = run(launcher, LaneKernel("register_call", (), ("b32", "b32"), body), before=[functions])
    assert_array_equal(doubled, 2 * IDS)
    assert_array_equal(rings, LANES)


def test_a_function_passes_structures_and_has_its_own_local_memory(launcher):
    functions = """
    .func (.param .align 8 .b8 back[16]) swap(.param .align 8 .b8 pair[16])
    {
        .reg .b64 %rd<4>;
        .local .align 8 .b8 spill[8];
        ld.param.b64 %rd0, [pair];
        st.local.b64 [spill], %rd0;
        ld.param.b64 %rd1, [pair+8];
        ld.local.b64 %rd2, [spill];
        st.param.v2.b64 [back], {%rd1, %rd2};
        ret;
    }
    """
    body = """
        {
            .param .align 8 .b8 pair[16];
            .param .align 8 .b8 back[16];
            cvt.u64.u32 %rd0, %lane;
            st.param.b64 [pair], %rd0;
            st.param.b64 [pair+8], 77;
            call (back), swap, (pair);
            ld.param.b64 %d0, [back];
            ld.param.b64 %d1, [back+8];
        }
    """
    functions = functions.replace(".align 8", ".align 16")
    kernel = LaneKernel("structures", (), ("b64", "b64"), body.replace(".align 8", ".align 16"))
    first, second = run(launcher, kernel, before=[functions])
    assert_array_equal(first, 77)
    assert_array_equal(second, IDS)


def test_recursion(launcher):
    functions = """
    .func (.param .b32 out) factorial(.param .b32 in)
    {
        .reg .b32 %r<4>; .reg .pred %p;
        ld.param.b32 %r0, [in];
        setp.gt.u32 %p, %r0, 1;
        @%p bra more;
        st.param.b32 [out], 1;
        ret;
    more:
        sub.u32 %r1, %r0, 1;
        {
            .param .b32 x; .param .b32 y;
            st.param.b32 [x], %r1;
            call (y), factorial, (x);
            ld.param.b32 %r2, [y];
        }
        mul.lo.u32 %r3, %r2, %r0;
        st.param.b32 [out], %r3;
        ret;
    }
    """
    body = """
        and.b32 %r0, %lane, 7;
        {
            .param .b32 x; .param .b32 y;
            st.param.b32 [x], %r0;
            call (y), factorial, (x);
            ld.param.b32 %d0, [y];
        }
    """
    (got,) = run(launcher, LaneKernel("recursion", (), ("b32",), body), lanes=32, before=[functions])
    assert_array_equal(got, np.array([1, 1, 2, 6, 24, 120, 720, 5040])[np.arange(32) % 8])


@pytest.mark.parametrize("how", ["callprototype", "calltargets"])
def test_an_indirect_call_takes_every_lane_to_its_own_function(launcher, how):
    functions = "".join(
        f"""
    .func (.param .b32 out) {name}(.param .b32 in)
    {{
        .reg .b32 %r<2>;
        ld.param.b32 %r0, [in];
        {operation}.u32 %r1, %r0, 5;
        st.param.b32 [out], %r1;
        ret;
    }}
    """
        for name, operation in (("plus", "add"), ("times", "mul.lo"))
    )
    table = {
        "callprototype": "shape: .callprototype (.param .b32 _) _ (.param .b32 _);",
        "calltargets": "shape: .calltargets plus, times;",
    }[how]
    body = f"""
        and.b32 %r0, %lane, 1;
        mul.wide.u32 %rd1, %r0, 8;
        mov.u64 %rd0, functions;
        add.u64 %rd0, %rd0, %rd1;
        ld.global.u64 %rd2, [%rd0];
        {{
            .param .b32 x; .param .b32 y;
            st.param.b32 [x], %lane;
            {table}
            call (y), %rd2, (x), shape;
            ld.param.b32 %d0, [y];
        }}
    """
    variables = ".global .align 8 .u64 functions[2] = {plus, times};"
    (got,) = run(launcher, LaneKernel("indirect", (), ("b32",), body), before=[functions, variables])
    assert_array_equal(got, np.where(IDS % 2 == 0, IDS + 5, IDS * 5))


SECOND_WORD = """
.func (.param .b32 result) second_word(.param .align 16 .b8 words[16])
{{
    .reg .b32 %r; .reg .b64 %at, %generic;
    mov.b64 %at, words;
    {body}
    st.param.b32 [result], %r;
    ret;
}}
"""


@pytest.mark.parametrize(
    "body",
    [
        "cvta.local.u64 %generic, %at; cvta.to.local.u64 %at, %generic; ld.local.u32 %r, [%at+4];",
        "cvta.local.u64 %generic, %at; ld.u32 %r, [%generic+4];",
        "ld.local.u32 %r, [%at+4];",
        "ld.param.u32 %r, [%at+4];",
    ],
    ids=["there_and_back", "generic", "local", "parameter"],
)
def test_a_function_takes_the_address_of_its_parameter(launcher, body):
    call = """
        {
            .param .align 16 .b8 words[16]; .param .b32 back;
            st.param.v4.b32 [words], {7, %lane, 8, 9};
            call (back), second_word, (words);
            ld.param.b32 %d0, [back];
        }
    """
    kernel = LaneKernel("taking_an_address", (), ("b32",), call)
    (got,) = run(launcher, kernel, before=[SECOND_WORD.format(body=body)])
    assert_array_equal(got, IDS)
