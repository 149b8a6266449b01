"""Small cases of texts that Numba and tinygrad wrote; those of tinygrad hold their sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from case import FOLDER, Argument, Array, Buffer, Case, Dim3, floats, zeros
from matrix_cases import halves, softmax_reference

Make = Callable[[np.random.Generator], list[Argument]]


def sole_entry(path: str) -> str:
    """Return the name of the only entry of a text."""
    (name,) = re.findall(r"\.entry\s+([\w$]+)", (FOLDER / path).read_text(encoding="ascii"))
    return str(name)


def numba_array(buffer: Buffer) -> list[Argument]:
    """Return the parameters of an array: two null pointers, its size, the size of an item, address, shape, strides."""
    array = buffer.array
    numbers = [np.int64(each) for each in (0, 0, array.size, array.itemsize)]
    return [*numbers, buffer, *map(np.int64, array.shape), *map(np.int64, array.strides)]


def numba_case(
    name: str, grid: Dim3, block: Dim3, make: Make, reference: Callable[..., dict[int, Array]], **options: Any
) -> Case:
    """Return a case of a kernel in Python.

    Args:
        name: of the kernel.
        grid: blocks in x, y and z.
        block: threads in x, y and z.
        make: draws the kernel's own arguments, before arrays become several parameters each.
        reference: takes and returns the kernel's own arguments.
        options: of the case.
    """

    def arguments(random: np.random.Generator) -> list[Argument]:
        lists = [numba_array(each) if isinstance(each, Buffer) else [each] for each in make(random)]
        return [each for several in lists for each in several]

    def expected(*flat: Any) -> dict[int, Array]:
        own, at, places = [], 0, []
        while at < len(flat):
            is_array = at + 4 < len(flat) and isinstance(flat[at + 4], np.ndarray)
            places.append(at + 4 * is_array)
            own.append(flat[places[-1]])
            at += 5 + 2 * own[-1].ndim if is_array else 1
        return {places[index]: array for index, array in reference(*own).items()}

    path = f"compilers/numba-{name}.ptx"
    return Case(f"numba-{name}", path, sole_entry(path), grid, block, arguments, expected, **options)


def tinygrad_case(
    name: str, grid: Dim3, block: Dim3, make: Make, result: Callable[..., Array], out: Buffer, **options: Any
) -> Case:
    """Return a case of an expression, whose result is the first parameter."""
    path = f"compilers/tinygrad-{name}.ptx"

    def arguments(random: np.random.Generator) -> list[Argument]:
        return [Buffer(out.array.copy(), written=True), *make(random)]

    def expected(_out: Array, *inputs: Any) -> dict[int, Array]:
        return {0: result(*inputs)}

    return Case(f"tinygrad-{name}", path, sole_entry(path), grid, block, arguments, expected, **options)


def integers(random: np.random.Generator, low: int, high: int, *shape: int) -> Buffer:
    """Draw integers of 32 bits."""
    return Buffer(random.integers(low, high, shape, np.int32))


def written(array: Array) -> Buffer:
    """Return a buffer that the kernel writes."""
    return Buffer(array, written=True)


def polynomial(x: Array, *_: Any) -> dict[int, Array]:
    """Return what the kernel of that name computes."""
    table = np.array([0.5, -1.25, 2.0, 0.125, 3.0, -0.75, 1.5, 1.0])
    terms = np.arange(8)
    return {1: (table[(terms[:, None] + np.arange(x.size)) % 8] * x[None, :] ** terms[:, None]).sum(axis=0)}


def mandelbrot(out: Array, x0: float, y0: float, step: float, limit: int) -> dict[int, Array]:
    """Return what the kernel of that name computes."""
    ys, xs = np.indices(out.shape)
    c = x0 + xs * step + 1j * (y0 + ys * step)
    z, counts = np.zeros_like(c), np.zeros(out.shape, np.int32)
    for _ in range(limit):
        inside = z.real**2 + z.imag**2 < 4
        counts += inside
        z = np.where(inside, z * z + c, z)
    return {0: counts}


def largest_by_key(keys: Array, values: Array, best: Array) -> dict[int, Array]:
    """Return what the kernel ``cas`` computes."""
    expected = best.copy()
    np.maximum.at(expected, keys, values)
    return {2: expected}


def matmul_inputs(random: np.random.Generator) -> list[Argument]:
    """Draw two matrices; the third is the product."""
    return [Buffer(floats(random, 40, 30)), Buffer(floats(random, 30, 20)), zeros(40, 20)]


def gather_inputs(random: np.random.Generator) -> list[Argument]:
    """Draw an array and valid indices into it."""
    return [Buffer(floats(random, 99)), integers(random, 0, 99, 1000), zeros(1000)]


def numba_cases() -> list[Case]:
    """Return the cases of Numba."""
    n, row, one, ints = 1000, (256, 1, 1), (4, 1, 1), np.int32
    return [
        numba_case("axpy", one, row, lambda r: [np.float32(0.7), Buffer(floats(r, n)), written(floats(r, n))],
                   lambda a, x, y: {2: y + a * x}, atol=1e-6),
        numba_case("matmul", (2, 3, 1), (16, 16, 1), matmul_inputs, lambda a, b, _: {2: a @ b}, atol=1e-5),
        numba_case("matmul_fast", (2, 3, 1), (16, 16, 1), matmul_inputs, lambda a, b, _: {2: a @ b}, atol=1e-5),
        numba_case("reduce", (2, 1, 1), row, lambda _: [Buffer(np.full(n, 3, np.float32)), zeros(1)],
                   lambda x, _: {1: x.sum(keepdims=True)}),
        numba_case("histogram", (2, 1, 1), row,
                   lambda r: [Buffer(r.integers(0, 256, n, np.uint8)), zeros(256, dtype=ints)],
                   lambda x, _: {1: np.bincount(x, minlength=256).astype(ints)}),
        numba_case("softmax", (5, 1, 1), (32, 1, 1), lambda r: [Buffer(8 * floats(r, 5, 70)), zeros(5, 70)],
                   lambda x, _: {1: softmax_reference(x)}, rtol=1e-5, atol=1e-12),
        numba_case("scan", one, row, lambda r: [integers(r, -99, 99, 1024), zeros(1024, dtype=ints)],
                   lambda x, _: {1: x.reshape(4, 256).cumsum(axis=1, dtype=ints).ravel()}),
        numba_case("sort", one, row, lambda r: [written(integers(r, -9999, 9999, 1024).array)],
                   lambda x: {0: np.sort(x.reshape(4, 256), axis=1).ravel()}, shared_bytes=1024),
        numba_case("mandelbrot", (2, 3, 1), (16, 8, 1),
                   lambda _: [zeros(20, 30, dtype=ints), *map(np.float64, (-2.03, -1.01, 0.1)), np.int32(12)],
                   mandelbrot),
        numba_case("polynomial", one, row, lambda r: [Buffer(floats(r, n)), zeros(n)], polynomial, atol=1e-5),
        numba_case("divide", one, row,
                   lambda r: [Buffer(r.integers(-99999, 99999, n)), Buffer(r.integers(1, 99, n)), zeros(n, dtype="i8")],
                   lambda a, b, _: {2: a // b + a % b}),
        numba_case("cas", one, row,
                   lambda r: [integers(r, 0, 50, n), integers(r, -999, 999, n), zeros(50, dtype=ints)], largest_by_key),
        numba_case("checked", one, row, gather_inputs, lambda x, index, _: {2: x[index]}),
        numba_case("checked_debug", one, row, gather_inputs, lambda x, index, _: {2: x[index]}),
    ]  # fmt: skip


def convolution(image: Array, weights: Array) -> Array:
    """Return a 3x3 convolution of channels, and 0 where it is negative."""
    windows = np.lib.stride_tricks.sliding_window_view(image[0], (3, 3), axis=(1, 2))
    return np.asarray(np.maximum(np.einsum("cyxij,ocij->oyx", windows, weights)[None], 0))


def gelu(x: Array) -> Array:
    """Return the tanh form of the Gaussian error linear unit."""
    return np.asarray(0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))))


def tinygrad_cases() -> list[Case]:
    """Return the cases of tinygrad."""
    return [
        tinygrad_case("gelu", (32, 1, 1), (32, 1, 1), lambda r: [Buffer(floats(r, 4096))],
                      gelu, zeros(4096), atol=1e-5),
        tinygrad_case("softmax_0", (16, 1, 1), (16, 1, 1), lambda r: [Buffer(floats(r, 16, 512))],
                      lambda x: x.max(axis=1), zeros(16)),
        tinygrad_case("softmax_1", (16, 1, 1), (16, 1, 1),
                      lambda r: [Buffer(floats(r, 16, 512)), Buffer(np.ones(16, np.float32))],
                      lambda x, largest: np.exp(x - largest[:, None]).sum(axis=1), zeros(16), rtol=1e-5),
        tinygrad_case("layernorm_2", (4, 2, 1), (8, 16, 1),
                      lambda r: [Buffer(floats(r, 16, 256)), Buffer(floats(r, 16)), Buffer(floats(r, 16) + 2)],
                      lambda x, mean, deviation: (x - mean[:, None]) / deviation[:, None], zeros(16, 256), atol=1e-5),
        tinygrad_case("sum_0", (64, 1, 1), (16, 1, 1), lambda r: [Buffer(floats(r, 64, 1024))],
                      lambda x: x.sum(axis=1), zeros(64), atol=1e-4),
        tinygrad_case("matmul", (2, 1, 1), (8, 16, 1), lambda r: [Buffer(floats(r, 64, 64)), Buffer(floats(r, 64, 64))],
                      lambda a, b: a @ b, zeros(64, 64), atol=1e-5),
        tinygrad_case("matmul_f16", (1, 1, 1), (32, 2, 1), lambda r: [halves(r, 64, 64), halves(r, 64, 64)],
                      lambda a, b: a.astype(np.float32) @ b.astype(np.float32), zeros(64, 64)),
        tinygrad_case("conv", (7, 7, 1), (2, 2, 2),
                      lambda r: [Buffer(floats(r, 1, 4, 16, 16)), Buffer(floats(r, 8, 4, 3, 3))],
                      convolution, zeros(1, 8, 14, 14), atol=1e-5),
        tinygrad_case("scan", (512, 1, 1), (16, 1, 1), lambda r: [integers(r, -99, 99, 512)],
                      lambda x: x.cumsum(dtype=np.int32), zeros(512, dtype=np.int32)),
        tinygrad_case("gather", (2, 1, 1), (32, 4, 1), lambda r: [integers(r, 0, 256, 64), Buffer(floats(r, 256, 16))],
                      lambda index, table: table[index], zeros(64, 16)),
        tinygrad_case("int64_division", (4, 1, 1), (32, 1, 1),
                      lambda r: [Buffer(r.integers(-99999, 99999, 512)), Buffer(r.integers(1, 99, 512))],
                      lambda a, b: a // b, zeros(512, dtype=np.int64)),
    ]  # fmt: skip
