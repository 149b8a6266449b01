"""Forms that few compilers write: they mean the same as those that most do."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.testing import assert_array_equal

from conformance.launcher import Launcher
from tensorwasm.gpu.emulator.device import EmulatorDevice

SPELLINGS = """.version 8.0
.target sm_70
.address_size 64
.func (.reg .b32 sum) add(.reg .v2 .b32 pair) { add.u32 sum, pair.x, pair.y; ret; }
.visible .entry spell(.hidden .param .u64 out)
{
    .global .b32 seen[3] = {7, 8, 9};
    .shared .b32 array[4];
    .reg .b64 %to; .reg .b32 %r<8>; .reg .b16 %h<2>; .reg .v2 .b16 %halves; .reg .v2 .b32 %pair; .reg .v4 .u32 %who;
    ld.param.u64 %to, [out];
    mov.u32 %r0, 5;
    st.shared.u32 array[1], %r0;
    mov.u32 %r1, array[1];
    ld.shared.u32 %r2, [%r1];
    st.global.u32 [%to], %r2;
    ld.global.u32 %r3, seen[2];
    st.global.u32 [%to+4], %r3;
    mov.b32 %halves, 0x00020001;
    mov.v2.b16 {%h0, %h1}, %halves;
    mov.b32 %r4, {%h1, %h0};
    st.global.u32 [%to+8], %r4;
    mov.b32 %r4, %halves;
    st.global.u32 [%to+12], %r4;
    mov.u32 %pair.x, 30;
    mov.u32 %pair.y, 12;
    call (%r5), add, (%pair);
    st.global.u32 [%to+16], %r5;
    mov.v4.u32 %who, %ntid;
    st.global.u32 [%to+20], %who.x;
    ret;
}
"""

LEAST = """.version 8.8
.target sm_100
.address_size 64
.visible .entry least(.param .u64 in, .param .u64 out)
{
    .reg .b64 %in, %out; .reg .f32 %f<9>;
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    ld.global.f32 %f0, [%in];
    ld.global.f32 %f1, [%in+4];
    ld.global.f32 %f2, [%in+8];
    min.f32 %f3, %f0, %f1, %f2;
    max.f32 %f4, %f0, %f1, %f2;
    min.NaN.abs.f32 %f5, %f0, %f1, %f2;
    max.abs.f32 %f6, %f0, %f1, %f2;
    st.global.f32 [%out], %f3;
    st.global.f32 [%out+4], %f4;
    st.global.f32 [%out+8], %f5;
    st.global.f32 [%out+12], %f6;
    ret;
}
"""


def test_elements_vectors_and_variables_in_functions(launcher):
    (out,) = launcher.launch(SPELLINGS.replace(".hidden ", ""), "spell", [np.zeros(6, np.uint32)], block=(1, 1, 1))
    assert out.tolist() == [5, 9, 0x00010002, 0x00020001, 42, 1]


def test_a_hidden_parameter_is_one_like_others():
    device = EmulatorDevice(1 << 24)
    with Launcher(device) as launcher:
        (out,) = launcher.launch(SPELLINGS, "spell", [np.zeros(6, np.uint32)], block=(1, 1, 1))
    device.close()
    assert out[0] == 5


def test_the_least_and_the_greatest_of_three():
    device = EmulatorDevice(1 << 24, compute_capability=(10, 0))
    values = [np.float32(value) for value in (1.5, -2.0, 0.0, -0.0, np.inf, np.nan)]
    with Launcher(device) as launcher:
        for three in itertools.product(values, repeat=3):
            _, out = launcher.launch(LEAST, "least", [np.array(three), np.zeros(4, np.float32)], block=(1, 1, 1))
            numbers = [value for value in three if not np.isnan(value)] or [np.float32(np.nan)]
            sizes = [abs(value) for value in numbers]
            least_size = min(sizes) if len(numbers) == 3 else np.nan
            assert_array_equal(out, np.array([min(numbers), max(numbers), least_size, max(sizes)], np.float32))
    device.close()
