"""The ways to write an operand: constants, sinks, vectors to pack and unpack, registers wider than the type.

Source: PTX ISA 4.5 (constants), 6 (operands), 9.7.9.3 (mov), 9.7.9.21 (cvt).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from strategies.lanes import LaneKernel, module, random_bits

LANES = 32


@pytest.fixture
def random():
    return np.random.default_rng(11)


def run(launcher, sources, results, body, *inputs, before=(), target="sm_70"):
    kernel = LaneKernel("operands", sources, results, body)
    return launcher.run_lanes(kernel, list(inputs), lanes=LANES, text=module([*before, kernel], target))


# --------------------------------------------------------------------------------------------- constants

INTEGERS = {
    "7": 7,
    "-7": -7,
    "0x1F": 31,
    "0X1fU": 31,
    "017": 15,
    "0b101": 5,
    "2147483648": 1 << 31,
    "0xFFFFFFFFFFFFFFFF": -1,
    "9223372036854775807": (1 << 63) - 1,
    "(3 + 4) * 5": 35,
    "1 << 4 | 3": 19,
    "~0": -1,
    "-(5 - 8)": 3,
    "17 / 5 * 10 + 17 % 5": 32,
    "(3 > 2) ? 10 : 20": 10,
    "!5 + (2 == 2)": 1,
    "0x80 ^ 0xFF & 0x0F": 0x8F,
    "(.s64) -16 >> 2": -4,
    "(.u64) -16 >> 60": 15,
}


@pytest.mark.parametrize("text", INTEGERS)
def test_an_integer_constant(launcher, text):
    (got,) = run(launcher, (), ("b64",), f"mov.b64 %d0, {text};")
    assert_array_equal(got.view(np.int64), INTEGERS[text])


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1.5", 0x3FC00000),
        ("-2.0", 0xC0000000),
        ("1e3", 0x447A0000),
        ("0f7F800000", 0x7F800000),
        ("0F80000000", 0x80000000),
        ("0f7fc12345", 0x7FC12345),
        ("0.1", 0x3DCCCCCD),
    ],
)
def test_a_single_constant_keeps_its_bits(launcher, text, bits):
    assert_array_equal(run(launcher, (), ("b32",), f"mov.f32 %d0, {text};")[0], bits)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("0.1", 0x3FB999999999999A),
        ("-1.25E-2", 0xBF8999999999999A),
        ("0d7FF8000000000001", 0x7FF8000000000001),
        ("0d8000000000000000", 1 << 63),
    ],
)
def test_a_double_constant_keeps_its_bits(launcher, text, bits):
    assert_array_equal(run(launcher, (), ("b64",), f"mov.f64 %d0, {text};")[0], bits)


def test_constants_as_operands_of_narrow_and_signed_instructions(launcher, random):
    data = random_bits(random, "b16", LANES)
    body = """
        add.s16 %d0, %a0, -1;
        setp.lt.s16 %d1, %a0, -100;
        mul.wide.s16 %d2, %a0, -3;
        and.b16 %d3, %a0, 0xF0F0;
        shl.b16 %d4, %a0, 3;
    """
    added, less, product, masked, shifted = run(launcher, ("b16",), ("b16", "pred", "b32", "b16", "b16"), body, data)
    signed = data.view(np.int16).astype(np.int64)
    assert_array_equal(added, data - np.uint16(1))
    assert_array_equal(less, signed < -100)
    assert_array_equal(product.view(np.int32), signed * -3)
    assert_array_equal(masked, data & 0xF0F0)
    assert_array_equal(shifted, data << np.uint16(3))


# ------------------------------------------------------------------------------------ packing, unpacking


def test_mov_packs_and_unpacks(launcher, random):
    low, high = (random_bits(random, "b16", LANES) for _ in range(2))
    words = random_bits(random, "b32", LANES)
    body = """
        mov.b32 %d0, {%a0, %a1};
        mov.b32 {%d1, %d2}, %a2;
        mov.b64 %d3, {%a2, %d0};
        mov.b64 {%r0, %r1}, %d3;
        add.u32 %d4, %r0, %r1;
        mov.b64 %d5, {%a0, %a1, %d1, %d2};
        mov.b64 {%a0, %d6, %d7, %a1}, %d5;
    """
    types = ("b32", "b16", "b16", "b64", "b32", "b64", "b16", "b16")
    packed, first, second, double, total, quad, one, two = run(
        launcher, ("b16", "b16", "b32"), types, body, low, high, words
    )
    expected = low.astype(np.uint32) | high.astype(np.uint32) << 16
    assert_array_equal(packed, expected)
    assert_array_equal([first, second], [words & 0xFFFF, words >> 16])
    assert_array_equal(double, words.astype(np.uint64) | expected.astype(np.uint64) << 32)
    assert_array_equal(total, words + expected)
    assert_array_equal(quad, expected.astype(np.uint64) | words.astype(np.uint64) << 32)
    assert_array_equal([one, two], [high, words & 0xFFFF])


def test_mov_packs_bytes(launcher, random):
    data = [random_bits(random, "b8", LANES) for _ in range(4)]
    body = """
        {
            .reg .b8 %c<4>; .reg .b8 %e<4>;
            cvt.u8.u16 %c0, %a0; cvt.u8.u16 %c1, %a1; cvt.u8.u16 %c2, %a2; cvt.u8.u16 %c3, %a3;
            mov.b32 %d0, {%c3, %c2, %c1, %c0};
            mov.b32 {%e0, %e1, %e2, %e3}, %d0;
            cvt.u16.u8 %d1, %e2;
        }
    """
    packed, third = run(launcher, ("u8",) * 4, ("b32", "b16"), body, *data)
    assert_array_equal(packed, np.stack(data[::-1], axis=1).view(np.uint32).ravel())
    assert_array_equal(third, data[1])


def test_a_sink_operand_discards_a_result(launcher, random):
    data = random_bits(random, "b32", LANES)
    body = """
        setp.lt.and.u32 %d0|_, %a0, 0x80000000, %p9;
        mov.b32 {_, %d1}, %a0;
        mov.b64 {%r0, _}, 77;
        add.u32 %d2, %r0, 0;
        ld.param.u64 %rd0, [p0];
        mad.wide.u32 %rd0, %lane, 4, %rd0;
        atom.global.add.u32 _, [%rd0], 1;
        ld.global.u32 %d3, [%rd0];
    """.replace("setp.lt.and", "setp.eq.u32 %p9, 0, 0; setp.lt.and").replace("77;", "%rd9;")
    body = "mov.u64 %rd9, 0x500000004D;" + body
    less, upper, low, counted = run(launcher, ("b32",), ("pred", "b16", "b32", "b32"), body, data)
    assert_array_equal(less, data < 1 << 31)
    assert_array_equal(upper, data >> 16)
    assert_array_equal(low, 0x4D)
    assert_array_equal(counted, data + np.uint32(1))


def test_negated_predicates_as_operands(launcher, random):
    flags, data = random.integers(0, 2, LANES, dtype=np.uint32), random_bits(random, "b32", LANES)
    body = """
        setp.gt.or.u32 %d0, %a1, 0x80000000, !%a0;
        setp.gt.xor.u32 %d1|%d2, %a1, 0x80000000, !%a0;
        not.pred %p0, %a0;
        selp.b32 %d3, 1, 2, %p0;
    """
    either, one, other, chosen = run(launcher, ("pred", "b32"), ("pred", "pred", "pred", "b32"), body, flags, data)
    greater, negated = data > 1 << 31, flags == 0
    assert_array_equal(either, greater | negated)
    assert_array_equal(one, greater ^ negated)
    assert_array_equal(other, ~greater ^ negated)
    assert_array_equal(chosen, np.where(negated, 1, 2))


# ------------------------------------------------------------------------------------- wider registers


@pytest.mark.parametrize("to", ["u8", "s8", "u16", "s16"])
@pytest.mark.parametrize("sat", ["", ".sat"])
def test_cvt_extends_its_result_to_a_wider_register(launcher, random, to, sat):
    data = random_bits(random, "b32", LANES)
    data[:8] = [0, 1, 127, 128, 255, 256, 0xFFFFFF80, 0xFFFFFFFF]
    (got,) = run(launcher, ("b32",), ("b32",), f"cvt{sat}.{to}.s32 %d0, %a0;", data)
    values, kind = data.view(np.int32).astype(np.int64), np.dtype(f"{'i' if to[0] == 's' else 'u'}{int(to[1:]) // 8}")
    if sat:
        values = np.clip(values, np.iinfo(kind).min, np.iinfo(kind).max)
    assert_array_equal(got.view(np.int32), values.astype(kind).astype(np.int32))


def test_cvt_and_st_read_the_low_bits_of_a_wider_register(launcher, random):
    data = random_bits(random, "b64", LANES)
    body = """
        cvt.s32.s8 %d0, %a0;
        cvt.u64.u16 %d1, %a0;
        cvt.rn.f32.u8 %d2, %a0;
        ld.param.u64 %rd0, [p0];
        mad.wide.u32 %rd0, %lane, 8, %rd0;
        st.global.u16 [%rd0+4], %a0;
        ld.global.b64 %d3, [%rd0];
    """
    byte, half, real, stored = run(launcher, ("b64",), ("b32", "b64", "b32", "b64"), body, data)
    assert_array_equal(byte.view(np.int32), (data & 0xFF).astype(np.uint8).view(np.int8))
    assert_array_equal(half, data & 0xFFFF)
    assert_array_equal(real.view(np.float32), data & 0xFF)
    assert_array_equal(stored, data & 0xFFFF0000FFFFFFFF | (data & 0xFFFF) << np.uint64(32))


# ----------------------------------------------------------------------------------------- addresses


def test_addresses_of_every_shape(launcher, random):
    data = random_bits(random, "b32", LANES)
    before = ".global .align 8 .u32 table[4] = {11, 22, 33, 44}; .global .u64 pointer = generic(table) + 8;"
    body = """
        mov.u64 %rd0, table;
        ld.global.u32 %d0, [%rd0+-0];
        ld.global.u32 %d1, [table+12];
        mov.u64 %rd1, table+4;
        ld.global.u32 %d2, [%rd1];
        ld.global.u64 %rd2, [pointer];
        ld.u32 %d3, [%rd2];
        ld.global.v2.u32 {%d4, _}, [table + 2 * 4];
    """
    got = run(launcher, ("b32",), ("b32",) * 5, body, data, before=[before])
    assert_array_equal(got, np.repeat([[11], [44], [22], [33], [33]], LANES, axis=1))


def test_a_register_may_be_named_without_a_percent_sign_and_declared_twice_in_scopes(launcher, random):
    data = random_bits(random, "b32", LANES)
    body = """
        .reg .u32 value, $other;
        add.u32 value, %a0, 1;
        { .reg .f32 value; mov.f32 value, 1.0; }
        mov.u32 $other, value;
        mov.u32 %d0, $other;
    """
    assert_array_equal(run(launcher, ("b32",), ("b32",), body, data)[0], data + np.uint32(1))
