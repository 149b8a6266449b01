"""Cases of the texts that Triton wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from case import Argument, Array, Buffer, Case, Dim3, blocks_for, floats, zeros
from matrix_cases import halves, layernorm_reference, softmax_reference

THREADS: Final = 128
"""Threads of a block: four warps, as the compiler was told."""


def triton_case(
    name: str,
    grid: Dim3,
    make: Callable[[np.random.Generator], list[Argument]],
    reference: Callable[..., dict[int, Array]],
    **options: Any,
) -> Case:
    """Return the case of a text whose entry takes two more pointers, to scratch memory that it does not use."""

    def arguments(random: np.random.Generator) -> list[Argument]:
        return [*make(random), np.uint64(0), np.uint64(0)]

    entry = options.pop("entry", name)
    path = f"compilers/triton-{name}.ptx"
    return Case(f"triton-{name}", path, entry, grid, (THREADS, 1, 1), arguments, reference, **options)


def add(large: bool, name: str = "add", block: int = 1024) -> Case:
    n = 1 << 25 if large else 8 * 1024 - 16
    return triton_case(
        name,
        (blocks_for(n, block), 1, 1),
        lambda r: [Buffer(floats(r, n)), Buffer(floats(r, n)), zeros(n), np.int32(n)],
        lambda x, y, *_: {2: x + y},
        entry="add",
    )


def add_unaligned(large: bool) -> Case:
    return add(large, "add_unaligned", 256)


def softmax(large: bool) -> Case:
    rows, columns = (1 << 15, 1024) if large else (6, 704)
    return triton_case(
        "softmax",
        (rows, 1, 1),
        lambda r: [Buffer(8 * floats(r, rows, columns)), zeros(rows, columns), np.int32(columns), np.int32(columns)],
        lambda x, *_: {1: softmax_reference(x)},
        shared_bytes=16,
        rtol=1e-5,
        atol=1e-12,
    )


def layernorm(large: bool) -> Case:
    rows, columns = (8192, 4096) if large else (6, 704)

    def reference(x: Array, gain: Array, bias: Array, *_: Any) -> dict[int, Array]:
        scale = 1 / np.sqrt(x.var(axis=1) + np.float32(1e-5))
        return {3: layernorm_reference(x, gain, bias, np.float32(1e-5)), 4: x.mean(axis=1), 5: scale}

    return triton_case(
        "layernorm",
        (rows, 1, 1),
        lambda r: [
            Buffer(floats(r, rows, columns)),
            Buffer(floats(r, columns)),
            Buffer(floats(r, columns)),
            zeros(rows, columns),
            zeros(rows),
            zeros(rows),
            np.int32(columns),
            np.int32(columns),
            np.float32(1e-5),
        ],
        reference,
        shared_bytes=16,
        atol=1e-5,
    )


def matmul_f16(large: bool) -> Case:
    m, n, k = (2048, 2048, 2048) if large else (80, 64, 96)
    return triton_case(
        "matmul_f16",
        (blocks_for(m, 64), blocks_for(n, 64), 1),
        lambda r: [halves(r, m, k), halves(r, k, n), zeros(m, n, dtype=np.float16), *map(np.int32, (m, n, k))],
        lambda a, b, *_: {2: (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)},
        entry="matmul",
        shared_bytes=16384,
    )


def matmul_tf32(large: bool) -> Case:
    m, n, k = (1024, 1024, 1024) if large else (50, 33, 41)
    return triton_case(
        "matmul_tf32",
        (blocks_for(m, 32), blocks_for(n, 32), 1),
        # Numbers of few bits, which tf32 holds.
        lambda r: [
            Buffer(halves(r, m, k).array.astype(np.float32)),
            Buffer(halves(r, k, n).array.astype(np.float32)),
            zeros(m, n),
            *map(np.int32, (m, n, k)),
        ],
        lambda a, b, *_: {2: a @ b},
        entry="matmul",
        shared_bytes=8192,
    )


def matmul_s8(large: bool) -> Case:
    m, n, k = (2048, 2048, 2048) if large else (64, 48, 96)
    return triton_case(
        "matmul_s8",
        (blocks_for(m, 32), blocks_for(n, 32), 1),
        lambda r: [
            Buffer(r.integers(-128, 128, (m, k), np.int8)),
            Buffer(r.integers(-128, 128, (k, n), np.int8)),
            zeros(m, n, dtype=np.int32),
            *map(np.int32, (m, n, k)),
        ],
        lambda a, b, *_: {2: (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int32)},
        entry="matmul",
        shared_bytes=4096,
    )


def attention(large: bool) -> Case:
    heads, length = (64, 2048) if large else (2, 128)

    def reference(q: Array, k: Array, v: Array, _out: Array, _length: int, scale: Any, *_: Any) -> dict[int, Array]:
        wide = [each.astype(np.float32) for each in (q, k, v)]
        weights = (softmax_reference(a @ b.T * scale) for a, b in zip(*wide[:2], strict=True))
        return {3: np.stack([weight @ values for weight, values in zip(weights, wide[2], strict=True)])}

    return triton_case(
        "attention",
        (length // 64, heads, 1),
        lambda r: [
            *(Buffer(floats(r, heads, length, 64).astype(np.float16)) for _ in range(3)),
            zeros(heads, length, 64, dtype=np.float16),
            np.int32(length),
            np.float32(0.125),
        ],
        reference,
        shared_bytes=24576,
        atol=3e-3,
    )


def scan(large: bool) -> Case:
    rows = 1 << 15 if large else 4
    return triton_case(
        "scan",
        (rows, 1, 1),
        lambda r: [
            Buffer(r.integers(-1000, 1000, (rows, 1024), np.int32)),
            zeros(rows, 1024, dtype=np.int32),
            np.int32(rows * 1024),
        ],
        lambda x, *_: {1: np.cumsum(x, axis=1, dtype=np.int32)},
        shared_bytes=32,
    )


def sort(large: bool) -> Case:
    rows = 1 << 15 if large else 4
    return triton_case(
        "sort",
        (rows, 1, 1),
        lambda r: [Buffer(r.integers(-(1 << 31), 1 << 31, (rows, 256), np.int32)), zeros(rows, 256, dtype=np.int32)],
        lambda x, *_: {1: np.sort(x, axis=1)},
        shared_bytes=1024,
    )


def histogram(large: bool) -> Case:
    n = 1 << 24 if large else 8000
    return triton_case(
        "histogram",
        (blocks_for(n, 1024), 1, 1),
        lambda r: [Buffer(r.integers(0, 256, n, np.int32)), zeros(256, dtype=np.int32), np.int32(n)],
        lambda x, *_: {1: np.bincount(x, minlength=256).astype(np.int32)},
        shared_bytes=1024,
    )


def reduce(large: bool) -> Case:
    n = 1 << 26 if large else 20_000
    return triton_case(
        "reduce",
        (1056 if large else 4, 1, 1),
        lambda r: [Buffer(r.integers(-2, 3, n, np.int8).astype(np.float32)), zeros(1), np.int32(n)],
        lambda x, *_: {1: x.sum(dtype=np.float64, keepdims=True).astype(np.float32)},
        shared_bytes=16,
    )


def argmax(large: bool) -> Case:
    rows, columns = (1 << 16, 512) if large else (6, 400)
    return triton_case(
        "argmax",
        (rows, 1, 1),
        lambda r: [Buffer(floats(r, rows, columns)), zeros(rows, dtype=np.int32), np.int32(columns)],
        lambda x, *_: {1: x.argmax(axis=1).astype(np.int32)},
        shared_bytes=32,
    )


def embedding(large: bool) -> Case:
    count, rows = (1 << 18, 1 << 17) if large else (40, 30)
    return triton_case(
        "embedding",
        (count, 1, 1),
        lambda r: [Buffer(r.integers(0, rows, count)), Buffer(floats(r, rows, 112)), zeros(count, 112), np.int32(112)],
        lambda index, table, *_: {2: table[index]},
    )


KERNELS: Final = (
    add,
    add_unaligned,
    softmax,
    layernorm,
    matmul_f16,
    matmul_tf32,
    matmul_s8,
    attention,
    scan,
    sort,
    histogram,
    reduce,
    argmax,
    embedding,
)
