"""What compilers write runs guarded, with the results that it has unguarded, to the bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cases import Buffer, cases
from fakes.emulation import kernel as emulated_kernel
from oracles.guarded_runs import Launch, guarded_runs
from oracles.guarding import guarded_text
from tensorwasm import ptx
from tensorwasm.errors import UnsupportedPtx

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a window maps one file again and again")
FOLDER = Path(__file__).resolve().parents[3] / "bench" / "kernels"

LEAST_SHARE = 0.95
REFUSED = {
    "numba-say": "generic addresses of const memory",
    "nvcc-cluster": "shared::cluster|barriers in shared memory",
    "nvcc-messages": "the function vprintf",
    "nvcc-pipeline": "barriers in shared memory",
    "nvcc-recursion": "is recursive",
    "nvcc-texture": "textures",
    "triton-matmul_sm90": "fence.proxy.async",
}
"""Texts of which a kernel is refused, and why."""


def test_all_but_a_few_kernels_are_accepted():
    refused, accepted, kernels = {}, 0, 0
    for path in sorted(FOLDER.glob("c*/*.ptx")):
        for module in ptx.parse_variants(path.read_text(encoding="ascii")):
            for kernel in module.kernels():
                kernels += 1
                try:
                    guarded_text(ptx.render(ptx.extract(module, kernel.name)), kernel.name)
                    accepted += 1
                except UnsupportedPtx as error:
                    refused.setdefault(path.stem, []).append(str(error))
    assert refused.keys() == REFUSED.keys()
    for name, reasons in refused.items():
        assert all(any(word in reason for word in REFUSED[name].split("|")) for reason in reasons), (name, reasons)
    assert accepted >= 187
    assert accepted / kernels >= LEAST_SHARE


@pytest.fixture(scope="module")
def runs():
    with guarded_runs() as runs:
        yield runs


@pytest.fixture(scope="module")
def wide_runs():
    with guarded_runs("wide") as runs:
        yield runs


def launch_of(case):
    """Return the launch of a case."""
    arguments = [(each.array, each.written) if isinstance(each, Buffer) else each for each in case.arguments()]
    return Launch(case.entry, case.grid, case.block, arguments, case.shared_bytes)


@pytest.mark.parametrize(
    "case", [case for case in cases("small") if Path(case.path).stem not in REFUSED], ids=lambda case: case.name
)
def test_guarded_results_are_the_same_to_the_bit(runs, wide_runs, case):
    launch = launch_of(case)
    expected = runs.run(launch, case.text())[0]
    for width, window in {"narrow": runs, "wide": wide_runs}.items():
        guarded = guarded_text(case.text(), case.entry, width)
        assert guarded.takes(case.block)
        found, status = window.run(launch, guarded)
        assert status == 0
        for plain, kept in zip(expected, found, strict=True):
            assert (plain == kept).all()


CHASE = f".func chase(.param .b64 at) {{ .reg .b64 %a; ld.param.b64 %a, [at];\n{'ld.global.u64 %a, [%a];' * 20} ret; }}"
"""A function that is costly to call."""
CALL = "{ .param .b64 given; st.param.b64 [given], %rd1; call chase, (given); }\n"


@pytest.mark.parametrize("between", range(1, 12))
def test_many_calls_of_a_costly_function_are_accepted(between):
    """What counts their work never stands between an argument and its call."""
    text = emulated_kernel(CALL.join(["add.u64 %rd1, %rd1, 8;\n" * between] * 30), before=CHASE)
    assert guarded_text(text, "k").kernel is not None


def test_work_may_be_much_where_a_branch_is_behind_a_label():
    branches = """setp.eq.u64 %p1, %rd1, 0; @%p1 bra one; add.u64 %rd1, %rd1, 8;
one: @%p1 bra two; ld.global.u64 %rd1, [%rd1];
two: add.u64 %rd1, %rd1, 8;
"""
    assert guarded_text(emulated_kernel(f"{CALL * 12}{branches}{CALL * 12}", before=CHASE), "k").kernel is not None
