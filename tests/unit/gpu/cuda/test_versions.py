import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.cuda.driver import versions
from tensorwasm.gpu.cuda.driver.versions import (
    DRIVER_FLOORS,
    ISA_BY_CUDA,
    assembles,
    cuda_version,
    driver_floor,
    isa_version,
    parse_version,
    spell_version,
    toolkits_for,
)


@pytest.mark.parametrize(
    ("cuda", "isa"),
    [
        ((12, 0), (8, 0)),
        ((12, 4), (8, 4)),
        ((12, 6), (8, 5)),
        ((12, 9), (8, 8)),
        ((13, 0), (9, 0)),
        ((13, 2), (9, 2)),
    ],
)
def test_a_driver_accepts_the_isa_of_its_cuda_release(cuda, isa):
    assert isa_version(cuda) == isa


def test_a_release_newer_than_the_table_accepts_at_least_its_newest_isa():
    assert isa_version((99, 0)) == max(ISA_BY_CUDA.values())


def test_a_release_older_than_the_table_accepts_the_oldest_isa_that_is_parsed():
    assert isa_version((9, 0)) == (6, 0)


@given(st.tuples(st.integers(11, 14), st.integers(0, 9)), st.tuples(st.integers(11, 14), st.integers(0, 9)))
def test_a_newer_release_never_accepts_less(one, other):
    older, newer = sorted([one, other])
    assert isa_version(older) <= isa_version(newer)
    assert driver_floor(older) <= driver_floor(newer)


def test_the_driver_matrix_ascends_on_both_systems():
    for column in ("cuda", "linux", "windows"):
        values = [getattr(row, column) for row in DRIVER_FLOORS]
        assert values == sorted(values)


@pytest.mark.parametrize(
    ("cuda", "linux", "windows"),
    [
        ((12, 0), "525.60.13", "527.41"),
        ((12, 4), "550.54.14", "551.61"),
        ((12, 6), "560.28.03", "560.81"),
        ((13, 0), "580.65.06", "580.88"),
        ((13, 2), "590.42.01", "591.86"),
    ],
)
def test_the_driver_matrix(cuda, linux, windows):
    assert spell_version(driver_floor(cuda)) == linux
    assert spell_version(driver_floor(cuda, windows=True)) == windows


def test_the_cuda_release_is_read_from_the_drivers_number():
    assert cuda_version(13000) == (13, 0)
    assert cuda_version(12060) == (12, 6)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Cuda compilation tools, release 13.0, V13.0.88", (13, 0)),
        ("NVIDIA UNIX x86_64 Kernel Module  580.159.03  Thu", (580, 159, 3)),
        ("no number here", None),
        ("", None),
    ],
)
def test_versions_are_found_in_text(text, version):
    assert parse_version(text) == version


@given(st.text())
def test_no_text_is_too_strange_to_look_for_a_version_in(text):
    found = parse_version(text)
    assert found is None or len(found) in {2, 3, 4}


def test_ptxas_knows_the_architectures_between_its_first_and_last_release():
    assert assembles((12, 9), (7, 0))
    assert not assembles((13, 0), (7, 0))
    assert assembles((13, 0), (7, 5))
    assert not assembles((12, 0), (10, 0))
    assert assembles((12, 8), (12, 0))


def test_an_unknown_architecture_is_not_assumed():
    assert not assembles((99, 0), (77, 0))
    assert toolkits_for((77, 0)) is None


def test_the_toolkits_for_volta_end_with_12_and_those_for_hopper_do_not_end():
    assert toolkits_for((7, 0)) == ((9, 0), (12, 9))
    assert toolkits_for((9, 0)) == ((11, 8), None)


def test_the_minimum_cuda_is_the_first_row_of_the_matrix():
    assert DRIVER_FLOORS[0].cuda == versions.MINIMUM_CUDA
