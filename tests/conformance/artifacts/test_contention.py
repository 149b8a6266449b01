"""Threads that want the same, in every place; each has a store of its own, as processes have."""

import itertools
import threading

from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import QuotaExceeded, TensorWasmError


def _together(*actions):
    """Run actions at the same time, and return what they raised."""
    errors = []
    gate = threading.Barrier(len(actions))

    def run(action):
        gate.wait()
        try:
            action()
        except TensorWasmError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_quotas_are_exact_under_contention(backend):
    stores = [ContentStore(backend, Quota(artifact_bytes=130, count=100)) for _ in range(4)]  # as if processes

    def fill(number):
        for n in range(8):
            stores[number % 4].put("t", "module", bytes([number, n]) * 5)

    errors = _together(*(lambda number=number: fill(number) for number in range(8)))
    assert {type(error) for error in errors} == {QuotaExceeded}
    assert stores[0].usage("t").artifact_bytes == 130
    assert stores[0].verify().count == 13
    assert stores[0].collect(0).leftovers == 0


def test_the_same_bytes_put_at_once_are_one_artifact(backend):
    stores = [ContentStore(backend) for _ in range(4)]
    assert _together(*(lambda s=s: s.put("t", "module", b"same" * 100) for s in stores * 2)) == []
    assert stores[0].usage("t").count == 1
    assert stores[0].verify().findings[0].state == "unreachable"
    assert len(backend.origin.leftovers("t")) <= 1


def test_a_new_artifact_is_never_collected(backend):
    clock = itertools.count(10**18, 100 * 10**9)
    now_ns = [next(clock)]
    putting, collecting = (ContentStore(backend, now_ns=lambda: now_ns[0]) for _ in range(2))
    done = threading.Event()

    def put():
        try:
            for _ in range(40):
                now_ns[0] = next(clock)  # what is there is old now, and put again at the same moment as collected
                digest = putting.put("t", "module", b"again and again")
                assert putting.get("t", digest) == b"again and again"
                putting.delete("t", putting.put("t", "module", b"another"))
        finally:
            done.set()

    def collect():
        while not done.is_set():
            collecting.collect(60)

    assert _together(put, collect) == []


def test_a_read_during_a_repair_gets_the_new_bytes(backend):
    """The bytes that its catalog told of are gone, and another catalog tells of others."""
    store, other = ContentStore(backend), ContentStore(backend)
    digest = store.put("t", "module", b"m" * 100)
    read, asked = backend.read, []

    def race(tenant, key, stored_bytes):
        asked.append(key)
        if len(asked) == 1:
            backend.origin.erase("t", [key])
            backend.erase("t", [key])
            other.put("t", "module", b"m" * 100)
        return read(tenant, key, stored_bytes)

    backend.read = race
    assert store.get("t", digest) == b"m" * 100
    assert asked[0] != asked[-1]
