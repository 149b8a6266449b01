"""Random nests of loops do what their code does, offloaded; ``tests/fuzz/fuzz_loops.py`` goes on with ever new ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice

import pytest

from fuzz import fuzz_loops
from loops import CORPUS, as_bits, compile_c, memory_after_init
from oracles.offload import PIPELINE, Judge, Pipeline, judge_functions, wrong_functions
from strategies.loop_nests import DECLINED, function_of, head
from tensorwasm.offload.analysis.build import build_nest
from tensorwasm.offload.nest import Loop, Nest, Statement
from tensorwasm.offload.scheduling import plan as planning

FUNCTIONS = 40


@pytest.mark.parametrize("seed", range(13))
def test_random_loops_do_what_their_code_does(seed):
    judged = list(judge_functions(PIPELINE, seed, FUNCTIONS))
    assert [text for text, judgement in judged if judgement.wrong] == []
    assert sum(judgement.codes > 0 for _, judgement in judged) > FUNCTIONS // 4


@pytest.mark.parametrize("reason", DECLINED)
def test_loops_that_are_to_be_declined_are_for_their_reason(reason):
    loop = f"for (int i = 0; i < n; i++) {{ {DECLINED[reason]} }} out:;"
    wasm = compile_c(f"{head()}{function_of(0, [loop])}", "-O1")
    judge = Judge(PIPELINE, wasm, memory_after_init(wasm))
    judgement = judge.judge("f0", as_bits(judge.signature("f0")[0], (8, 3, 0, 1.25)))
    assert judgement.reasons() == {reason}
    assert judgement.wrong == []


def _without_last_effect(body: tuple[Loop | Statement, ...]) -> tuple[Loop | Statement, ...]:
    *before, last = body
    if isinstance(last, Loop):
        return (*before, replace(last, body=_without_last_effect(last.body)))
    return (*before, replace(last, effects=last.effects[:-1]))


def test_nests_that_lack_an_effect_are_found_wrong():
    def damaged(*given: object) -> Nest:
        nest = build_nest(*given)
        return replace(nest, body=_without_last_effect(nest.body)) if nest.body else nest

    wrong = list(wrong_functions(Pipeline(damaged, PIPELINE.program), 2, FUNCTIONS))
    assert len(wrong) > FUNCTIONS // 2
    assert all("nest: " in each for each in wrong)


def test_programs_made_without_dependences_are_found_wrong(monkeypatch):
    monkeypatch.setattr(planning, "dependences", lambda _statements: ())
    wrong = list(wrong_functions(Pipeline(PIPELINE.nest, PIPELINE.program), 2, FUNCTIONS))
    assert len(wrong) > FUNCTIONS // 4
    assert all("program: " in each for each in wrong)


def test_regions_whose_outputs_are_not_known_are_found_wrong():
    wasm = compile_c((CORPUS / "control.c").read_text(), "-O2")
    judge = Judge(Pipeline(PIPELINE.nest, PIPELINE.program), wasm, memory_after_init(wasm))
    judge.regions = {part: replace(region, outputs=()) for part, region in judge.regions.items()}
    assert [wrong.partition(":")[0] for wrong in judge.judge("fibonacci", [20]).wrong] == ["liveness"]


@pytest.fixture
def fuzz(tmp_path, monkeypatch):
    """Return a function: run the fuzzer for some programs, of which it judges 80 a run, and return its exit status."""
    seeds = []

    def judge_all(wanted, _until_s):
        for seed in islice(wanted, 2):
            seeds.append(seed)
            yield seed, fuzz_loops.Findings(40, 30, {"SEQUENTIAL": 9}, 8.0)

    def run(programs):
        words = ["fuzz_loops.py", "--programs", str(programs), "--kept", str(tmp_path / "kept.json")]
        monkeypatch.setattr(sys, "argv", words)
        return fuzz_loops.main()

    monkeypatch.setattr(fuzz_loops, "judge_all", judge_all)
    run.seeds = seeds
    return run


def test_a_run_of_programs_that_was_cut_short_goes_on_unless_the_code_is_another(fuzz, capsys, monkeypatch):
    assert [fuzz(160), fuzz(160), fuzz(160)] == [0, 0, 0]
    assert fuzz.seeds == [0, 1, 2, 3]
    assert "160 programs, none of them wrong; 120 offloaded (75.0%); 0.20 s each" in capsys.readouterr().out
    monkeypatch.setattr(fuzz_loops, "code_digest", lambda: "another")
    assert fuzz(160) == 0
    assert fuzz.seeds[4:] == [0, 1]


def test_programs_that_lack_a_reason_to_decline_are_too_few_of_a_kind(fuzz, capsys, monkeypatch):
    monkeypatch.setattr(fuzz_loops, "ENOUGH", 80)
    assert fuzz(80) == 1
    assert "a reason is missing" in capsys.readouterr().err
