"""How the iterations of a kernel are shared among the threads of a GPU: tiles, sums of counters, unrolled loops."""

import re

import pytest

from loops import compile_c
from tensorwasm.guest.imports.offload.device_target import DeviceTarget
from tensorwasm.offload.codegen.blocking import SIDE, Tile, choose_tile, unskewed
from tensorwasm.offload.codegen.linear import linear
from tensorwasm.offload.codegen.nvptx import GpuKernel, grid_of
from tensorwasm.offload.program import Compute, For
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs, run_alone
from tensorwasm.values import LaunchConfig

PRODUCTS = """
#define N 80
double a[N][N], b[N][N], c[N][N], d[N];
void __attribute__((export_name("init"))) init(void) {
  for (int i = 0; i < N; i++) {
    d[i] = i + 0.5;
    for (int j = 0; j < N; j++) {
      a[i][j] = (i * 7 + j * 3) % 11 - 4.5;
      b[i][j] = (i * 5 + j) % 13 / 3.0;
      c[i][j] = i - j;
    }
  }
}
void __attribute__((export_name("product"))) product(int n, int m) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) {
      double sum = c[i][j] * 1.2;
      for (int k = 0; k < N; k++) sum += a[i][k] * b[k][j];
      c[i][j] = sum;
    }
}
void __attribute__((export_name("below"))) below(int n, int m) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++)
      for (int k = 0; k < m; k++) c[i][j] += a[i][k] * b[j][k];
}
void __attribute__((export_name("above"))) above(int n, int m) {
  for (int i = 0; i < n; i++)
    for (int j = i; j < n; j++) {
      double sum = 0;
      for (int k = 0; k < m; k++) sum += a[k][i] * a[k][j];
      c[i][j] = c[j][i] = sum / m;
    }
}
void __attribute__((export_name("in_place"))) in_place(int n, int m) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++)
      for (int k = i + 1; k < n; k++) c[i][j] += a[k][i] * c[k][j];
}
void __attribute__((export_name("symmetric"))) symmetric(int n, int m) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) {
      double sum = 0;
      for (int k = 0; k < i; k++) {
        c[k][j] += b[i][j] * a[i][k];
        sum += b[k][j] * a[i][k];
      }
      c[i][j] = 1.2 * c[i][j] + b[i][j] * a[i][i] + sum;
    }
}
void __attribute__((export_name("rows"))) rows(int n, int m) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) d[i] += a[i][j] * b[0][j];
}
"""
SQUARE = [For("i", 0, 99, 1, (), parallel=True), For("j", 0, 99, 1, (), parallel=True)]


@pytest.fixture(scope="module")
def compiled():
    """The texts of all kernels that the tests below make."""
    texts = []
    with pytest.MonkeyPatch.context() as patch:
        run = DeviceTarget.run
        patch.setattr(DeviceTarget, "run", lambda self, plan, *rest: texts.append(plan.code) or run(self, plan, *rest))
        yield texts


def products(codes):
    """Return the bodies of loops in which something is multiplied."""
    loop = re.compile(r"\n(\$L\w+):((?:(?!\n\$L).)*bra\S* \t?\1;)", re.DOTALL)
    return [body for code in codes for _, body in loop.findall(code.ptx) if "mul.rn" in body]


@pytest.mark.parametrize("isolation", ["stream", "guarded"])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *(("product", sizes) for sizes in ((1, 1), (4, 64), (5, 3), (37, 70), (80, 80))),
        *(("below", sizes) for sizes in ((2, 3), (9, 80), (71, 5))),
        *(("above", sizes) for sizes in ((1, 2), (6, 7), (77, 5))),
        *(("in_place", sizes) for sizes in ((2, 2), (70, 3), (80, 40))),
        *(("symmetric", sizes) for sizes in ((2, 3), (33, 65), (40, 80), (79, 34))),
        *(("rows", sizes) for sizes in ((3, 1), (9, 17), (80, 67), (80, 80))),
    ],
)
def test_memory_is_that_of_the_nest(isolation, name, sizes):
    with Runtime("emulator", isolation=isolation) as runtime:
        wasm = compile_c(PRODUCTS, "-O2")
        plain, offloaded = runtime.load(wasm), runtime.load(wasm, offload="gpu", offload_waits=True)
        found = compare_runs(plain, offloaded, [MeasuredCall("init", [])], MeasuredCall(name, list(sizes)))
        assert found.difference == ""
        assert sum(each.taken for each in offloaded.offloading.statistics) > 0


