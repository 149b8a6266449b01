"""The template of GPU workers as the supervisor has it: real ones, which fork processes that only wait."""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

import pytest

from neighbours import until
from tensorwasm.runtime.workers import template as workers
from tensorwasm.runtime.workers.process import Process
from tensorwasm.runtime.workers.template import make_environment
from tensorwasm.server.process import worker_template
from tensorwasm.server.process.worker_template import OnDemandTemplate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

PROGRAM = (
    "-c",
    """
import sys
from tensorwasm.runtime.workers.child.fork_server import run

run(lambda link, handover: link.recv(1), [int(sys.argv[1])], lambda: None)
""",
)


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(worker_template, "PROGRAM", PROGRAM)
    made = OnDemandTemplate({**os.environ, "TENSOR_WASM_API_KERNEL_HMAC_KEY": "a secret"})
    yield made
    made.close()


@pytest.fixture
def ask(made, monkeypatch):
    """Return a function that asks for a worker as a server's process does, which has inherited the socket."""
    monkeypatch.setattr(workers, "_kept", {})
    monkeypatch.setattr(workers, "PROGRAM", PROGRAM)
    workers.adopt(os.dup(made.asking.fileno()))
    with contextlib.ExitStack() as stack:
        for each in workers._kept.values():
            stack.callback(each.close)

        def ask():
            process = Process.spawn(PROGRAM, make_environment(os.environ, None))
            stack.callback(lambda: process.link.fileno() < 0 or process.end())
            return process

        yield ask


def begun(made, process):
    until(lambda: made.look() or process.pid is not None)
    return process


def test_a_template_is_started_when_it_is_asked_and_its_workers_are_its_own(made, ask):
    assert made.pid is None
    first, second = ask(), ask()
    assert [begun(made, each).pid for each in (first, second)] == [first.pid, second.pid]
    children = Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()
    assert {int(each) for each in children} == {first.pid, second.pid}
    assert b"a secret" not in Path(f"/proc/{made.pid}/environ").read_bytes()


def test_one_that_dies_takes_its_workers_along_and_is_followed_when_it_is_asked_again(made, ask, capfd):
    process = begun(made, ask())
    before, waiting = made.pid, os.pidfd_open(made.pid)
    os.kill(before, signal.SIGSTOP)
    unheard = ask()
    os.kill(before, signal.SIGKILL)
    select.select([waiting], [], [])
    os.close(waiting)
    made.look()
    for each in (process, unheard):
        each.wait(60)
        assert each.orphan
    assert made.pid is None
    assert "the template of GPU workers has ended" in capfd.readouterr().err
    assert begun(made, ask()).pid is not None
    assert made.pid != before


def test_one_that_is_left_goes_on_for_those_that_ask_it_and_ends_with_the_last(made, ask, monkeypatch):
    first = begun(made, ask())
    template = os.pidfd_open(made.pid)
    monkeypatch.setattr(made, "close", lambda: None)
    made.leave()
    second = ask()
    until(lambda: second.pid is not None)
    assert not select.select([template], [], [], 0)[0]
    for each in workers._kept.values():
        each.close()
    assert (first.end(), second.end()) == (-signal.SIGKILL,) * 2
    assert select.select([template], [], [], 60)[0]
    os.close(template)


def test_one_that_cannot_be_started_lets_go_of_what_it_was_asked(made, ask, monkeypatch, capfd):
    def fail(*_):
        raise BlockingIOError(11, "no room")

    monkeypatch.setattr(worker_template, "start_template", fail)
    process = ask()
    made.look()
    process.wait(60)
    assert (process.orphan, process.end()) == (True, None)
    assert "no process can be started: no room" in capfd.readouterr().err
