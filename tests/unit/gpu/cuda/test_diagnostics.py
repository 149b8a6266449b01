import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.cuda.diagnostics import summarize

LOG = (
    b"ptxas /home/u/secret/module.ptx, line 4; error   : Arguments mismatch for instruction 'add'\n"
    b"ptxas application ptx input, line 9; error   : Unknown modifier '.bar'\n"
    b"ptxas fatal   : Ptx assembly aborted due to errors\n\0old bytes"
)


def test_the_first_lines_stay_and_paths_go():
    assert summarize(LOG) == (
        "line 4; error : Arguments mismatch for instruction 'add'; line 9; error : Unknown modifier '.bar'"
    )


def test_windows_paths_go_too():
    assert summarize(rb"ptxas C:\Users\u\module.ptx, line 1; error : x") == "line 1; error : x"


@given(st.binary(max_size=2000))
def test_whatever_a_compiler_writes_is_short_printable_ascii(log):
    text = summarize(log)
    assert len(text) <= 400
    assert all(" " <= character <= "~" for character in text)


@given(st.lists(st.sampled_from(["home", "a.b", "x-1", "tmp"]), min_size=1, max_size=5))
@pytest.mark.rule("16-messages")
def test_no_path_survives(parts):
    path = "/" + "/".join(parts)
    assert path not in summarize(f"error in {path}: bad".encode())
