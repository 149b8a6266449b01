"""The file by which `tensor-wasm reload` finds the supervisor."""

import json
import os
import signal
import threading
import time

import pytest

from tensorwasm.errors import InvalidArgs, ReloadFailed, ServerUnreachable
from tensorwasm.server.process import record
from tensorwasm.server.process.record import NAME, SupervisorFile, request_reload
from tensorwasm.server.process.reloading import ReloadState


@pytest.fixture
def file(tmp_path):
    made = SupervisorFile(tmp_path)
    yield made
    os.close(made._handle)


@pytest.fixture
def signals(monkeypatch):
    """Signals that would be sent; the actions of `answers` happen then, and each time that is waited."""
    sent, answers = [], []

    def kill(pid, number):
        sent.append((pid, number))

    monkeypatch.setattr(record.os, "kill", kill)
    mine, sleep = threading.current_thread(), time.sleep

    def wait(seconds):
        if threading.current_thread() is not mine:  # a thread that another test has left
            sleep(seconds)
        elif answers:
            answers.pop(0)()

    monkeypatch.setattr(record.time, "sleep", wait)
    return sent, answers


def test_a_reload_is_waited_for_and_its_steps_are_told(tmp_path, file, signals):
    (sent, answers), told = signals, []
    answers += [
        lambda: file.write(ReloadState(begun=1)),
        lambda: file.write(ReloadState(begun=1, progress="one")),
        lambda: file.write(ReloadState(begun=1, progress="two")),
        lambda: file.write(ReloadState(begun=1, ended=1, progress="two")),
    ]
    request_reload(tmp_path, told.append)
    assert sent == [(os.getpid(), signal.SIGUSR2)]
    assert told == ["one", "two"]


def test_one_that_is_given_up_is_an_error(tmp_path, file, signals):
    signals[1].append(lambda: file.write(ReloadState(begun=1, ended=1, failed="it died" * 1000)))
    with pytest.raises(ReloadFailed, match="it died"):
        request_reload(tmp_path, print)


def test_one_that_runs_already_is_not_the_one_that_was_asked_for(tmp_path, file, signals):
    file.write(ReloadState(begun=1))
    left = []
    signals[1].extend(
        [
            lambda: file.write(ReloadState(begun=1, ended=1, failed="the first")),
            lambda: file.write(ReloadState(begun=2, ended=1, failed="the first")),
            lambda: left.append(file.write(ReloadState(begun=2, ended=2))),
        ]
    )
    request_reload(tmp_path, print)
    assert left


def test_a_supervisor_that_ends_meanwhile_is_an_error(tmp_path, signals):
    file = SupervisorFile(tmp_path)
    signals[1].append(lambda: os.close(file._handle))
    with pytest.raises(ServerUnreachable, match="no server runs"):
        request_reload(tmp_path, print)


def test_a_folder_that_no_server_has_is_an_error_that_says_what_to_do(tmp_path, signals):
    with pytest.raises(ServerUnreachable, match="--data"):
        request_reload(tmp_path / "nothing", print)
    os.close(SupervisorFile(tmp_path)._handle)
    assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    with pytest.raises(ServerUnreachable, match="--data"):
        request_reload(tmp_path, print)
    assert not signals[0], "the number may be another process's by now"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1, "more": 2}', '{"pid": "x"}'])
def test_a_record_that_cannot_be_read_is_an_error(tmp_path, file, signals, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ServerUnreachable, match="not a record"):
        request_reload(tmp_path, print)
    assert not signals[0]


def test_a_process_that_may_not_be_signalled_is_an_error(tmp_path, file, monkeypatch):
    def kill(_pid, _number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(record.os, "kill", kill)
    with pytest.raises(ServerUnreachable, match="as the server's user"):
        request_reload(tmp_path, print)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / NAME).symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        SupervisorFile(tmp_path)
    with pytest.raises(ServerUnreachable, match="cannot be read"):
        request_reload(tmp_path, print)
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_only_one_supervisor_has_a_folder(tmp_path, file, signals):
    with pytest.raises(InvalidArgs, match="another server"):
        SupervisorFile(tmp_path)


def test_one_that_looks_whether_a_file_is_free_keeps_no_supervisor_from_it(tmp_path, signals):
    os.close(SupervisorFile(tmp_path)._handle)
    looks = os.open(tmp_path / NAME, os.O_RDONLY)
    assert record._is_free(looks)
    signals[1].append(lambda: os.close(looks))
    os.close(SupervisorFile(tmp_path)._handle)
    assert not signals[1], "it has waited"
