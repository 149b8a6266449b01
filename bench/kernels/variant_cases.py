"""Cases of texts in ``compilers/`` that nvcc and NVRTC wrote: kernels of ``cuda/`` under other options, and more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

import array_cases
import matrix_cases
from case import Argument, Array, Buffer, Case, Dim3, blocks_for, floats, zeros

BASES: Final = {
    "nvcc-nbody_fast": array_cases.nbody,
    "nvcc-attention_fast": matrix_cases.attention,
    "nvcc-conv7_unoptimised": matrix_cases.conv7,
    "nvcc-layernorm_unoptimised": matrix_cases.layernorm,
    "nvcc-spmv_no_fma": matrix_cases.spmv,
    "nvcc-gemm_blocked_sm90": matrix_cases.gemm_blocked,
    "nvcc-gemm_mma_sm90": matrix_cases.gemm_mma,
    "nvrtc-softmax_fast": matrix_cases.softmax,
    "nvrtc-attention_nofma": matrix_cases.attention,
    "nvrtc-gemm_tiled_few_registers": matrix_cases.gemm_tiled,
    "nvrtc-device_variables_lines": array_cases.device_variables,
    "nvrtc-bitonic_sort_debug": array_cases.bitonic_sort,
    "nvrtc-hist_shared_sm90": array_cases.hist_shared,
    **{f"nvcc-{make.__name__}_nvvm23": make for make in (*array_cases.KERNELS, *matrix_cases.KERNELS)},
}


def variant(base: Callable[[bool], Case], name: str, large: bool) -> Case:
    """Return a case of another text for the same kernel."""
    return replace(base(large), name=name, path=f"compilers/{name}.ptx")


def nvcc_case(
    source: str,
    entry: str,
    grid: int,
    block: int,
    make: Callable[[np.random.Generator], list[Argument]],
    reference: Callable[..., dict[int, Array]],
    **options: Any,
) -> Case:
    """Return a case of one entry of a text."""
    sizes: tuple[Dim3, Dim3] = ((grid, 1, 1), (block, 1, 1))
    return Case(f"nvcc-{entry}", f"compilers/nvcc-{source}.ptx", entry, *sizes, make, reference, **options)


def fft(large: bool) -> Case:
    rows = 1 << 15 if large else 2

    def reference(data: Array) -> dict[int, Array]:
        return {
            0: np.fft.fft(data.view(np.complex64)[..., 0]).astype(np.complex64).view(np.float32).reshape(data.shape)
        }

    def make(random: np.random.Generator) -> list[Argument]:
        return [Buffer(floats(random, rows, 512, 2), written=True)]

    return nvcc_case("fft", "fft", rows, 256, make, reference, shared_bytes=4096, atol=1e-3)


def bfs(large: bool) -> Case:
    nodes, size = (1 << 20, 1 << 19) if large else (900, 300)

    def make(random: np.random.Generator) -> list[Argument]:
        starts = np.zeros(nodes + 1, np.int32)
        np.cumsum(random.integers(0, 9, nodes), out=starts[1:])
        edges = random.integers(0, nodes, starts[-1], np.int32)
        frontier = random.permutation(nodes)[:size].astype(np.int32)
        distances = np.full(nodes, -1, np.int32)
        distances[frontier] = 0
        return [
            Buffer(starts),
            Buffer(edges),
            Buffer(frontier),
            np.int32(size),
            Buffer(distances, written=True),
            zeros(nodes, dtype=np.int32),
            zeros(1, dtype=np.int32),
            np.int32(1),
        ]

    def reference(
        starts: Array, edges: Array, frontier: Array, _size: int, distances: Array, *_: Any
    ) -> dict[int, Array]:
        reached = np.zeros(nodes, bool)
        source = np.repeat(np.arange(nodes), np.diff(starts))
        reached[edges[np.isin(source, frontier)]] = True
        expected = np.where(reached & (distances == -1), 1, distances)
        # The order of the next frontier depends on that of the threads.
        return {4: expected, 6: (expected == 1).sum(keepdims=True).astype(np.int32)}

    return nvcc_case("bfs", "bfs", 1056 if large else 3, 128, make, reference)


def quicksort(large: bool) -> Case:
    rows, each = (1 << 16, 64) if large else (100, 20)
    return nvcc_case(
        "recursion",
        "quicksort",
        blocks_for(rows, 64) if large else 2,
        64 if large else 50,
        lambda r: [Buffer(r.integers(-9999, 9999, (rows, each), np.int32), written=True), np.int32(each)],
        lambda data, _: {0: np.sort(data, axis=1)},
    )


def tile_sums(large: bool) -> Case:
    n = 1 << 24 if large else 2048

    def reference(values: Array, *_: Any) -> dict[int, Array]:
        tiles = values.reshape(-1, 16)
        before = np.cumsum(tiles, axis=1) - tiles
        rank = np.arange(len(tiles))[:, None] % 16
        return {1: (tiles.sum(axis=1, keepdims=True) - before + rank).astype(np.int32).ravel()}

    return nvcc_case(
        "cooperative",
        "tile_sums",
        n // 256,
        256,
        lambda r: [Buffer(r.integers(-999, 999, n, np.int32)), zeros(n, dtype=np.int32), np.int32(n)],
        reference,
    )


def count_labels(large: bool) -> Case:
    n = 1 << 22 if large else 2000
    return nvcc_case(
        "cooperative",
        "count_labels",
        blocks_for(n, 256),
        256,
        lambda r: [Buffer(r.integers(0, 12, n, np.uint8)), zeros(12, dtype=np.uint32), np.int32(n)],
        lambda labels, *_: {1: np.bincount(labels, minlength=12).astype(np.uint32)},
    )


def operate(large: bool) -> Case:
    n = 1 << 24 if large else 1000

    def reference(which: Array, a: Array, b: Array, *_: Any) -> dict[int, Array]:
        return {3: np.choose(which % 3, [a + b, a - b, a * b])}

    def make(random: np.random.Generator) -> list[Argument]:
        numbers = [Buffer(random.integers(0, 9999, n, np.int32)) for _ in range(3)]
        return [*numbers, zeros(n, dtype=np.int32), np.int32(n)]

    return nvcc_case("virtuals", "operate", blocks_for(n, 256), 256, make, reference)


def areas(large: bool) -> Case:
    n = 1 << 24 if large else 1000

    def reference(sides: Array, *_: Any) -> dict[int, Array]:
        return {1: sides * sides * np.where(np.arange(n) % 2, np.float32(3.14159265), np.float32(1))}

    def make(random: np.random.Generator) -> list[Argument]:
        return [Buffer(floats(random, n)), zeros(n), np.int32(n)]

    return nvcc_case("virtuals", "areas", blocks_for(n, 256), 256, make, reference, rtol=1e-6)


def permute(large: bool) -> Case:
    n = 1 << 20 if large else 300

    def reference(data: Array, _n: int) -> dict[int, Array]:
        words, row = data.reshape(n, 5).copy(), np.arange(n)
        for j in range(5):
            other = (j * 2 + row) % 5
            words[row, j], words[row, other] = words[row, other], words[row, j].copy()
        return {0: words.ravel()}

    def make(random: np.random.Generator) -> list[Argument]:
        return [Buffer(random.integers(0, 9999, n * 5, np.int32), written=True), np.int32(n)]

    return nvcc_case("functions", "permute", blocks_for(n, 128), 128, make, reference)


def barrier_copy(large: bool) -> Case:
    rows = 1 << 17 if large else 3
    return nvcc_case(
        "pipeline",
        "barrier_copy",
        rows,
        256,
        lambda r: [Buffer(floats(r, rows, 256)), zeros(rows, 256)],
        lambda data, _: {1: data[:, ::-1]},
    )


OWN: Final = (fft, bfs, quicksort, tile_sums, count_labels, operate, areas, permute, barrier_copy)
KERNELS: Final = (*(partial(variant, base, name) for name, base in BASES.items()), *OWN)
