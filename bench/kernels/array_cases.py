"""Cases of kernels on arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from case import Array, Buffer, Case, blocks_for, cuda_case, floats, zeros

GRID_STRIDE_BLOCKS: Final = 1056
"""Blocks of a grid-stride loop in the large cases: 8 for each of 132 multiprocessors."""


def saxpy(large: bool) -> Case:
    n = 1 << 25 if large else 10_001
    return cuda_case(
        "saxpy",
        (blocks_for(n, 256), 1, 1),
        (256, 1, 1),
        lambda r: [np.int32(n), np.float32(-1.7), Buffer(floats(r, n)), Buffer(floats(r, n), written=True)],
        lambda _n, a, x, y: {3: a * x + y},
        rtol=1e-6,
        atol=1e-6,
    )


def copy4(large: bool) -> Case:
    n = 1 << 24 if large else 5000
    return cuda_case(
        "copy4",
        (GRID_STRIDE_BLOCKS if large else 8, 1, 1),
        (256, 1, 1),
        lambda r: [Buffer(floats(r, n, 4)), zeros(n, 4), np.int32(n)],
        lambda source, _out, _n: {1: source},
    )


def reduce_sum(large: bool) -> Case:
    n = 1 << 26 if large else 20_000
    return cuda_case(
        "reduce_sum",
        (GRID_STRIDE_BLOCKS if large else 8, 1, 1),
        (256, 1, 1),
        # Small integers: every partial sum is exact, so the order of the atomics does not show.
        lambda r: [Buffer(r.integers(-2, 3, n, np.int8).astype(np.float32)), zeros(1), np.int32(n)],
        lambda values, *_: {1: values.sum(dtype=np.float64, keepdims=True).astype(np.float32)},
    )


def hist_shared(large: bool) -> Case:
    n = 1 << 25 if large else 5000
    return cuda_case(
        "hist_shared",
        (GRID_STRIDE_BLOCKS if large else 4, 1, 1),
        (256, 1, 1),
        lambda r: [Buffer(r.integers(0, 256, (n, 4), np.uint8)), zeros(256, dtype=np.uint32), np.int32(n)],
        lambda values, *_: {1: np.bincount(values.ravel(), minlength=256).astype(np.uint32)},
    )


def hist_global(large: bool) -> Case:
    n, bins = (1 << 24, 1 << 16) if large else (10_000, 500)
    return cuda_case(
        "hist_global",
        (GRID_STRIDE_BLOCKS if large else 8, 1, 1),
        (256, 1, 1),
        lambda r: [
            Buffer(r.integers(0, bins + bins // 8, n, np.uint32)),
            zeros(bins, dtype=np.uint32),
            np.int32(n),
            np.uint32(bins),
        ],
        lambda v, *_: {1: np.bincount(np.minimum(v, bins - 1), minlength=bins).astype(np.uint32)},
    )


def gather(large: bool) -> Case:
    n, count = (1 << 24, 1 << 25) if large else (10_000, 3000)
    return cuda_case(
        "gather",
        (blocks_for(n, 256), 1, 1),
        (256, 1, 1),
        lambda r: [Buffer(r.integers(0, count, n, np.int32)), Buffer(floats(r, count)), zeros(n), np.int32(n)],
        lambda index, source, *_: {2: source[index]},
    )


def nbody(large: bool) -> Case:
    n = 16_384 if large else 256

    def reference(bodies: Array, out: Array, _n: int, softening: Any) -> dict[int, Array]:
        expected = np.zeros_like(out)
        for first in range(0, n, 512):
            distance = bodies[None, :, :3] - bodies[first : first + 512, None, :3]
            square = np.einsum("ijk,ijk->ij", distance, distance) + softening
            scale = bodies[None, :, 3] / (square * np.sqrt(square))
            expected[first : first + 512, :3] = np.einsum("ijk,ij->ik", distance, scale)
        return {1: expected}

    return cuda_case(
        "nbody",
        (n // 128, 1, 1),
        (128, 1, 1),
        lambda r: [Buffer(np.abs(floats(r, n, 4))), zeros(n, 4), np.int32(n), np.float32(0.01)],
        reference,
        rtol=1e-4,
        atol=1e-5 * n,
    )


def bitonic_sort(large: bool) -> Case:
    blocks = 16_384 if large else 2
    return cuda_case(
        "bitonic_sort",
        (blocks, 1, 1),
        (512, 1, 1),
        lambda r: [Buffer(r.integers(0, 1 << 32, (blocks, 1024), np.uint32), written=True)],
        lambda keys: {0: np.sort(keys, axis=1)},
    )


def scan(large: bool) -> Case:
    blocks = 1 << 15 if large else 8

    def reference(values: Array, *_: Any) -> dict[int, Array]:
        sums = np.cumsum(values, axis=1, dtype=np.int32)
        return {1: sums, 2: sums[:, -1]}

    return cuda_case(
        "scan",
        (blocks, 1, 1),
        (256, 1, 1),
        lambda r: [
            Buffer(r.integers(-1000, 1000, (blocks, 1024), np.int32)),
            zeros(blocks, 1024, dtype=np.int32),
            zeros(blocks, dtype=np.int32),
        ],
        reference,
    )


def cas_loops(large: bool) -> Case:
    n, keys = (1 << 21, 1 << 16) if large else (3000, 400)

    def reference(key: Array, values: Array, _sums: Array, maxima: Array, _n: int) -> dict[int, Array]:
        maxima = maxima.copy()
        np.maximum.at(maxima, key, values)
        return {2: np.bincount(key, values, keys), 3: maxima}

    return cuda_case(
        "cas_loops",
        (blocks_for(n, 128), 1, 1),
        (128, 1, 1),
        # Multiples of 1/8: the sums of doubles are exact.
        lambda r: [
            Buffer(r.integers(0, keys, n, np.int32)),
            Buffer((r.integers(-800, 800, n, np.int32) / 8).astype(np.float32)),
            zeros(keys, dtype=np.float64),
            zeros(keys),
            np.int32(n),
        ],
        reference,
    )


def hash_insert(large: bool) -> Case:
    n, slots = (1 << 22, 1 << 23) if large else (3000, 4096)
    return cuda_case(
        "hash_insert",
        (blocks_for(n, 256), 1, 1),
        (256, 1, 1),
        lambda r: [
            Buffer(r.integers(0, n // 2, n, np.uint32)),
            Buffer(np.full(slots, 0xFFFF_FFFF, np.uint32), written=True),
            zeros(slots, dtype=np.uint32),
            zeros(1, dtype=np.uint32),
            np.int32(n),
            np.uint32(slots - 1),
        ],
        # The slots of keys that collide depend on the order of threads.
        lambda keys, *_: {3: np.array([len(np.unique(keys))], np.uint32)},
    )


def device_variables(large: bool) -> Case:
    n = 1 << 25 if large else 10_000
    digits = "3141592653589793238462643383279502884197169399375105820974944592"

    def reference(values: Array, *_: Any) -> dict[int, Array]:
        table = np.array([*map(int, digits)], np.int32)
        weights = np.array([1, -2, 3, -4, 5, -6, 7, -8], np.int32)
        out = table[values % 64] * weights[values // 64 % 8]
        return {1: out, 2: out.sum(dtype=np.int32, keepdims=True)}

    return cuda_case(
        "device_variables",
        (GRID_STRIDE_BLOCKS if large else 6, 1, 1),
        (256, 1, 1),
        lambda r: [
            Buffer(r.integers(0, 1 << 32, n, np.uint32)),
            zeros(n, dtype=np.int32),
            zeros(1, dtype=np.int32),
            np.int32(n),
        ],
        reference,
    )


def local_array(large: bool) -> Case:
    n = 1 << 20 if large else 500

    def reference(values: Array, *_: Any) -> dict[int, Array]:
        counts = np.stack([(values & 7 == low).sum(axis=0) for low in range(8)])
        return {1: np.sort(values, axis=0)[8], 2: counts.argmax(axis=0).astype(np.uint8)}

    return cuda_case(
        "local_array",
        (blocks_for(n, 128), 1, 1),
        (128, 1, 1),
        lambda r: [
            Buffer(r.integers(-(1 << 31), 1 << 31, (16, n), np.int32)),
            zeros(n, dtype=np.int32),
            zeros(n, dtype=np.uint8),
            np.int32(n),
        ],
        reference,
    )


KERNELS: Final = (
    saxpy,
    copy4,
    reduce_sum,
    hist_shared,
    hist_global,
    gather,
    nbody,
    bitonic_sort,
    scan,
    cas_loops,
    hash_insert,
    device_variables,
    local_array,
)
