"""One code for programs that differ in sizes."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.hand_programs import copying, doubles, elementwise, expected, gemm, inputs_of, jacobi, run_on_host
from loops import compile_c
from oracles.nest import run_nest
from oracles.program import run_program
from strategies.nests import MEMORY_BYTES, random_memory, random_nest
from tensorwasm.offload.codegen import sizes
from tensorwasm.offload.codegen.host import LoadedProgram
from tensorwasm.offload.codegen.sizes import LEAST_SIZE, MOST_CODES, LoadedCodes, fingerprint, make_plan, with_sizes
from tensorwasm.offload.declined import Declined
from tensorwasm.offload.program import Compute, Execute, For, Kernel
from tensorwasm.offload.scheduling.plan import plan
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs

FROM_THE_END = """
double x[512], y[512][512];
void __attribute__((export_name("init"))) init(int n) { for (int i = 0; i < n; i++) x[i] = i % 7; }
int __attribute__((export_name("backwards"))) backwards(int n) {
  int i;
  for (i = n - 1; i >= 0; i--) x[i] = x[i] * 1.5;
  return i + n;
}
void __attribute__((export_name("prefix"))) prefix(int n) {
  for (int i = 0; i < n; i++) {
    double sum = 0;
    for (int j = n - 1; j >= 0; j--) { sum += x[j] + y[i][j]; y[i][j] = sum; }
  }
}
"""


def same_code(one, other):
    return fingerprint(with_sizes(one)) == fingerprint(with_sizes(other))


def test_sizes_of_bounds_are_arguments():
    assert with_sizes(copying(100)).sizes == {"size0": 99}
    sized = with_sizes(copying(100))
    assert with_sizes(sized) == sized
    assert with_sizes(copying(LEAST_SIZE)).sizes == {}


def test_programs_that_differ_in_bounds_have_one_code():
    assert same_code(copying(100), copying(200))
    assert not same_code(copying(100), copying(15))  # a short loop is in the code
    assert same_code(jacobi(66, 40), jacobi(66, 80))


@pytest.mark.parametrize(
    "other",
    [
        gemm(41),  # other strides
        copying(100, "i64"),
        copying(100, value=lambda load: load),
        elementwise("f64.add", 100),
    ],
)
def test_programs_that_differ_in_anything_else_have_codes_of_their_own(other):
    others = [gemm(40), copying(100, "f32"), elementwise("f64.mul", 100)]
    assert not any(same_code(other, each) for each in others)


def test_code_that_is_there_is_used_for_another_size():
    loaded = LoadedCodes(lambda code: code)
    made = []

    def use(program):
        return loaded.ready(make_plan(program, lambda _: made.append(program) or len(made), loaded.known())).code

    assert [use(copying(count)) for count in (100, 200, 300)] == [1, 1, 1]
    assert [use(gemm(size)) for size in range(40, 40 + MOST_CODES)] == [*range(2, 2 + MOST_CODES)]
    assert use(copying(100)) == 2 + MOST_CODES  # the oldest was forgotten


def test_code_that_was_forgotten_is_missed():
    loaded = LoadedCodes(lambda code: code)
    plan = make_plan(copying(100), lambda _: 1, ())
    assert loaded.ready(replace(plan, code=None)) is None
    assert loaded.ready(plan).code == 1
    assert loaded.ready(replace(plan, code=None)).code == 1


def test_a_size_that_is_an_argument_is_the_one_of_the_call():
    codes = LoadedCodes(LoadedProgram)
    for count in (100, 33, 500):
        memory = doubles(2 * count)
        made = copying(count)
        wanted, _ = expected(made, memory)
        run_on_host(made, memory, codes=codes)
        assert memory == wanted
    assert len(codes.known()) == 1


@pytest.mark.parametrize("level", ["-O1", "-O3"])
def test_loops_from_the_end_and_kept_sums_share_code_too(level):
    wasm = compile_c(FROM_THE_END, level)
    with Runtime("emulator") as runtime:
        plain, offloaded = runtime.load(wasm), runtime.load(wasm, offload="cpu", offload_waits=True)
        counts = []
        for n in (100, 204, 508):
            for name in ("backwards", "prefix"):
                calls = [MeasuredCall("init", [n])], MeasuredCall(name, [n])
                assert compare_runs(plain, offloaded, *calls).difference == ""
            counts.append(runtime.offload_compiler.plans.compiled)
    assert counts[0] == 3
    assert counts[-1] == counts[0]


def test_loops_that_are_nested_too_deep_decline():
    body = (Execute(0, (0,)),)
    for number in range(300):
        body = (For(f"c{number}", 0, 100, 1, body),)
    deep = copying(100)
    with pytest.raises(Declined):
        with_sizes(replace(deep, steps=(Kernel(0, body),)))
    bound = 100
    for _ in range(300):
        bound = Compute("min", (bound, 100))
    grid = (For("i", 0, bound, 1, (Execute(0, ("i",)),), parallel=True),)
    with pytest.raises(Declined):
        with_sizes(replace(deep, steps=(Kernel(0, grid),)))


@given(st.integers(0, 1 << 32))
def test_a_program_with_sizes_does_the_same(seed):
    try:
        made = plan(random_nest(seed), MEMORY_BYTES)
    except Declined:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "LEAST_SIZE", 2)  # the random nests are small
        made = with_sizes(made)
    memory, inputs = random_memory(seed), inputs_of(made.nest, seed)
    in_order = bytearray(memory)
    results, trace = run_nest(made.nest, inputs, in_order, 100_000)
    assert run_program(made, inputs, memory, trace, seed) == results
    assert memory == in_order


ESCAPE = """
int steps[64 * 64];
void __attribute__((export_name("escape"))) escape(int n, int most) {
  for (int i = 0; i < n; i++) {
    double z = (i & 63) * 0.01;
    int k = 0;
    while (k < most && z < TURN) { z = z * z + GROW; k++; }
    steps[i] = k;
  }
}
"""


def test_loops_of_data_have_codes_of_their_own():
    with Runtime("emulator") as runtime:
        for number, (turn, grow) in enumerate(product(("2.0", "3.0"), ("0.5", "0.25")), 1):
            wasm = compile_c(ESCAPE.replace("TURN", turn).replace("GROW", grow), "-O2")
            plain, offloaded = runtime.load(wasm), runtime.load(wasm, offload="cpu", offload_waits=True)
            for n, most in ((100, 50), (2000, 70)):
                assert compare_runs(plain, offloaded, [], MeasuredCall("escape", [n, most])).difference == ""
            assert runtime.offload_compiler.plans.compiled == number
