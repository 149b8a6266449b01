"""Generators for the guest room: signatures, values that fit them, values that do not, and modules."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

KINDS = ("i32", "i64", "f32", "f64")
BITS = {"i32": 32, "i64": 64, "f32": 32, "f64": 64}


def kinds() -> st.SearchStrategy[str]:
    """Value types that can cross the border."""
    return st.sampled_from(KINDS)


def cells(kind: str) -> st.SearchStrategy[int]:
    """Bit patterns of a type: every one is a value, NaNs with any payload included."""
    edges = [0, 1, (1 << BITS[kind]) - 1, 1 << (BITS[kind] - 1), (1 << (BITS[kind] - 1)) - 1]
    nans = {
        "f32": [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FBFFFFF, 0xFFFFFFFF],
        "f64": [0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, 0xFFF8 << 48, (0x7FF0 << 48) + 1, (1 << 64) - 1],
    }
    return st.sampled_from(edges + nans.get(kind, [])) | st.integers(0, (1 << BITS[kind]) - 1)


def typed_cells() -> st.SearchStrategy[tuple[str, int]]:
    """A type and a bit pattern of it."""
    return kinds().flatmap(lambda kind: st.tuples(st.just(kind), cells(kind)))


def frames(max_size: int = 8) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Typed bit patterns of a whole parameter or result list."""
    return st.lists(typed_cells(), max_size=max_size)


def f32_values() -> st.SearchStrategy[float]:
    """Numbers that an f32 holds exactly, no NaN."""
    patterns = st.integers(0, 0xFFFFFFFF).filter(lambda bits: bits & 0x7FFFFFFF <= 0x7F800000)
    return patterns.map(lambda bits: struct.unpack("<f", struct.pack("<I", bits))[0])


def unfit_values() -> st.SearchStrategy[Any]:
    """Values that no parameter takes."""
    return st.one_of(
        st.booleans(),
        st.none(),
        st.lists(st.integers(), max_size=2),
        st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
        st.integers(min_value=1 << 64),
        st.integers(max_value=-(1 << 63) - 1),
        st.sampled_from(["", " ", "1_0", "0x", "--1", "nan:", "nan:0x0", "nan:0xg", "one", "1e", "1" * 10_000, "½"]),
    ).filter(lambda value: not isinstance(value, int) or isinstance(value, bool) or not _holds_exactly(value))


def _holds_exactly(value: int) -> bool:
    """Whether a float type holds the integer: then an f32 or f64 parameter takes it."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def identity_wat(signature: list[str]) -> str:
    """A module whose export ``same`` returns its parameters."""
    types = " ".join(signature)
    gets = " ".join(f"(local.get {index})" for index in range(len(signature)))
    params = f"(param {types})" if signature else ""
    results = f"(result {types})" if signature else ""
    return f'(module (func (export "same") {params} {results} {gets}))'
