"""Places in memory stand for cells that hold what is there, so that factorisations run one step for all elements."""

from __future__ import annotations

import pytest

from loops import CORPUS, as_bits, compile_c, memory_after_init
from oracles.offload import PIPELINE, Judge, Pipeline
from tensorwasm.offload.program import For, HostLoop
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
