"""Tensor cores, asynchronous copies and mbarriers as CUDA C++ uses them: what nvcc makes, against the host."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from conformance.launcher import Launcher
from tensorwasm.errors import KernelFault
from tensorwasm.gpu.opening import open_device

KERNELS = Path(__file__).parents[1] / "golden" / "kernels"


@pytest.fixture
def random():
    return np.random.default_rng(14)


@pytest.fixture(params=[80, 90], ids=["sm_80", "sm_90"])
def read(request, launcher):
    """Read a module's text for one target."""
    launcher.require(request.param)
    return lambda name: (KERNELS / f"{name}.sm_{request.param}.ptx").read_text("ascii")


def halves(random, shape):
    """Draw halves of few bits, so that every sum is exact and every order of summing gives the same."""
    return (random.integers(-32, 33, shape) / 8).astype(np.float16)


@pytest.mark.hardware("H7")
def test_wmma_of_halves(launcher, read, random):
    m, n, k = 48, 32, 64
    a, b, c = halves(random, (m, k)), halves(random, (n, k)), random.integers(-9, 9, (m, n)).astype(np.float32)
    args = [a, b, c, np.zeros((m, n), np.float32), np.int32(n), np.int32(k)]
    *_, d = launcher.launch(read("wmma_gemm"), "wmma_f16", args, grid=(n // 16, m // 16, 1))
    assert_array_equal(d, 2 * (a.astype(np.float64) @ b.T.astype(np.float64) + c))


def test_wmma_of_bytes(launcher, read, random):
    m, n, k = 64, 32, 48
    a, b = random.integers(-128, 128, (m, k), np.int8), random.integers(-128, 128, (k, n), np.int8)
    args = [a, b, np.zeros((m, n), np.int32), np.int32(n), np.int32(k)]
    *_, d = launcher.launch(read("wmma_gemm"), "wmma_s8", args, grid=(n // 8, m // 32, 1))
    assert_array_equal(d, a.astype(np.int32) @ b.astype(np.int32) + 7)


def test_wmma_of_tf32(launcher, read, random):
    m, n, k = 32, 16, 24
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    args = [a, b, np.zeros((n, m), np.float32), np.int32(m), np.int32(n), np.int32(k)]
    *_, d = launcher.launch(read("wmma_gemm"), "wmma_tf32", args, grid=(n // 16, m // 16, 1))
    exact, scale = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    assert (np.abs(d.T - exact) <= scale * 2.0**-9).all(), "10 bits of each multiplicand count"
    assert (np.abs(d.T - exact) > scale * 2.0**-20).any(), "more than 10 bits count"


def test_wmma_of_doubles(launcher, read, random):
    m, n, k = 24, 16, 20
    a, b = random.standard_normal((m, k)), random.standard_normal((n, k))
    args = [a, b, np.zeros((m, n)), np.int32(n), np.int32(k)]
    *_, d = launcher.launch(read("wmma_gemm"), "wmma_f64", args, grid=(n // 8, m // 8, 1))
    assert_allclose(d, a @ b.T, rtol=1e-13, atol=1e-13)


@pytest.mark.hardware("H7")
def test_mma_fed_by_ldmatrix(launcher, read, random):
    m, n, k = 64, 48, 80
    a, b = halves(random, (m, k)), halves(random, (k, n))
    args = [a, b, np.zeros((m, n), np.float32), np.int32(n), np.int32(k)]
    *_, d = launcher.launch(read("mma_gemm"), "mma_f16", args, grid=(n // 16, m // 32, 1), block=(128, 1, 1))
    assert_array_equal(d, a.astype(np.float64) @ b.astype(np.float64))


def test_movmatrix_transposes(launcher, read):
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    args = [matrix.view(np.uint32), np.zeros((8, 4), np.uint32)]
    _, d = launcher.launch(read("mma_gemm"), "transpose", args)
    assert_array_equal(d.view(np.uint16), matrix.T)


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_a_double_buffered_pipeline(launcher, read, random, stages):
    data = random.integers(-100, 100, (stages, 128)).astype(np.float32)
    args = [data, np.zeros(128, np.float32), np.int32(stages)]
    _, out = launcher.launch(read("pipeline_copy"), "pipeline_copy", args, block=(128, 1, 1))
    assert_array_equal(out, (np.arange(1, stages + 1)[:, None] * data[:, ::-1]).sum(axis=0))


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_producers_and_consumers_meet_at_barriers(launcher, read, random, rounds):
    data = random.integers(-1000, 1000, (rounds, 32), np.int32)
    args = [data, np.zeros(32, np.int32), np.int32(rounds)]
    _, out = launcher.launch(read("barrier_ring"), "barrier_ring", args, block=(64, 1, 1))
    assert_array_equal(out, 2 * data[:, ::-1].sum(axis=0))


def test_copies_that_arrive_at_a_barrier(launcher, read):
    data = np.arange(64, dtype=np.int32)
    _, out = launcher.launch(read("barrier_ring"), "barrier_copy", [data, np.zeros(64, np.int32)], block=(64, 1, 1))
    assert_array_equal(out, data[::-1])


@pytest.mark.parametrize(
    ("entry", "fault"), [("pipeline_race", "race"), ("pipeline_unwaited", "uninitiali[sz]ed|never written|race")]
)
def test_the_emulator_sees_a_forgotten_wait(entry, fault):
    """Hardware answers with whatever is there, so this is the emulator's alone."""
    device, _ = open_device("emulator")
    text = (KERNELS / "pipeline_copy.sm_80.ptx").read_text("ascii")
    with Launcher(device) as launcher, pytest.raises(KernelFault, match=fault):
        launcher.launch(text, entry, [np.ones(128, np.float32), np.zeros(128, np.float32)], block=(128, 1, 1))
    device.close()