def test_loads_of_a_product_are_made_once_for_a_tile(compiled):
    with Runtime("emulator") as runtime:
        function = runtime.load(compile_c(PRODUCTS, "-O1"), offload="gpu", offload_waits=True)
        del compiled[:]
        run_alone(function, [], MeasuredCall("product", [80, 80]))
    assert any(body.count("ld.global") <= body.count("mul.rn") / 2 for body in products(compiled))


@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3", "-Os"])
def test_loads_of_a_triangular_sum_are_made_once_for_columns_of_a_tile(level, compiled):
    with Runtime("emulator") as runtime:
        function = runtime.load(compile_c(PRODUCTS, level), offload="gpu", offload_waits=True)
        del compiled[:]
        run_alone(function, [], MeasuredCall("symmetric", [80, 80]))
    assert products(compiled)
    assert all(body.count("ld.global") <= body.count("mul.rn") * 4 / 3 for body in products(compiled))
    assert not [body for body in products(compiled) if "st.global" in body]


def test_a_place_that_stays_is_written_behind_the_loop(compiled):
    with Runtime("emulator") as runtime:
        function = runtime.load(compile_c(PRODUCTS, "-O1"), offload="gpu", offload_waits=True)
        del compiled[:]
        run_alone(function, [], MeasuredCall("in_place", [80, 80]))
    assert products(compiled)
    assert not [body for body in products(compiled) if "st.global" in body]


def test_sides_of_a_tile_are_those_along_which_loads_repeat():
    row, column = (linear(Compute("mul", (name, 8))) for name in ("i", "j"))
    both = linear(Compute("add", ("i", "j")))
    assert choose_tile(SQUARE, [], [row, column], 20) == Tile(SIDE, SIDE)
    assert choose_tile(SQUARE, [], [both, column], 20) == Tile(SIDE, 1)
    assert choose_tile(SQUARE, [], [both], 20) == choose_tile(SQUARE, [], [], 20) == Tile()
    assert choose_tile(SQUARE, ["i"], [row, column], 20) == Tile(1, SIDE)  # loops of threads of other rows differ
    assert choose_tile(SQUARE, ["j"], [row, column], 20) == Tile(SIDE, 1)
    assert choose_tile(SQUARE, ["i", "j"], [row, column], 20) == Tile()
    assert choose_tile(SQUARE[:1], [], [row], 20) == Tile()
    assert choose_tile(SQUARE, [], [row, column], 200) == Tile(SIDE // 2, SIDE // 2)


def test_a_grid_has_a_thread_for_each_tile():
    kernel = GpuKernel("kernel0", (), tuple(SQUARE), Tile(4, 2))
    assert grid_of(kernel, {}) == LaunchConfig((2, 4, 1), (32, 8, 1))


def test_few_threads_are_shared_by_more_blocks():
    def line(count):
        return grid_of(GpuKernel("kernel0", (), (For("i", 0, count - 1, 1, ()),)), {})

    assert line(4000) == LaunchConfig((125, 1, 1), (32, 1, 1))
    assert line(1 << 20) == LaunchConfig((4096, 1, 1), (256, 1, 1))


def test_a_triangle_is_counted_by_the_sum_of_its_counters():
    outer, inner = For("i", 0, 9, 1, ()), For("j", 0, Compute("add", (Compute("neg", ("i",)), 9)), 1, ())
    found = unskewed(outer, inner)
    assert (found.outer.variable, found.inner.variable, found.replaced) == ("i+j", "j", Compute("sub", ("i+j", "j")))
    assert linear(found.outer.last) == linear(9)
    assert unskewed(outer, For("j", 0, "i", 1, ())) is None
    assert unskewed(outer, For("j", 0, 9, 1, ())) is None
    assert unskewed(outer, For("j", "i", Compute("neg", ("i",)), 1, ())) is None
