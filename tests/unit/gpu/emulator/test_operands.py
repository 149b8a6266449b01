import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import MalformedPtx
from tensorwasm.gpu.emulator.program.program import own
from tensorwasm.ptx.initial import floating_bits, immediate_bits


def test_the_value_of_a_register_shares_no_memory():
    source = np.arange(8, dtype=np.uint32)
    fresh = source + np.uint32(1)
    assert own(fresh, (source,)) is fresh
    frozen = np.arange(8)
    frozen.flags.writeable = False
    for values in (source, source.view(np.int32), source[::2], np.broadcast_to(np.uint32(3), 8), frozen):
        kept = own(values, (source,))
        assert not np.shares_memory(kept, values)
        assert kept.flags.writeable
        assert kept.flags.c_contiguous
        assert kept.tolist() == values.tolist()


@given(st.integers(-(2**63), 2**64 - 1))
def test_integers_are_two_s_complement_of_any_width(value):
    for bits in (8, 16, 32, 64):
        assert immediate_bits(value, f"u{bits}") == immediate_bits(value, f"s{bits}") == value % 2**bits


@given(st.integers(-(2**63), 2**64 - 1))
def test_integers_in_place_of_floating_point_numbers_have_their_value(value):
    assert struct.unpack("<d", immediate_bits(value, "f64").to_bytes(8, "little"))[0] == float(value)


@given(st.floats(allow_nan=False))
def test_constants_change_precision_by_rounding(value):
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    assert floating_bits(bits, 64, "b64") == bits
    with np.errstate(over="ignore"):
        assert floating_bits(bits, 64, "f32") == int(np.float32(value).view(np.uint32))


def test_a_float_is_no_half():
    with pytest.raises(MalformedPtx):
        floating_bits(0, 32, "f16")
