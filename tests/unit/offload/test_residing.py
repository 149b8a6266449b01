"""Places in memory stand for cells that hold what is there, so that factorisations run one step for all elements."""

from __future__ import annotations

import pytest

from loops import CORPUS, as_bits, compile_c, memory_after_init
from oracles.offload import PIPELINE, Judge, Pipeline
from tensorwasm.offload.program import For, HostLoop
from tensorwasm.offload.scheduling import plan as planning
from tensorwasm.offload.scheduling.plan import plan


def programs_of(name, level, *arguments):
    """Return the programs of a function of the corpus, which is run and judged."""
    made = []

    def planned(nest, memory_bytes):
        made.append(plan(nest, memory_bytes))
        return made[-1]

    wasm = compile_c((CORPUS / "inplace.c").read_text(), level)
    judge = Judge(Pipeline(PIPELINE.nest, planned), wasm, memory_after_init(wasm))
    judgement = judge.judge(name, as_bits(judge.signature(name)[0], arguments))
    assert judgement.wrong == []
    return made


def axes_in_host_loops(program):
    for step in program.steps:
        for kernel in step.body if isinstance(step, HostLoop) else ():
            body, count = kernel.body, 0
            while len(body) == 1 and isinstance(body[0], For) and body[0].parallel:
                body, count = body[0].body, count + 1
            yield count


@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3", "-Os"])
def test_a_factorisation_has_no_sequential_kernel_in_a_step(level):
    (program,) = programs_of("lower_and_upper", level, 24)
    counts = list(axes_in_host_loops(program))
    assert counts
    assert min(counts) >= 1
    assert [each for each in program.cells if not each.private] == []


@pytest.mark.parametrize("name", ["carried_apart", "stored_between", "stored_by_another"])
@pytest.mark.parametrize("level", ["-O1", "-O2"])
def test_a_cell_that_differs_from_memory_stays_a_cell(name, level):
    for program in programs_of(name, level, 9):
        assert program.cells


RELOADED = """#include "loops.h"
double A[4000];
void EXPORT(init)(void) { for (int i = 0; i < 4000; i++) A[i] = sample(i, 1); }
void EXPORT(reloaded)(int n, int m, int s) {
  double *p = A + m, *c = A + s, *b = A + 10 * s;
  for (int i = 0; i < n; i++) {
    double x = *p;
    for (int k = 0; k < n; k++) {
      int at = 16 * i + k;
      double old = c[at], r = b[at + 3000];
      b[at] = x * 2;
      c[at] = x * 2 + 3;
      b[at + 2400] = old * 2;
      STORES
      x = x * 0.5 + 1;
      *p = x;
    }
  }
}
""".replace("STORES", " ".join(f"b[at + {400 + 160 * part}] = r * {part + 1};" for part in range(1, 10)))


def test_a_value_that_is_loaded_before_its_place_is_written_is_not_loaded_behind_that(monkeypatch):
    """Parts of a statement whose stores are loaded again are told by the arrays of these loads and stores."""
    reloading, reloaded = planning.reloading, []

    def watch(nest):
        reloaded.append(nest)
        return reloading(nest)

    monkeypatch.setattr(planning, "reloading", watch)
    monkeypatch.setattr(planning, "LONGER_IN_PLACE", 100)  # takes what is parallel, whatever it costs
    wasm = compile_c(RELOADED, "-O2")
    judge = Judge(PIPELINE, wasm, memory_after_init(wasm))
    assert judge.judge("reloaded", as_bits(judge.signature("reloaded")[0], (9, 2, 40))).wrong == []
    assert reloaded
