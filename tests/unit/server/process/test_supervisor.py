"""The parent of the server: when it starts another, and when it gives up."""

import json
import os
import signal
import sys

import pytest

from tensorwasm.server.process import supervisor
from tensorwasm.server.process.address import ListenAddress
from tensorwasm.server.process.supervisor import MAX_VAIN, ServeOptions, Supervisor

OPTIONS = ServeOptions(ListenAddress("127.0.0.1", 8080), sys.stderr.fileno())


class Life:
    """Servers that end with these codes, after they have served or before."""

    def __init__(self, monkeypatch, *ends):
        self.ends = list(ends)
        self.orders = []
        self.waits_s = []
        made = Supervisor(OPTIONS.address, {})
        monkeypatch.setattr(made, "_run_one", self.run_one)
        monkeypatch.setattr(made, "_pause", self.waits_s.append)
        self.supervisor = made

    def run_one(self, order):
        self.orders.append(order)
        code, served = self.ends.pop(0)
        if code == "stop":
            self.supervisor._stopping = True
            return 0, served
        return code, served

    def run(self):
        return self.supervisor._keep(OPTIONS)


@pytest.mark.parametrize("code", [0, 2, 4])
def test_a_server_that_ends_normally_or_refuses_is_not_restarted(monkeypatch, code):
    life = Life(monkeypatch, (code, True))
    assert life.run() == code
    assert len(life.orders) == 1


@pytest.mark.parametrize("code", [1, -9, -11, 137])
def test_a_crashed_server_is_restarted_and_its_address_printed_once(monkeypatch, code, capsys):
    life = Life(monkeypatch, (code, True), (code, True), ("stop", True))
    assert life.run() == 0
    assert [order.announce for order in life.orders] == [True, False, False]
    assert life.waits_s == [supervisor.FIRST_WAIT_S] * 2
    assert capsys.readouterr().err.count("starting it again") == 2


def test_a_server_that_has_served_is_always_restarted_at_once(monkeypatch):
    life = Life(monkeypatch, *[(-9, True)] * 100, ("stop", True))
    assert life.run() == 0
    assert life.waits_s == [supervisor.FIRST_WAIT_S] * 100


def test_a_server_killed_before_it_listens_leaves_the_announcement_to_the_next(monkeypatch):
    life = Life(monkeypatch, (-9, False), (-9, False), (-9, True), ("stop", True))
    assert life.run() == 0
    assert [order.announce for order in life.orders] == [True, True, True, False]


def test_the_supervisor_gives_up_on_servers_that_never_serve(monkeypatch, capsys):
    life = Life(monkeypatch, *[(-11, False)] * 20)
    assert life.run() == 1
    assert len(life.orders) == MAX_VAIN
    assert life.waits_s == sorted(life.waits_s)
    assert max(life.waits_s) <= supervisor.MAX_WAIT_S
    assert "SIGSEGV" in capsys.readouterr().err


def test_a_server_that_served_resets_the_count(monkeypatch):
    vain = [(-9, False)] * (MAX_VAIN - 1)
    assert Life(monkeypatch, *vain, (-9, True), *vain, ("stop", True)).run() == 0


TOLD = "import os, sys; order = sys.stdin.read(); serve = lambda: os.write(int(sys.argv[2]), b'1'); "


def make_supervisor(monkeypatch, script):
    monkeypatch.setattr(supervisor, "PROGRAM", ("-c", TOLD + script))
    return Supervisor(OPTIONS.address, {})


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("serve(); os._exit(7)", (7, True)),
        ("serve(); serve(); os._exit(7)", (7, True)),
        ("os._exit(7)", (7, False)),
        ("serve(); os.kill(os.getpid(), 9)", (-9, True)),
        ("os.kill(os.getpid(), 9)", (-9, False)),
        ("serve(); os._exit(0 if '8080' in order else 7)", (0, True)),
    ],
)
def test_a_server_reports_through_its_pipe_that_it_serves(monkeypatch, script, expected):
    made = make_supervisor(monkeypatch, script)
    try:
        assert made._run_one(OPTIONS) == expected
        assert (made._spare is not None) == (script.count("serve()") == 2), "one that loads has the processor to itself"
    finally:
        if made._spare is not None:
            made._spare.close()


@pytest.mark.parametrize("dies", [False, True])
def test_the_spare_serves_next_unless_it_died(monkeypatch, dies):
    made = make_supervisor(monkeypatch, "serve(); serve(); os._exit(1)")
    made._run_one(OPTIONS)
    spare = made._spare
    if dies:
        spare.process.kill()
        spare.process.wait()
    try:
        assert made._run_one(OPTIONS) == (1, True)
        assert (spare.process.returncode == 1) != dies
    finally:
        made._spare.close()


def test_a_server_goes_on_where_no_spare_can_be_started(monkeypatch, capsys):
    made = make_supervisor(monkeypatch, "serve(); serve(); os._exit(0)")
    start, started = supervisor.subprocess.Popen, []

    def once(*arguments, **options):
        if started:
            raise BlockingIOError(11, "no process is free")
        started.append(True)
        return start(*arguments, **options)

    monkeypatch.setattr(supervisor.subprocess, "Popen", once)
    assert made._run_one(OPTIONS) == (0, True)
    assert made._spare is None
    assert made._run_one(OPTIONS) == (1, False), "which counts as one that died before it served"
    assert "no process is free" in capsys.readouterr().err


def test_a_server_started_during_a_stop_is_stopped(monkeypatch):
    made = make_supervisor(monkeypatch, "import signal; signal.pause()")
    made._stopping = True
    assert made._run_one(OPTIONS) == (-15, False)


def test_options_survive_json_and_contain_no_secrets():
    order = ServeOptions(ListenAddress("::1", 80), 3, 1000, announce=False)
    assert ServeOptions.from_json(order.to_json()) == order
    assert set(json.loads(order.to_json())) == {"address", "listening", "max_body_bytes", "announce"}


def test_sighup_does_not_kill_a_starting_server():
    """A case of 2026-11-23: one that was about to stand by had not said yet what SIGHUP means to it."""
    server = supervisor._ServerProcess(os.environ, OPTIONS.listening)
    try:
        server.process.send_signal(signal.SIGHUP)
        server.process.stdin.close()  # it is told nothing, so it ends
        assert server.process.wait(60) == 1
    finally:
        server.close()
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
