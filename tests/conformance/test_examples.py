"""Every example kernel, in both of its PTX variants, against its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from oracles import kernels
from tensorwasm.values import Dim3

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def blocks_for(items: int, per_block: int) -> int:
    return -(-items // per_block)


@pytest.fixture(params=[75, 80], ids=["sm_75", "sm_80"])
def variant(request, launcher):
    launcher.require(request.param)
    return request.param


@pytest.fixture
def launch(launcher, variant):
    """Launch NAME's kernel: ``launch(name, entry, args, grid, block)``."""

    def run(name: str, entry: str, args: list, grid: Dim3, block: Dim3) -> list:
        text = (EXAMPLES / name / f"{name}.sm_{variant}.ptx").read_text(encoding="ascii")
        return launcher.launch(text, entry, args, grid=grid, block=block)

    return run


@pytest.fixture
def random(request):
    return np.random.default_rng(sum(request.node.name.encode()))


def floats(random, *shape):
    return random.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("n", [1, 31, 256, 257, 100_000])
def test_vector_add(launch, random, n):
    a, b, c = floats(random, n), floats(random, n), np.zeros(n, np.float32)
    *inputs, c = launch("vector_add", "vector_add", [a, b, c, np.uint32(n)], (blocks_for(n, 256), 1, 1), (256, 1, 1))
    assert_array_equal(c, kernels.vector_add(a, b))
    assert_array_equal(inputs, [a, b])


@pytest.mark.parametrize("n", [1, 127, 512, 5000])
def test_saxpy_strides_over_more_than_its_grid(launch, random, n):
    alpha, x, y = np.float32(-1.7), floats(random, n), floats(random, n)
    _, result = launch("saxpy", "saxpy", [alpha, x, y, np.uint32(n)], (3, 1, 1), (64, 1, 1))
    assert_array_equal(result, kernels.saxpy(alpha, x, y))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (16, 16, 16), (17, 5, 33), (40, 31, 50)])
def test_matmul_with_ragged_tiles(launch, random, m, n, k):
    a, b, c = floats(random, m, k), floats(random, k, n), np.full((m, n), np.nan, np.float32)
    args = [a, b, c, np.uint32(m), np.uint32(n), np.uint32(k)]
    *_, c = launch("matmul", "matmul", args, (blocks_for(n, 16), blocks_for(m, 16), 1), (16, 16, 1))
    assert_array_equal(c, kernels.matmul(a, b))


@pytest.mark.parametrize("n", [1, 32, 255, 256, 1000, 10_001])
def test_reduction_adds_in_its_documented_order(launch, random, n):
    blocks = blocks_for(n, 256)
    data, partial = floats(random, n), np.zeros(blocks, np.float32)
    _, partial = launch("reduction", "reduction", [data, partial, np.uint32(n)], (blocks, 1, 1), (256, 1, 1))
    assert_array_equal(partial, kernels.reduction(data, 256))


@pytest.mark.parametrize("entry", ["histogram_global", "histogram_shared"])
@pytest.mark.parametrize(("n", "block"), [(1, 32), (1000, 96), (20_000, 256)])
def test_histogram_adds_to_its_bins(launch, random, entry, n, block):
    data = random.integers(0, 256, n, dtype=np.uint8) & random.integers(0, 256, n, dtype=np.uint8)
    bins = random.integers(0, 1 << 32, 256, dtype=np.uint32)
    _, counted = launch("histogram", entry, [data, bins, np.uint32(n)], (3, 1, 1), (block, 1, 1))
    assert_array_equal(counted, bins + kernels.histogram(data))


def test_histogram_where_every_thread_meets_in_one_bin(launch):
    data, bins = np.full(4096, 7, np.uint8), np.zeros(256, np.uint32)
    for entry in ("histogram_global", "histogram_shared"):
        _, counted = launch("histogram", entry, [data, bins, np.uint32(4096)], (4, 1, 1), (256, 1, 1))
        assert_array_equal(counted, kernels.histogram(data))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 128), (5, 129), (2, 1000)])
def test_softmax_within_its_tolerance(launch, random, rows, columns):
    matrix = random.uniform(-10, 10, (rows, columns)).astype(np.float32)
    (result,) = launch("softmax", "softmax", [matrix, np.uint32(columns)], (rows, 1, 1), (128, 1, 1))
    # ex2.approx.ftz.f32 is good to 2 ulp of the result; the division and the sum round as IEEE 754 says.
    assert_allclose(result, kernels.softmax(matrix), rtol=3e-6, atol=1e-30)


def test_softmax_of_numbers_whose_exponentials_overflow(launch):
    matrix = np.array([[1e30, 1e30, -1e30, 0.0]], np.float32)
    (result,) = launch("softmax", "softmax", [matrix, np.uint32(4)], (1, 1, 1), (128, 1, 1))
    assert_array_equal(result, [[0.5, 0.5, 0.0, 0.0]])


@pytest.mark.parametrize(("width", "height", "limit"), [(1, 1, 10), (64, 32, 100), (61, 37, 250)])
def test_mandelbrot_counts_exactly(launch, width, height, limit):
    counts = np.zeros((height, width), np.uint32)
    args = [counts, np.uint32(width), np.uint32(height), np.uint32(limit)]
    (counts,) = launch("mandelbrot", "mandelbrot", args, (blocks_for(width, 16), blocks_for(height, 8), 1), (16, 8, 1))
    assert_array_equal(counts, kernels.mandelbrot(width, height, limit))
    assert width == 1 or len(np.unique(counts)) > 10, "neighbours should have diverged"


@pytest.mark.parametrize(("width", "height"), [(1, 1), (16, 16), (50, 19), (3, 40)])
def test_convolution_with_zeros_outside(launch, random, width, height):
    image, output = floats(random, height, width), np.full((height, width), np.nan, np.float32)
    args = [image, output, np.int32(width), np.int32(height)]
    _, output = launch(
        "convolution", "convolution", args, (blocks_for(width, 16), blocks_for(height, 16), 1), (16, 16, 1)
    )
    assert_array_equal(output, kernels.convolution(image))


@pytest.mark.parametrize("count", [1, 5])
def test_wmma_of_numbers_whose_sums_are_exact(launch, random, count):
    a, b = (random.integers(-16, 17, (count, 16, 16)).astype(np.float16) / np.float16(8) for _ in range(2))
    d = np.full((count, 16, 16), np.nan, np.float32)
    *_, d = launch("wmma", "wmma_product", [a, b, d], (count, 1, 1), (32, 1, 1))
    assert_array_equal(d, kernels.products(a, b))


def test_wmma_of_any_numbers_within_tolerance(launch, random):
    # The order and the width of the additions inside mma are the hardware's own.
    a, b = (random.uniform(-1, 1, (2, 16, 16)).astype(np.float16) for _ in range(2))
    *_, d = launch("wmma", "wmma_product", [a, b, np.zeros((2, 16, 16), np.float32)], (2, 1, 1), (32, 1, 1))
    assert_allclose(d, kernels.products(a, b), rtol=0, atol=16 * 2.0**-20)
