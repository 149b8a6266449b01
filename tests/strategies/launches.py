"""Kernels and what guests ask of them: mostly what fits, with everything that does not around the borders."""

from __future__ import annotations

from hypothesis import strategies as st

from fakes.argv import encode_argv
from strategies.argv import around, records
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.guest.imports.argv import Arg, NumberArg, WindowArg
from tensorwasm.values import KernelParam, KernelSignature, LaunchConfig

BUFFERS = {1: 64, 2: 1 << 20, 257: 1 << 33, (1 << 63) - 1: 8, 1 << 32: 4096}
"""Sizes of the buffers that there are, by handle; 1 and 257 share a row, which the latter has."""
HIDDEN = 1


@st.composite
def params(draw: st.DrawFn) -> KernelParam:
    """Return a parameter; most can be passed as a record."""
    if draw(st.integers(0, 40)) == 0:
        return KernelParam("odd", draw(st.sampled_from([1, 2, 8, 16])), 1, scalar=draw(st.booleans()))
    pointer = draw(st.booleans())
    size = 8 if pointer else draw(st.sampled_from([4, 8]))
    return KernelParam("p", size, size, pointer=pointer, access_align_bytes=draw(st.sampled_from([1, 4, 8, 16])))


signatures = st.builds(
    KernelSignature,
    st.just("kernel"),
    st.lists(params(), max_size=6).map(tuple),
    max_threads=st.sampled_from([1024, 1024, 512, 64]),
    required_block=st.sampled_from([None, None, None, (32, 1, 1)]),
)

_axes = st.sampled_from([1, 2, 32, 1024, 1025, 0, 65535, 65536, (1 << 31) - 1, -(1 << 31), -1])
_small = st.sampled_from([1, 1, 2, 4])
_shared = st.sampled_from([0, 1024, 227 << 10])
_any_shared = st.sampled_from([(227 << 10) + 1, 228 << 10, (228 << 10) + 1, -(1 << 31), -1])


@st.composite
def geometries(draw: st.DrawFn, signature: KernelSignature) -> LaunchConfig:
    """Return a geometry as bodies of imports get it, numbers signed. Most fit the kernel."""
    grid = draw(st.tuples(_small, _small, _small))
    block = signature.required_block or draw(st.tuples(_small, _small, _small))
    shared = draw(_shared)
    match draw(st.integers(0, 11)):
        case 0:
            grid = draw(st.tuples(_axes, _axes, _axes))
        case 1:
            block = draw(st.tuples(_axes, _axes, _axes))
        case 2:
            shared = draw(_any_shared)
    return LaunchConfig(grid, block, shared)


def _numbers(size_bytes: int) -> st.SearchStrategy[NumberArg]:
    kinds = st.sampled_from(["i32", "f32", "u32"] if size_bytes == 4 else ["i64", "f64", "u64"])
    return st.builds(NumberArg, kinds, st.binary(min_size=size_bytes, max_size=size_bytes))


@st.composite
def _windows(draw: st.DrawFn, align: int, memory_bytes: int) -> WindowArg:
    """Return a window inside the memory, at its start, its end, a border in between or anywhere."""
    length = draw(st.sampled_from([1, 16, 4096, 1 << 16]))
    last = memory_bytes - length
    at = draw(st.sampled_from([0, last]) | st.integers(0, last) | around(32))
    return WindowArg(min(at, last) & ~(align - 1), length)


@st.composite
def _places(draw: st.DrawFn, align: int) -> BufferOffset:
    handle = draw(st.sampled_from([handle for handle in BUFFERS if handle != HIDDEN]))
    return BufferOffset(handle, draw(st.integers(0, BUFFERS[handle] - 1)) & ~(align - 1))


@st.composite
def fitting(draw: st.DrawFn, param: KernelParam, memory_bytes: int) -> Arg:
    """Return a record that fills a parameter; one of twenty is anything at all, or just outside."""
    if draw(st.integers(0, 19)) == 0 or param.size_bytes not in (4, 8):
        handle = draw(st.sampled_from(list(BUFFERS)))
        outside = st.builds(BufferOffset, st.just(handle), st.sampled_from([BUFFERS[handle], 1 << 53, 1 << 63]))
        empty = st.builds(WindowArg, st.integers(0, memory_bytes) | around(32), st.just(0))
        return draw(records | outside | empty)
    if param.pointer:
        align = param.access_align_bytes
        return draw(_windows(align, memory_bytes) | _places(align))
    wide = _windows(1, memory_bytes) if param.size_bytes == 8 else st.nothing()
    return draw(_numbers(param.size_bytes) | wide)


@st.composite
def argvs(draw: st.DrawFn, signature: KernelSignature, memory_bytes: int) -> bytes:
    """Return records for a kernel, whole or damaged."""
    args = [draw(fitting(param, memory_bytes)) for param in signature.params]
    data = encode_argv(args)
    match draw(st.integers(0, 25)):
        case 0:
            return data[: draw(st.integers(0, len(data)))]
        case 1:
            return data + draw(st.binary(min_size=1, max_size=20))
        case 2:
            return encode_argv([*args, NumberArg("i32", b"\0" * 4)])
        case 3:
            at = draw(st.integers(0, max(0, len(data) - 1)))
            return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        case _:
            return data


small_windows = st.lists(st.builds(WindowArg, st.integers(0, 3000), st.integers(1, 600)), min_size=1, max_size=12)
"""Windows at the start of memory, many of which overlap or touch."""
