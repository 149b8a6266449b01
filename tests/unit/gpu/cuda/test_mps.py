import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.cuda.driver.mps import (
    DEFAULT_PIPES,
    PIPES_VARIABLE,
    WITHOUT_MPS,
    Daemon,
    count_clients,
    find_daemon,
)

ASKED = {PIPES_VARIABLE: "/run/mps"}


def found(environment, *there):
    return find_daemon(environment, lambda path: path in there)


def test_the_variables_folder_is_searched_before_the_default_one():
    both = "/run/mps/control", "/tmp/nvidia-mps/control"
    assert found(ASKED, *both) == Daemon("/run/mps", "/run/mps/control")
    assert found({}, *both) == Daemon(DEFAULT_PIPES, "/tmp/nvidia-mps/control")
    assert found(ASKED, both[1]).pipes == DEFAULT_PIPES


def test_without_a_daemon_the_reason_names_every_path_that_was_searched():
    assert found(ASKED) == Daemon("", "no /run/mps/control nor /tmp/nvidia-mps/control")
    assert found({}) == Daemon("", "no /tmp/nvidia-mps/control")
    assert found({PIPES_VARIABLE: DEFAULT_PIPES}) == Daemon("", "no /tmp/nvidia-mps/control")


def test_no_daemon_can_be_where_a_worker_without_mps_looks(tmp_path):
    with pytest.raises(OSError, match="Not a directory"):
        (tmp_path / WITHOUT_MPS / "control").touch()


def test_clients_are_counted_over_all_servers():
    said = {"get_server_list": "10\n20\n", "get_client_list 10": "1\n2\n", "get_client_list 20": "3\n"}
    assert count_clients(said.get) == 3
    assert count_clients({"get_server_list": ""}.get) == 0


@pytest.mark.parametrize("answer", [None, "Cannot find MPS control daemon process\n", "12 abc"])
def test_an_answer_that_is_no_list_gives_no_number(answer):
    assert count_clients(lambda _line: answer) is None


@given(st.text(max_size=50) | st.none())
def test_every_answer_of_the_daemon_gives_a_number_or_none(said):
    clients = count_clients(lambda _line: said)
    assert clients is None or clients >= 0
