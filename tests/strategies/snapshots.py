"""Saved instances: any that can be written, not only such as can be restored."""

from __future__ import annotations

from hypothesis import strategies as st

from tensorwasm.saved import (
    PAGE_BYTES,
    SavedBuffer,
    SavedGlobal,
    SavedInstance,
    SavedKernel,
    SavedMemory,
    SavedRun,
    SavedSession,
    SavedTable,
)
from tensorwasm.values import MEMORY_KINDS, WASM_PAGE_BYTES

U32 = st.integers(0, (1 << 32) - 1) | st.integers(0, 4)
U63 = st.integers(0, (1 << 63) - 1) | st.integers(0, 4)
INDICES = st.lists(U32, max_size=4).map(tuple)
NUMBERS = st.lists(U63, max_size=4).map(tuple)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
WIDTHS = {"i32": 32, "i64": 64, "f32": 32, "f64": 64, "v128": 128, "funcref": 32}
HASHES = st.binary(min_size=32, max_size=32)


@st.composite
def data(draw, length):
    """Bytes of a run: a few patterns, zeros among them."""
    unit = draw(st.binary(min_size=1, max_size=5))
    return (unit * (length // len(unit) + 1))[:length]


@st.composite
def runs(draw, size_bytes, *, whole_pages=False):
    """Runs of a memory or buffer, ascending and apart; at pages' ends or anywhere."""
    step = PAGE_BYTES if whole_pages or draw(st.booleans()) else 1
    edges = sorted(draw(st.sets(st.integers(0, -(-size_bytes // step)), max_size=8)))
    spans = [(a * step, min(b * step, size_bytes)) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    return tuple(SavedRun(start, draw(data(end - start))) for start, end in spans if end > start)


@st.composite
def memories(draw):
    size_bytes = draw(st.integers(0, 4)) * WASM_PAGE_BYTES
    return SavedMemory(size_bytes, draw(runs(size_bytes)))


@st.composite
def globals_(draw):
    found = []
    for index in sorted(draw(st.sets(U32, max_size=5))):
        kind = draw(st.sampled_from(sorted(WIDTHS)))
        bits = st.integers(0, (1 << WIDTHS[kind]) - 1)
        found.append(SavedGlobal(index, kind, draw(bits | st.none() if kind == "funcref" else bits)))
    return tuple(found)


@st.composite
def tables(draw):
    functions = st.lists(st.none() | st.integers(0, (1 << 32) - 2), max_size=6).map(tuple)
    return tuple(SavedTable(index, draw(functions)) for index in sorted(draw(st.sets(U32, max_size=3))))


@st.composite
def buffers(draw):
    found = []
    for handle in sorted(draw(st.sets(st.integers(1, (1 << 63) - 1), max_size=3))):
        size_bytes = draw(st.sampled_from([0, 1, 100, PAGE_BYTES, PAGE_BYTES + 1, 70_000]))
        found.append(SavedBuffer(handle, size_bytes, draw(runs(size_bytes))))
    return tuple(found)


SESSIONS = st.builds(
    SavedSession,
    buffers(),
    st.lists(st.builds(SavedKernel, U63, st.binary(max_size=60), NAMES), max_size=3).map(tuple),
    NUMBERS,
    NUMBERS,
    st.lists(st.tuples(NAMES, U63), max_size=3).map(tuple),
    st.sampled_from(MEMORY_KINDS),
)

INSTANCES = st.builds(
    SavedInstance,
    HASHES,
    st.lists(memories(), max_size=2).map(tuple),
    globals_(),
    tables(),
    INDICES,
    INDICES,
    st.binary(max_size=200),
    st.lists(NAMES, max_size=3).map(tuple),
    st.none() | SESSIONS,
    st.none(),
    U63,
)
