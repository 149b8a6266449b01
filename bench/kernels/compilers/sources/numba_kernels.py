"""Kernels in Python, compiled by Numba for CUDA without a GPU. Usage: numba_kernels.py FOLDER."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32, float64, int32, int64, types, uint8
from numba.cuda import dispatcher
from numba.cuda.random import xoroshiro128p_type, xoroshiro128p_uniform_float32

TILE = 16
COEFFICIENTS = np.array([0.5, -1.25, 2.0, 0.125, 3.0, -0.75, 1.5, 1.0], np.float32)


def axpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


def matmul(a, b, c):
    sa = cuda.shared.array((TILE, TILE), float32)
    sb = cuda.shared.array((TILE, TILE), float32)
    column, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for first in range(0, a.shape[1], TILE):
        sa[ty, tx] = a[row, first + tx] if row < a.shape[0] and first + tx < a.shape[1] else 0.0
        sb[ty, tx] = b[first + ty, column] if column < b.shape[1] and first + ty < b.shape[0] else 0.0
        cuda.syncthreads()
        for i in range(TILE):
            total += sa[ty, i] * sb[i, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def reduce(x, out):
    partial = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    total = float32(0.0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i]
    partial[t] = total
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.add(out, 0, partial[0])


def histogram(x, bins):
    counts = cuda.shared.array(256, int32)
    for i in range(cuda.threadIdx.x, 256, cuda.blockDim.x):
        counts[i] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, x[i], 1)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, 256, cuda.blockDim.x):
        cuda.atomic.add(bins, i, counts[i])


def softmax(x, out):
    row = cuda.blockIdx.x
    lane = cuda.threadIdx.x
    largest = float32(-math.inf)
    for i in range(lane, x.shape[1], 32):
        largest = max(largest, x[row, i])
    for offset in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, offset))
    total = float32(0.0)
    for i in range(lane, x.shape[1], 32):
        total += math.exp(x[row, i] - largest)
    for offset in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, offset)
    for i in range(lane, x.shape[1], 32):
        out[row, i] = math.exp(x[row, i] - largest) / total


def scan(x, out):
    warps = cuda.shared.array(32, int32)
    i = cuda.grid(1)
    lane = cuda.laneid
    warp = cuda.threadIdx.x // 32
    value = x[i] if i < x.size else 0
    offset = 1
    while offset < 32:
        below = cuda.shfl_up_sync(0xFFFFFFFF, value, offset)
        if lane >= offset:
            value += below
        offset *= 2
    if lane == 31:
        warps[warp] = value
    cuda.syncthreads()
    for before in range(warp):
        value += warps[before]
    if i < x.size:
        out[i] = value


def sort(x):
    keys = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    keys[t] = x[cuda.grid(1)]
    size = 2
    while size <= cuda.blockDim.x:
        stride = size // 2
        while stride > 0:
            cuda.syncthreads()
            other = t ^ stride
            if other > t and (keys[t] > keys[other]) == ((t & size) == 0):
                keys[t], keys[other] = keys[other], keys[t]
            stride //= 2
        size *= 2
    cuda.syncthreads()
    x[cuda.grid(1)] = keys[t]


def mandelbrot(out, x0, y0, step, limit):
    x, y = cuda.grid(2)
    if x < out.shape[1] and y < out.shape[0]:
        c = complex(x0 + x * step, y0 + y * step)
        z = 0j
        n = 0
        while n < limit and z.real * z.real + z.imag * z.imag < 4:
            z = z * z + c
            n += 1
        out[y, x] = n


def polynomial(x, out):
    table = cuda.const.array_like(COEFFICIENTS)
    powers = cuda.local.array(8, float32)
    i = cuda.grid(1)
    if i < x.size:
        powers[0] = 1.0
        for j in range(1, 8):
            powers[j] = powers[j - 1] * x[i]
        total = float32(0.0)
        for j in range(8):
            total += table[(j + i) % 8] * powers[j]
        out[i] = total


def special(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = math.sin(x[i]) + math.lgamma(x[i]) + math.pow(abs(x[i]), 1.5) + math.erf(x[i]) + x[i] % 0.7


def divide(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] // b[i] + a[i] % b[i]


def cas(keys, values, best):
    i = cuda.grid(1)
    if i < keys.size:
        key = keys[i]
        seen = best[key]
        while seen < values[i]:
            before = cuda.atomic.compare_and_swap(best[key:], seen, values[i])
            if before == seen:
                break
            seen = before


def checked(x, index, out):
    i = cuda.grid(1)
    if i < out.size:
        if index[i] < 0:
            raise IndexError("a negative index")
        assert index[i] < x.size, "an index above the last"
        out[i] = x[index[i]]


def say(x):
    i = cuda.grid(1)
    if i < x.size and x[i] < 0:
        print("negative:", i, x[i])


def monte_carlo(states, out):
    i = cuda.grid(1)
    inside = 0
    for _ in range(100):
        x = xoroshiro128p_uniform_float32(states, i)
        y = xoroshiro128p_uniform_float32(states, i)
        inside += x * x + y * y <= 1
    out[i] = inside


def vector(kind):
    """Return the type of a contiguous array."""
    return types.Array(kind, 1, "C")


def matrix(kind):
    """Return the type of a contiguous matrix."""
    return types.Array(kind, 2, "C")


F, M, N, L = vector(float32), matrix(float32), vector(int32), vector(int64)
KERNELS = {
    "axpy": (axpy, (float32, F, F), {}),
    "axpy_strided": (axpy, (float64, types.Array(float64, 1, "A"), types.Array(float64, 1, "A")), {}),
    "matmul": (matmul, (M, M, M), {}),
    "matmul_fast": (matmul, (M, M, M), {"fastmath": True}),
    "reduce": (reduce, (F, F), {}),
    "histogram": (histogram, (vector(uint8), N), {}),
    "softmax": (softmax, (M, M), {}),
    "scan": (scan, (N, N), {}),
    "sort": (sort, (N,), {}),
    "mandelbrot": (mandelbrot, (matrix(int32), float64, float64, float64, int32), {}),
    "polynomial": (polynomial, (F, F), {}),
    "special": (special, (vector(float64), vector(float64)), {}),
    "divide": (divide, (L, L, L), {}),
    "cas": (cas, (N, N, N), {}),
    "checked": (checked, (F, N, F), {}),
    "checked_debug": (checked, (F, N, F), {"debug": True, "opt": False}),
    "checked_lines": (checked, (F, N, F), {"lineinfo": True}),
    "say": (say, (N,), {}),
    "monte_carlo": (monte_carlo, (types.Array(xoroshiro128p_type, 1, "C"), N), {}),
}

if __name__ == "__main__":
    # Functions that kernels call are compiled for the machine's GPU, whatever the kernel is compiled for.
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(8, 0))
    for name, (function, signature, options) in KERNELS.items():
        # The path of this file would be in the text.
        function.__code__ = function.__code__.replace(co_filename="/kernels/numba_kernels.py")
        ptx, _ = cuda.compile_ptx(function, signature, cc=(8, 0), **options)
        # Numba declares its environments in any order.
        ptx = re.sub(r"(?m)(^\.common .*\n)+", lambda run: "".join(sorted(run[0].splitlines(keepends=True))), ptx)
        Path(sys.argv[1], f"numba-{name}.ptx").write_text(ptx, encoding="ascii")
