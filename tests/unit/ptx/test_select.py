import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.ptx import CORPUS
from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx import check_compatible, parse, select
from tensorwasm.ptx.model import Module

VARIANTS = [parse(text) for name, text in CORPUS.items() if name.startswith("vector_add")]


def made(target, version=(8, 0)):
    return Module(version, (target,), 64)


def takes(target, capability):
    try:
        check_compatible(made(target), capability, (9, 0))
    except UnsupportedPtx:
        return False
    return True


@pytest.mark.parametrize(
    ("target", "good", "bad"),
    [
        ("sm_52", [(5, 2), (7, 5), (9, 0), (12, 1)], [(5, 0)]),
        ("sm_80", [(8, 0), (8, 6), (9, 0), (10, 0)], [(7, 5)]),
        ("sm_90a", [(9, 0)], [(8, 9), (10, 0), (12, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(9, 0), (11, 0), (12, 0)]),
        ("sm_103f", [(10, 3)], [(10, 0), (12, 0)]),
        ("sm_120f", [(12, 0), (12, 1)], [(10, 0), (10, 3)]),
        ("sm_121f", [(12, 1)], [(12, 0)]),
        ("sm_120", [(12, 0), (12, 1)], [(10, 3)]),
    ],
)
def test_which_devices_run_a_target(target, good, bad):
    assert [takes(target, capability) for capability in good] == [True] * len(good)
    assert [takes(target, capability) for capability in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("capability", "target"),
    [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((12, 0), "sm_90")],
)
def test_the_highest_that_runs_is_selected(capability, target):
    for variants in (VARIANTS, VARIANTS[::-1]):
        assert select(variants, capability, (9, 0)).target == (target,)


def test_of_one_capability_the_most_specific_then_newest_then_first_is_selected():
    plain, family, exact = made("sm_100"), made("sm_100f"), made("sm_100a")
    assert select([plain, family, exact], (10, 0), (9, 0)) is exact
    assert select([plain, family, exact], (10, 3), (9, 0)) is family
    assert select([plain, family, exact], (11, 0), (9, 0)) is plain
    newer, first, second = made("sm_80", (8, 4)), made("sm_80", (7, 8)), made("sm_80", (7, 8))
    assert select([first, newer], (8, 0), (9, 0)) is newer
    assert select([first, newer], (8, 0), (8, 3)) is first
    assert select([second, first], (8, 0), (9, 0)) is second


def test_a_newer_isa_is_lowered_only_where_asked_for_and_no_variant_runs_as_it_is():
    newest, newer, fits = made("sm_90", (9, 4)), made("sm_80", (8, 8)), made("sm_75", (8, 2))
    assert select([newest, newer, fits], (9, 0), (8, 4), lower=True) is fits
    assert select([newest, newer], (9, 0), (8, 4), lower=True) == made("sm_90", (8, 4))
    assert select([newest, newer], (8, 6), (8, 4), lower=True) == made("sm_80", (8, 4))
    for variants, lower in (([newest, newer], False), ([made("sm_100", (9, 4))], True), ([], True)):
        with pytest.raises(UnsupportedPtx):
            select(variants, (9, 0), (8, 4), lower=lower)


def test_a_refusal_names_the_offered_variants_and_the_supported_versions():
    with pytest.raises(UnsupportedPtx, match=r"sm_80 \(ISA 8.7\), sm_90a \(ISA 8.0\).* takes up to sm_75 and ISA 8.6"):
        select([made("sm_80", (8, 7)), made("sm_90a")], (7, 5), (8, 6))
    with pytest.raises(UnsupportedPtx, match=r"for sm_50 \(ISA 8.0\); .* ISA 7.8"):
        check_compatible(made("sm_50"), (9, 0), (7, 8))
    with pytest.raises(UnsupportedPtx, match="offered is for nothing"):
        select([], (9, 0), (9, 0))


def test_a_refusal_stays_short():
    with pytest.raises(UnsupportedPtx) as caught:
        select([made("sm_90")] * 1000, (5, 0), (9, 0))
    assert len(str(caught.value)) < 500


targets = st.sampled_from(["sm_52", "sm_80", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_120f"])
versions = st.sampled_from([(7, 0), (8, 0), (8, 8)])
devices = st.sampled_from([(5, 2), (8, 6), (9, 0), (10, 0), (10, 3), (12, 1)])


@given(st.lists(st.builds(made, targets, versions), max_size=6), devices, versions)
def test_the_selected_variant_is_compatible_and_none_is_missed(variants, capability, isa):
    try:
        chosen = select(variants, capability, isa)
    except UnsupportedPtx:
        for each in variants:
            with pytest.raises(UnsupportedPtx):
                check_compatible(each, capability, isa)
    else:
        check_compatible(chosen, capability, isa)
