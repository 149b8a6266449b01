"""Kernel argument records, sound and damaged."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.guest.imports.argv import NumberArg, WindowArg

EDGES = [0, 1 << 31, 1 << 32, 1 << 53, 1 << 63, 1 << 64]


def around(bits: int) -> st.SearchStrategy[int]:
    """Return unsigned numbers of that many bits, many of them beside a border."""
    top = 1 << bits
    edges = [edge for edge in EDGES if edge <= top]
    near = st.builds(lambda edge, by: (edge + by) % top, st.sampled_from(edges), st.integers(-17, 17))
    return near | st.integers(0, top - 1)


def _number(kind: str, layout: str, values: st.SearchStrategy) -> st.SearchStrategy[NumberArg]:
    return values.map(lambda value: NumberArg(kind, struct.pack(layout, value)))


numbers = st.one_of(
    _number("i32", "<i", st.integers(-(1 << 31), (1 << 31) - 1)),
    _number("i64", "<q", st.integers(-(1 << 63), (1 << 63) - 1)),
    _number("f32", "<f", st.floats(width=32)),
    _number("f64", "<d", st.floats()),
    _number("u32", "<I", around(32)),
    _number("u64", "<Q", around(64)),
)
windows = st.builds(WindowArg, around(32), around(32))
buffers = st.builds(BufferOffset, around(64), around(64))
records = numbers | windows | buffers
"""One record."""
