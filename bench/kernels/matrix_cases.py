"""Cases of kernels on matrices and images."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from case import Argument, Array, Buffer, Case, blocks_for, cuda_case, floats, zeros


def _product(a: Array, b: Array, *_: Any) -> dict[int, Array]:
    return {2: a.astype(np.float32) @ b.astype(np.float32)}


def gemm_naive(large: bool) -> Case:
    m, n, k = (1024, 1024, 1024) if large else (40, 72, 30)
    return cuda_case(
        "gemm_naive",
        (blocks_for(n, 32), blocks_for(m, 8), 1),
        (32, 8, 1),
        lambda r: [Buffer(floats(r, m, k)), Buffer(floats(r, k, n)), zeros(m, n), *map(np.int32, (m, n, k))],
        _product,
        atol=1e-4,
    )


def gemm_tiled(large: bool) -> Case:
    m, n, k = (1024, 1024, 1024) if large else (40, 72, 50)
    return cuda_case(
        "gemm_tiled",
        (blocks_for(n, 16), blocks_for(m, 16), 1),
        (16, 16, 1),
        lambda r: [Buffer(floats(r, m, k)), Buffer(floats(r, k, n)), zeros(m, n), *map(np.int32, (m, n, k))],
        _product,
        atol=1e-4,
    )


def gemm_blocked(large: bool) -> Case:
    m, n, k = (2048, 2048, 2048) if large else (128, 256, 24)
    return cuda_case(
        "gemm_blocked",
        (n // 128, m // 128, 1),
        (256, 1, 1),
        lambda r: [Buffer(floats(r, m, k)), Buffer(floats(r, k, n)), zeros(m, n), np.int32(n), np.int32(k)],
        _product,
        atol=2e-4,
    )


def halves(random: np.random.Generator, *shape: int) -> Buffer:
    """Draw halves of few bits: their products are exact, and so are sums of up to 8192 of them in any order."""
    return Buffer((random.integers(-8, 9, shape, np.int8) / np.float16(8)).astype(np.float16))


def gemm_wmma(large: bool) -> Case:
    m, n, k = (2048, 2048, 2048) if large else (128, 64, 96)
    return cuda_case(
        "gemm_wmma",
        (n // 64, m // 64, 1),
        (128, 1, 1),
        lambda r: [halves(r, m, k), halves(r, k, n), zeros(m, n), np.int32(n), np.int32(k)],
        _product,
    )


def gemm_mma(large: bool) -> Case:
    m, n, k = (2048, 2048, 4096) if large else (128, 64, 96)
    return cuda_case(
        "gemm_mma",
        (n // 64, m // 64, 1),
        (128, 1, 1),
        lambda r: [halves(r, m, k), halves(r, k, n), zeros(m, n), np.int32(n), np.int32(k)],
        _product,
    )


def matvec_f64(large: bool) -> Case:
    rows, columns = (8192, 4096) if large else (20, 600)
    return cuda_case(
        "matvec_f64",
        (rows, 1, 1),
        (256, 1, 1),
        lambda r: [
            Buffer(r.random((rows, columns))),
            Buffer(r.random(columns)),
            zeros(rows, dtype="f8"),
            np.int32(columns),
        ],
        lambda a, x, *_: {2: a @ x},
        rtol=1e-12,
    )


def spmv(large: bool) -> Case:
    rows, most = (1 << 19, 64) if large else (300, 80)

    def make(random: np.random.Generator) -> list[Argument]:
        starts = np.zeros(rows + 1, np.int32)
        np.cumsum(random.integers(0, most + 1, rows), out=starts[1:])
        count = int(starts[-1])
        columns = random.integers(0, rows, count, np.int32)
        buffers = [Buffer(a) for a in (starts, columns, floats(random, count), floats(random, rows))]
        return [*buffers, zeros(rows), np.int32(rows)]

    def reference(starts: Array, columns: Array, values: Array, x: Array, *_: Any) -> dict[int, Array]:
        row = np.repeat(np.arange(rows), np.diff(starts))
        return {4: np.bincount(row, values * x[columns], rows).astype(np.float32)}

    return cuda_case("spmv", (blocks_for(rows, 8), 1, 1), (256, 1, 1), make, reference, atol=1e-5)


def transpose(large: bool) -> Case:
    width, height = (8192, 4096) if large else (100, 70)
    return cuda_case(
        "transpose",
        (blocks_for(width, 32), blocks_for(height, 32), 1),
        (32, 8, 1),
        lambda r: [Buffer(floats(r, height, width)), zeros(width, height), np.int32(width), np.int32(height)],
        lambda source, *_: {1: source.T},
    )


def stencil5(large: bool) -> Case:
    width, height = (8192, 4096) if large else (100, 70)

    def reference(source: Array, _out: Array, _width: int, _height: int, k: Any) -> dict[int, Array]:
        out = source.copy()
        centre = source[1:-1, 1:-1]
        around = source[1:-1, :-2] + source[1:-1, 2:] + source[:-2, 1:-1] + source[2:, 1:-1]
        out[1:-1, 1:-1] += k * (around - 4 * centre)
        return {1: out}

    return cuda_case(
        "stencil5",
        (blocks_for(width, 32), blocks_for(height, 8), 1),
        (32, 8, 1),
        lambda r: [
            Buffer(floats(r, height, width)),
            zeros(height, width),
            np.int32(width),
            np.int32(height),
            np.float32(0.1),
        ],
        reference,
        atol=1e-6,
    )


def conv7(large: bool) -> Case:
    width, height = (4096, 4096) if large else (70, 50)

    def reference(image: Array, weights: Array, out: Array, *_: Any) -> dict[int, Array]:
        padded = np.pad(image, 3)
        expected = np.zeros_like(out)
        for (y, x), weight in np.ndenumerate(weights):
            expected += weight * padded[y : y + height, x : x + width]
        return {2: expected}

    return cuda_case(
        "conv7",
        (blocks_for(width, 32), blocks_for(height, 8), 1),
        (32, 8, 1),
        lambda r: [
            Buffer(floats(r, height, width)),
            Buffer(floats(r, 7, 7)),
            zeros(height, width),
            np.int32(width),
            np.int32(height),
        ],
        reference,
        atol=1e-5,
    )


def stencil_async(large: bool) -> Case:
    rows, tiles = (2048, 64) if large else (4, 5)

    def reference(source: Array, weights: Array, out: Array, *_: Any) -> dict[int, Array]:
        return {2: sum((w * source[:, i : i + out.shape[1]] for i, w in enumerate(weights)), np.zeros_like(out))}

    return cuda_case(
        "stencil_async",
        (rows, 1, 1),
        (256, 1, 1),
        lambda r: [
            Buffer(floats(r, rows, tiles * 256 + 8)),
            Buffer(floats(r, 9)),
            zeros(rows, tiles * 256),
            np.int32(tiles),
        ],
        reference,
        atol=1e-5,
    )


def softmax_reference(rows: Array) -> Array:
    """Return the softmax of each row."""
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def softmax(large: bool) -> Case:
    rows, columns = (8192, 4096) if large else (6, 700)
    return cuda_case(
        "softmax",
        (rows, 1, 1),
        (256, 1, 1),
        lambda r: [Buffer(8 * floats(r, rows, columns)), zeros(rows, columns), np.int32(columns)],
        lambda values, *_: {1: softmax_reference(values)},
        rtol=1e-5,
        atol=1e-12,
    )


def layernorm_reference(rows: Array, gain: Array, bias: Array, epsilon: Any) -> Array:
    """Return each row at mean 0 and variance 1, scaled and shifted."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    normal = centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + epsilon)
    return np.asarray(normal * gain + bias)


