"""A server with several processes, of which one dies or all are replaced while clients go on."""

import json
import os
import re
import signal
from contextlib import ExitStack

from wasmtime import wat2wasm

from fakes.services import ADD, SUB
from loads import Load, reload
from neighbours import deploy, until
from servers import running_server
from victims import birth_of, by_role, kill

FRONTS = 2
STAY_MS = 15_000
STAYS = bytes(
    wat2wasm("""(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (import "wasi:scheduler/host@0.1.0" "deadline-remaining-ms" (func $left (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "az")
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "stay")
    (drop (call $emit (i32.const 0) (i32.const 1)))
    (loop $again (br_if $again (i32.gt_u (call $left) (i32.const 5000))))
    (drop (call $emit (i32.const 1) (i32.const 1)))))""")
)
"""``stay`` ends five seconds before its deadline."""

MOST = 20
"""Connections after which each front must have one."""


def started(stack, tmp_path):
    """Return a server with a function, a client of it, and loads over connections to each of its fronts."""
    server = stack.enter_context(running_server(tmp_path / "data", "--workers", str(FRONTS)))
    client = stack.enter_context(server.client())
    function = deploy(client, ADD, "add")
    until(lambda: client.get("/readyz").status_code == 200)
    loads = []
    while len(busy_fronts(client)) < FRONTS or len(loads) < 4:
        assert len(loads) < MOST
        loads.append(stack.enter_context(Load(server, function)))
    return server, client, loads


def busy_fronts(client):
    """Return the fronts that have called functions, as the metrics say."""
    counts = re.findall(r'tensor_wasm_front_requests_total\{pid="(\d+)"\} (\S+)', client.get("/metrics").text)
    return {int(pid) for pid, count in counts if float(count) > 10}


def roles(server):
    return by_role(server.process.pid)


def go_on(loads):
    """Return once each load has had ten more answers."""
    before = [len(each.answers) for each in loads]
    until(lambda: all(len(each.answers) > count + 10 for each, count in zip(loads, before, strict=True)))


def test_a_front_that_is_killed_ends_its_own_connections_only_and_is_replaced(tmp_path):
    with ExitStack() as stack:
        server, _, loads = started(stack, tmp_path)
        victim = roles(server)["front"][0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(roles(server)["front"]) == FRONTS and victim not in roles(server)["front"])
        go_on(loads)
        failed = [[status for status, _ in load.wrong()] for load in loads]
        assert [] in failed, "connections to the other front never ended"
        # A client between two calls finds its connection closed, and opens another before it sends the next.
        assert all(each in ([], [0]) for each in failed), "the victim's connections ended once"


def test_calls_go_on_while_the_primary_is_replaced_and_a_deploy_waits_for_the_next(tmp_path):
    with ExitStack() as stack:
        server, client, loads = started(stack, tmp_path)
        (victim,) = roles(server)["primary"]
        os.kill(victim, signal.SIGKILL)
        until(lambda: birth_of(victim) is None)
        function = deploy(client, SUB, "sub")
        called = client.post(f"/functions/{function}/invoke", json={"export": "add", "args": [5, 3]})
        assert called.json()["result"] == [2]
        go_on(loads)
        assert [load.wrong() for load in loads] == [[]] * len(loads)


def test_a_reload_loses_no_call_of_many_connections_and_no_line_of_the_audit_log(tmp_path):
    with ExitStack() as stack:
        server, _, loads = started(stack, tmp_path)
        before = roles(server)
        replaced = [f"front {number} of {FRONTS} is replaced" for number in range(1, FRONTS + 1)]
        told = ["the broker of GPU workers is replaced", *replaced, "the primary is replaced", ""]
        assert reload(server) == (0, "\n".join(told), "")
        go_on(loads)
        after = roles(server)
        for role in ("front", "primary", "broker"):
            assert not set(before[role]) & set(after[role])
    assert [load.wrong() for load in loads] == [[]] * len(loads)
    lines = map(json.loads, (tmp_path / "data" / "audit.log").read_text().splitlines())
    called = [line["request_id"] for line in lines if line.get("action") == "invoke_function"]
    assert len(called) == len(set(called)) == sum(len(load.answers) for load in loads)


def test_a_reload_replaces_the_broker_and_leaves_a_call_in_its_workers_alone(tmp_path):
    own = {"TENSOR_WASM_DEVICE": "emulator", "TMPDIR": str(tmp_path)}
    with (
        running_server(tmp_path / "data", "--workers", str(FRONTS), environment=own) as server,
        server.client() as client,
    ):
        function = deploy(client, STAYS, "stays", grants=["cuda"])
        until(lambda: roles(server).get("broker"))
        (before,) = roles(server)["broker"]

        def add(client):
            called = client.post(f"/functions/{function}/invoke", json={"export": "add", "args": [2, 3]})
            return called.json().get("result") == [5]

        call = {"export": "stay", "deadline_ms": STAY_MS}
        with client.stream("POST", f"/functions/{function}/invoke-stream", json=call, timeout=60) as stream:
            chunks = stream.iter_raw(1)
            assert next(chunks) == b"a"
            (worker,) = roles(server)["worker"]
            assert reload(server)[0] == 0
            assert birth_of(worker) is not None, "the call is in it"
            (after,) = {*roles(server)["broker"]} - {before}
            with server.client() as later:
                assert add(later)
            assert len(roles(server)["worker"]) == 2, "that call was made in a worker of the new broker"
            assert b"".join(chunks) == b"z", "the call in the old one has all its time"
        until(lambda: birth_of(before) is None and birth_of(worker) is None)
        assert roles(server)["broker"] == [after]
        with server.client() as later:
            assert add(later)
        assert server.stop() == 0
    assert list(tmp_path.glob("tensor-wasm-*")) == []


def test_the_next_brokers_workers_are_forked_from_the_same_template_and_the_next_releases_from_another(tmp_path):
    with running_server(tmp_path / "data", "--workers", str(FRONTS)) as server, server.client() as client:
        function = deploy(client, ADD, "add", grants=["cuda"])

        def add():
            called = client.post(f"/functions/{function}/invoke", json={"export": "add", "args": [2, 3]})
            return called.json().get("result") == [5]

        until(add)
        (template,) = roles(server)["worker template"]
        for role in ("worker", "broker", "worker"):
            (victim,), (worker,) = roles(server)[role], roles(server)["worker"]
            kill(victim)
            until(lambda victim=victim, worker=worker: birth_of(victim) is None and birth_of(worker) is None)
            until(add)
            assert roles(server)["worker template"] == [template]
        (worker,) = roles(server)["worker"]
        kill(template)
        until(lambda: birth_of(worker) is None)
        until(add)
        (following,) = roles(server)["worker template"]
        assert reload(server)[0] == 0
        until(lambda: birth_of(following) is None)
        until(add)
        assert following not in roles(server)["worker template"]
        assert server.stop() == 0
