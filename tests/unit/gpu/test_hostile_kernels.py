"""The generator of hostile kernels: the same kernel for the same seed, every family, and texts that are PTX."""

from __future__ import annotations

from contextlib import suppress

import pytest

from strategies.hostile import DELIBERATE, FAMILIES, FORMS, generate
from strategies.hostile.damage import damage
from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx import parse, render

ROUND = range(len(FORMS))


def test_a_seed_makes_the_same_kernel_again():
    assert all(generate(seed) == generate(seed) for seed in range(50))
    assert len({generate(seed).text for seed in range(50)}) == 50


def test_every_form_is_met_in_a_round_of_seeds():
    met = {name for seed in ROUND for name in generate(seed).forms}
    assert met == FORMS.keys()
    assert {generate(seed).family for seed in ROUND} == FAMILIES.keys()


@pytest.mark.parametrize("seeds", [ROUND[start::4] for start in range(4)], ids=range(4))
def test_generated_texts_are_read_and_printed(seeds):
    for seed in seeds:
        check_text(generate(seed))


@pytest.mark.parametrize("part", range(4))
def test_deliberate_texts_are_read_and_printed(part):
    for hostile in [*DELIBERATE.values()][part::4]:
        check_text(hostile)


def test_damage_is_the_same_for_the_same_seed_and_can_be_printed():
    read, changed, valid = 0, 0, 0
    for seed in range(60):
        hostile = generate(seed)
        if not hostile.valid:
            continue
        module = parse(hostile.text)
        damaged = damage(module, seed)
        assert damaged == damage(module, seed)
        valid += 1
        changed += damaged != module
        with suppress(MalformedPtx):
            read += parse(render(damaged)) == damaged
    assert changed > valid * 0.8
    assert read > valid * 0.6


def check_text(hostile):
    if not hostile.valid:
        with suppress(MalformedPtx):
            parse(hostile.text)
        return
    module = parse(hostile.text)
    assert parse(render(module)) == module
    assert module.entry(hostile.entry) is not None