def layernorm(large: bool) -> Case:
    rows, columns = (8192, 4096) if large else (6, 700)
    return cuda_case(
        "layernorm",
        (rows, 1, 1),
        (256, 1, 1),
        lambda r: [
            Buffer(floats(r, rows, columns)),
            Buffer(floats(r, columns)),
            Buffer(floats(r, columns)),
            zeros(rows, columns),
            np.int32(columns),
            np.float32(1e-5),
        ],
        lambda values, gain, bias, _out, _columns, epsilon: {3: layernorm_reference(values, gain, bias, epsilon)},
        shared_bytes=4 * (columns + 32),
        atol=1e-5,
    )


def attention(large: bool) -> Case:
    heads, length = (16, 1024) if large else (2, 64)

    def reference(q: Array, k: Array, v: Array, _out: Array, _length: int, scale: Any) -> dict[int, Array]:
        return {3: softmax_reference(q @ k.transpose(0, 2, 1) * scale) @ v}

    return cuda_case(
        "attention",
        (length // 64, heads, 1),
        (64, 1, 1),
        lambda r: [
            *(Buffer(4 * floats(r, heads, length, 64)) for _ in range(3)),
            zeros(heads, length, 64),
            np.int32(length),
            np.float32(0.125),
        ],
        reference,
        atol=1e-4,
    )


KERNELS: Final = (
    gemm_naive,
    gemm_tiled,
    gemm_blocked,
    gemm_wmma,
    gemm_mma,
    matvec_f64,
    spmv,
    transpose,
    stencil5,
    conv7,
    stencil_async,
    softmax,
    layernorm,
    attention,
)
