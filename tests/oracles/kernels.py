"""What each example kernel should compute, in NumPy, written from its description and not from its code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def fma_f32(a: F32, b: F32, c: F32) -> F32:
    """Return a * b + c rounded once, for finite numbers whose result is a normal f32.

    The product of two f32 is exact in f64. The sum is rounded to odd there, which keeps what the final rounding needs.
    """
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    virtual = total - product
    lost = (product - (total - virtual)) + (addend - virtual)
    even = total.view(np.int64) & 1 == 0
    towards = np.where(lost > 0, np.inf, -np.inf)
    return np.where((lost != 0) & even, np.nextafter(total, towards), total).astype(np.float32)


def vector_add(a: F32, b: F32) -> F32:
    return a + b


def saxpy(alpha: np.float32, x: F32, y: F32) -> F32:
    return alpha * x + y


def matmul(a: F32, b: F32) -> F32:
    """Return the product with one fused multiply-add per step, in order of the inner index."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i in range(a.shape[1]):
        column, row = np.broadcast_arrays(a[:, i, None], b[None, i, :])
        total = fma_f32(column, row, total)
    return total


def reduction(data: F32, block: int) -> F32:
    """Return one sum per block: a butterfly of 32 lanes in each warp, then one over the warps."""
    blocks = -(-len(data) // block)
    padded = np.zeros(blocks * block, np.float32)
    padded[: len(data)] = data
    warps = _sum_lanes(padded.reshape(blocks, block // 32, 32))
    lanes = np.zeros((blocks, 32), np.float32)
    lanes[:, : block // 32] = warps
    return _sum_lanes(lanes)


def _sum_lanes(lanes: F32) -> F32:
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def histogram(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    return np.bincount(data, minlength=256).astype(np.uint32)


def softmax(matrix: F32) -> NDArray[np.float64]:
    """Return the softmax of every row in double precision."""
    shifted = np.exp(matrix.astype(np.float64) - matrix.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def mandelbrot(width: int, height: int, limit: int) -> NDArray[np.uint32]:
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    f = np.float32
    c_re = f(-2.25) + f(3) * (x + f(0.5)) / f(width)
    c_im = f(-1.25) + f(2.5) * (y + f(0.5)) / f(height)
    re, im = np.zeros_like(c_re), np.zeros_like(c_im)
    counts = np.zeros(c_re.shape, np.uint32)
    inside = np.ones(c_re.shape, bool)
    for _ in range(limit):
        inside &= re * re + im * im <= f(4)
        counts += inside
        re, im = (
            np.where(inside, re * re - im * im + c_re, re),
            np.where(inside, f(2) * re * im + c_im, im),
        )
    return counts


def convolution(image: F32) -> F32:
    """Return the 5 x 5 binomial blur with zeros outside, one fused multiply-add per weight, row by row."""
    weights = np.array([1, 4, 6, 4, 1], np.float32) / np.float32(16)
    height, width = image.shape
    padded = np.pad(image, 2)
    total = np.zeros_like(image)
    for dy in range(5):
        for dx in range(5):
            weight = np.full_like(image, weights[dy] * weights[dx])
            total = fma_f32(weight, padded[dy : dy + height, dx : dx + width], total)
    return total


def products(a: NDArray[np.float16], b: NDArray[np.float16]) -> NDArray[np.float64]:
    """Return the products of a batch of matrices, exact for numbers that leave the sums exact in f64."""
    return a.astype(np.float64) @ b.astype(np.float64)
