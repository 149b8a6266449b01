"""Every form of every instruction that a lane executes for itself: each type, rounding mode and modifier.

The judges say what PTX promises: exact bits, or, where it leaves a result open, a rule that accepts what it allows.

Source: PTX ISA 9.7.1 to 9.7.9.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from oracles.alu import agrees, judge
from strategies.instructions import Case, cases, requirements
from strategies.lanes import module
from strategies.operands import draw
from tensorwasm.gpu.emulator import alu

LANES = 64
KERNELS_PER_MODULE = 48  # few modules load quickly; small ones leave little to recompile


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
        for want, have in zip(expected, actual, strict=True):
            shown = want if callable(want) else hex(want)
            assert agrees(want, have), f"{case.form} of {list(map(hex, operands))}: {have:#x}, not {shown}"


@pytest.mark.parametrize("form", alu.forms())
def test_form(launcher, form):
    launcher.require(*requirements(form))
    text, own = modules()[form]
    for case in own:
        sources = draw(case.kernel.name, case.kernel.sources, LANES)
        compare(case, sources, launcher.run_lanes(case.kernel, sources, lanes=LANES, text=text))
