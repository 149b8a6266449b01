"""Every form of every instruction that a lane executes for itself: each type, rounding mode and modifier.

The judges say what a result is: exact bits, or a rule for approximations. Where PTX leaves it open (division by zero,
the payload of some NaNs, the sign of some zeros), `oracles.latitude` says what is still promised.

Source: PTX ISA 9.7.1 to 9.7.9.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from oracles.alu import agrees, judge
from oracles.latitude import relax
from strategies.instructions import Case, cases, requirements
from strategies.lanes import module
from strategies.operands import draw
from tensorwasm.gpu.emulator import alu

LANES = 64
KERNELS_PER_MODULE = 48  # few modules load quickly; small ones leave little to recompile

NEWEST_TARGET = 90
"""Of the GPUs that this runs on; forms that need a later one are held to their judge alone (test_forms)."""


@functools.cache
def modules() -> dict[str, tuple[str, list[Case]]]:
    """Return the module text and the cases of every form."""
    found = {}
    for (target, version), group in itertools.groupby(sorted(alu.forms(), key=requirements), key=requirements):
        forms = list(group)
        for start in range(0, len(forms), KERNELS_PER_MODULE):
            batch = forms[start : start + KERNELS_PER_MODULE]
            prepared = {form: cases(form, *alu.operands(form)) for form in batch}
            kernels = [case.kernel for own in prepared.values() for case in own]
            text = module(kernels, f"sm_{target}", version)
            found.update({form: (text, own) for form, own in prepared.items()})
    return found


def compare(case: Case, sources: list[np.ndarray], results: list[np.ndarray]) -> None:
    """Hold every lane's results against the judge's."""
    decide = judge(case.form)
    for lane in range(LANES):
        operands = [int(source[lane]) for source in sources]
        if case.constant:
            operands.insert(*case.constant)
        expected, actual = decide(*operands), [int(result[lane]) for result in results]
        assert len(expected) == len(actual)
        for type_, want, have in zip(case.kernel.results, expected, actual, strict=True):
            shown = want if callable(want) else hex(want)
            allowed = relax(case.form, type_, operands, want)
            assert agrees(allowed, have), f"{case.form} of {list(map(hex, operands))}: {have:#x}, not {shown}"


@pytest.mark.parametrize("form", [form for form in alu.forms() if requirements(form)[0] <= NEWEST_TARGET])
def test_form(launcher, form):
    launcher.require(*requirements(form))
    text, own = modules()[form]
    for case in own:
        sources = draw(case.kernel.name, case.kernel.sources, LANES)
        for place in case.bytes_only:
            sources[place] &= 0xFF
        compare(case, sources, launcher.run_lanes(case.kernel, sources, lanes=LANES, text=text))


@pytest.mark.parametrize(
    ("form", "type_", "operands", "judged", "allowed", "refused"),
    [
        ("div.u32", "u32", [5, 0], 0xFFFFFFFF, 7, None),
        ("div.u32", "u32", [5, 2], 2, 2, 3),
        ("abs.f32", "f32", [0x7FC00001], 0x7FFFFFFF, 0x7FC00001, 0x7F800000),
        ("neg.f16x2", "f16x2", [0], 0x7FFF3C00, 0x7E003C00, 0x7E003C01),
        ("fma.rn.relu.f16", "f16", [0, 0, 0], 0, 0x8000, 0x8001),
        ("fma.rn.f16", "f16", [0, 0, 0], 0, 0, 0x8000),
    ],
)
def test_latitude_ends_where_the_manual_does(form, type_, operands, judged, allowed, refused):
    rule = relax(form, type_, operands, judged)
    assert agrees(rule, allowed)
    assert refused is None or not agrees(rule, refused)
