import ctypes

from hypothesis import given
from hypothesis import strategies as st

from fakes.driver import FakeDriver, Handle
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.functions import Function
from tensorwasm.values import KernelParam, KernelSignature


def kernel(sizes: list[int]) -> Function:
    fake = FakeDriver()
    fake.stack().append(Handle("context", 1))
    params = tuple(KernelParam(f"p{at}", size, 1) for at, size in enumerate(sizes))
    return Function(Driver(fake), Handle("function", 2), KernelSignature("k", params))


@given(st.lists(st.binary(min_size=1, max_size=70), max_size=128))
def test_every_pointer_points_at_its_value_aligned_and_apart(args):
    packed = kernel([len(arg) for arg in args]).pack(args)
    pointers = (ctypes.c_uint64 * len(args)).from_address(packed.address)
    assert [ctypes.string_at(pointer, len(arg)) for pointer, arg in zip(pointers, args, strict=True)] == args
    assert all(pointer % 8 == packed.address % 8 for pointer in pointers)
    ends = [pointer + len(arg) for pointer, arg in zip(pointers, args, strict=True)]
    assert all(end <= begin for end, begin in zip(ends, list(pointers)[1:], strict=False))


def test_two_launches_never_share_memory():
    function = kernel([8])
    one, two = function.pack([b"11111111"]), function.pack([b"22222222"])
    values = [ctypes.string_at(ctypes.c_uint64.from_address(packed.address).value, 8) for packed in (one, two)]
    assert values == [b"11111111", b"22222222"]
