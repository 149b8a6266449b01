"""Kernels compiled in processes of their own: for whom, in which order, and what the processes may do."""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from fakes.emulation import kernel, store_result
from tensorwasm.errors import CapacityExhausted, DeviceUnavailable, KernelTooLarge, MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.resources.guarded_compiler import KernelJob, KernelTarget
from tensorwasm.gpu.resources.kernel_store import decode
from tensorwasm.guest.engine.job_process import LENGTH
from tensorwasm.runtime.workers.kernels import service
from tensorwasm.runtime.workers.kernels.child import MAX_ANSWER_BYTES
from tensorwasm.runtime.workers.kernels.room import Amount
from tensorwasm.runtime.workers.kernels.service import EarlyKernel, KernelService

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)

LIMIT_S = 30.0
TEXT = kernel("mov.u32 %r1, 7;\n" + store_result()).encode()
TARGET = KernelTarget((9, 0), (9, 0), 1024, "ptxas 13.0")
PTXAS = """#!{python} -S
import sys
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.0, V13.0.0")
    sys.exit()
text = open(sys.argv[-1]).read()
open(sys.argv[sys.argv.index("-o") + 1], "w").write("cubin of " + text)
print("ptxas info    : Used 8 registers")
print("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
"""


def job(tenant="ann", text=TEXT, entry="k", target=TARGET):
    return KernelJob(tenant, text, entry, (9, 0), "narrow", target)


HANGING = """#!{python} -S
import os, signal, sys
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.0, V13.0.0")
    sys.exit()
with open("{pipe}", "w") as told:
    told.write(f"{{os.getpid()}} {{os.getcwd()}}\\n")
signal.pause()
"""


class Outcomes:
    """What a service has answered, in order."""

    def __init__(self):
        self.all = []
        self._changed = threading.Condition()

    def taker(self, label):
        def take(outcome):
            with self._changed:
                self.all.append((label, outcome))
                self._changed.notify_all()

        return take

    def wait(self, number=1):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= number, LIMIT_S)
            return self.all


@pytest.fixture
def outcomes():
    return Outcomes()


@pytest.fixture
def open_service():
    """Return what opens a service whose compilers run the given Python, or the product's program."""
    made = []

    def make(body=None, store=None):
        program = service.PROGRAM if body is None else ("-c", f"import os, signal, struct, sys\n{body}")
        made.append(KernelService(store, program))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def ptxas(tmp_path, monkeypatch):
    path = tmp_path / "ptxas"
    path.write_text(PTXAS.format(python=sys.executable))
    path.chmod(0o700)
    monkeypatch.setenv("TENSOR_WASM_PTXAS", str(path))


@pytest.fixture
def hanging_ptxas(tmp_path, monkeypatch):
    """Have a ptxas that never ends; return what waits for its next run, and gives its process and folder."""
    path, pipe = tmp_path / "ptxas", tmp_path / "pipe"
    os.mkfifo(pipe)
    path.write_text(HANGING.format(python=sys.executable, pipe=pipe))
    path.chmod(0o700)
    monkeypatch.setenv("TENSOR_WASM_PTXAS", str(path))

    def wait():
        pid, folder = pipe.read_text().split()
        return os.pidfd_open(int(pid)), Path(folder)

    return wait


def ends(process):
    """Return whether a process has ended, or does so soon."""
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        return bool(poll.poll(1000 * LIMIT_S))
    finally:
        os.close(process)


class Store(dict):
    def __init__(self):
        self._changed = threading.Condition()

    def put(self, name, data):
        assert len(name) == 32
        with self._changed:
            self[name] = data
            self._changed.notify_all()

    def wait(self, number=1):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self) >= number, LIMIT_S)


# Answers each job with its tenant's name, refused as `malformed_ptx`; slow for a tenant called slow.
ECHO = """
import msgspec
source, sink = sys.stdin.buffer, sys.stdout.buffer
while header := source.read(4):
    (tenant, *_), limit_s = msgspec.msgpack.decode(source.read(*struct.unpack(">I", header)))
    if tenant == "dead":
        os._exit(3)
    if tenant == "slow":
        signal.pause()
    if tenant == "late":
        failure = [1, "invoke_timeout", "too late", {}, []]
    else:
        failure = [1, "malformed_ptx", tenant, {"line": 0, "column": 0}, []]
    answer = msgspec.msgpack.encode([None, failure])
    sink.write(struct.pack(">I", len(answer)) + answer)
    sink.flush()
"""


def test_a_kernel_is_compiled_once_and_kept(open_service, outcomes, ptxas):
    store = Store()
    first = open_service(store=store)
    for label in range(3):
        first.submit(job(), outcomes.taker(label))
    answers = [outcome for _, outcome in outcomes.wait(3)]
    assert len(set(answers)) == 1
    assert decode(answers[0]).image.startswith(b"cubin of .version")
    assert list(store.values()) == answers[:1]
    later = open_service("sys.exit(1)", store)
    later.submit(job(), outcomes.taker("kept"))
    assert outcomes.wait(4)[3] == ("kept", answers[0])


def test_a_kernel_of_another_tenant_or_target_is_another_one(open_service, outcomes, ptxas):
    store, made = Store(), open_service()
    made = open_service(store=store)
    jobs = [job(), job("bob"), job(target=KernelTarget((9, 0), (8, 0), 1024, "ptxas 13.0")), job(text=TEXT + b"\n")]
    for each in jobs:
        made.submit(each, outcomes.taker(each))
    outcomes.wait(len(jobs))
    assert len(store) == len(jobs)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (job(text=b"rubbish"), MalformedPtx),
        (job(entry="other"), Exception),
        (job(text=TEXT.replace(b"mov.u32", b"brkpt; mov.u32")), UnsupportedPtx),
        (job(target=KernelTarget((9, 0), (9, 0), 1024, "ptxas 1.0")), DeviceUnavailable),
    ],
)
def test_errors_are_those_of_a_compiler_in_this_process(open_service, outcomes, ptxas, asked, error):
    store = Store()
    open_service(store=store).submit(asked, outcomes.taker(0))
    assert isinstance(outcomes.wait()[0][1], error)
    assert not store


@pytest.mark.parametrize(
    "body",
    [
        "sys.stdin.buffer.read(4); os._exit(0)",
        "sys.stdin.buffer.read(4); os.kill(os.getpid(), 11)",
        f"sys.stdin.buffer.read(4); os.write(1, struct.pack('>I', {MAX_ANSWER_BYTES + 1})); signal.pause()",
        "sys.stdin.buffer.read(4); os.write(1, struct.pack('>I', 4) + b'oops'); signal.pause()",
        "sys.stdin.buffer.read(4); os.write(1, struct.pack('>I', 3) + b'\\x92\\xc0\\xc0'); signal.pause()",
        "sys.stdin.buffer.read(4); os.write(1, struct.pack('>I', 5) + b'\\x92\\xc4\\x01x\\xc0'); signal.pause()",
    ],
)
def test_a_process_that_ends_or_answers_rubbish_costs_its_kernel_alone(open_service, outcomes, body):
    store = Store()
    made = open_service(body, store)
    for number in (1, 2):
        made.submit(job(), outcomes.taker(number))
        assert isinstance(outcomes.wait(number)[-1][1], Exception)
    assert not store


def test_a_process_that_ended_is_replaced(open_service, outcomes):
    made = open_service(ECHO)
    for number, tenant in enumerate(("ann", "dead", "bob", "dead", "cid"), start=1):
        made.submit(job(tenant), outcomes.taker(tenant))
        outcomes.wait(number)
    said = [(tenant, type(outcome), outcome.message) for tenant, outcome in outcomes.all]
    assert [each[0] for each in said] == ["ann", "dead", "bob", "dead", "cid"]
    assert [each[2] for each in said if each[1] is MalformedPtx] == ["ann", "bob", "cid"]
    assert {each[1] for each in said if each[0] == "dead"} == {KernelTooLarge}


def test_slow_kernels_hold_up_their_own_tenant_alone(open_service, outcomes, monkeypatch):
    monkeypatch.setattr(service, "_START_S", 0.0)
    made = open_service(ECHO)
    made._lanes[0].limit_s = 2.0
    made.submit(job("slow"), outcomes.taker("slow"))
    made.submit(job("ann"), outcomes.taker("ann"))
    assert outcomes.wait()[0][0] == "ann"
    made.submit(job("slow", TEXT + b"\n"), outcomes.taker("slow"))  # waits behind the first one
    made.submit(job("bob"), outcomes.taker("bob"))
    assert [label for label, _ in outcomes.wait(2)] == ["ann", "bob"]
    assert not made._lanes[0].waiting


def test_a_kernel_that_is_too_slow_for_the_slow_ones_is_refused(open_service, outcomes):
    made = open_service(ECHO)
    made.submit(job("late"), outcomes.taker("late"))
    (_, outcome) = outcomes.wait()[0]
    assert isinstance(outcome, KernelTooLarge)
    assert "60 s" in outcome.message


def test_tenants_take_turns(open_service, outcomes):
    made = open_service(ECHO)
    entered, go = threading.Event(), threading.Event()

    class Blocking(Store):
        def get(self, name, default=None):
            entered.set()
            assert go.wait(LIMIT_S)
            return super().get(name, default)

    made._store = Blocking()
    made.submit(job("ann", TEXT), outcomes.taker("ann"))
    assert entered.wait(LIMIT_S)
    for number in range(1, 5):
        made.submit(job("ann", TEXT + b"\n" * number), outcomes.taker("ann"))
    made.submit(job("bob"), outcomes.taker("bob"))
    made.submit(job("cid"), outcomes.taker("cid"))
    go.set()
    assert [label for label, _ in outcomes.wait(7)] == ["ann", "ann", "bob", "cid", "ann", "ann", "ann"]


@pytest.mark.parametrize("scarce", ["kernels", "bytes"])
def test_what_waits_is_bounded(open_service, outcomes, monkeypatch, scarce):
    most = [Amount(each, 1 << 20) if scarce == "kernels" else Amount(99, each * (len(TEXT) + 8)) for each in (2, 3)]
    monkeypatch.setattr(service, "WAITING_EACH", most[0])
    monkeypatch.setattr(service, "WAITING", most[1])
    made = open_service("signal.pause()")
    for number, tenant in enumerate(("ann", "ann", "ann", "bob", "bob", "cid")):
        made.submit(job(tenant, TEXT + b"\n" * number), outcomes.taker(tenant))
    assert [(label, type(outcome)) for label, outcome in outcomes.wait(3)] == [
        ("ann", CapacityExhausted),
        ("bob", CapacityExhausted),
        ("cid", CapacityExhausted),
    ]
    monkeypatch.setattr(service, "SLOW_S", 0.0)
    for lane in made._lanes:
        lane.limit_s = 0.0


def test_ptxas_that_takes_too_long_ends_and_its_compiler_stays(open_service, outcomes, hanging_ptxas):
    made = open_service()
    for lane in made._lanes:
        lane.limit_s = 1.0
    made.submit(job(entry="other"), outcomes.taker("warm"))  # refused before ptxas: the process has started
    outcomes.wait()
    warm = made._lanes[0].compiler
    made.submit(job(), outcomes.taker("late"))
    runs = [hanging_ptxas(), hanging_ptxas()]  # beside those of all tenants, and beside the slow ones
    assert isinstance(outcomes.wait(2)[1][1], KernelTooLarge)
    for process, folder in runs:
        assert ends(process)
        assert not folder.exists()
    assert made._lanes[0].compiler is warm
    assert warm.fit


def early(tenant="ann", text=TEXT, entry="k"):
    return EarlyKernel(tenant, text, entry, "narrow")


def test_a_kernel_that_is_prepared_is_kept_when_somebody_asks_for_it(open_service, outcomes, ptxas):
    store = Store()
    made = open_service(store=store)
    assert made.prepare(early())
    made.know(TARGET)  # which may be known only later
    store.wait()
    made._program = ("-c", "raise SystemExit(1)")
    made.submit(job(), outcomes.taker("ann"))
    made.submit(job(text=TEXT + b"\0"), outcomes.taker("ann"))  # some guests count the NUL
    answers = [outcome for _, outcome in outcomes.wait(2)]
    assert set(answers) == set(store.values())
    assert made.prepared == 1


def test_nobody_waits_for_what_is_prepared(open_service, outcomes):
    made = open_service(ECHO, Store())
    for number in range(4):
        assert made.prepare(early("slow", TEXT + b"\n" * number))
    assert made.prepare(early())
    made.know(TARGET)
    made.submit(job(), outcomes.taker("ann"))
    assert outcomes.wait()[0][0] == "ann"


def test_what_is_asked_for_is_prepared_no_more(open_service, outcomes):
    store = Store()
    made = open_service(ECHO, store)
    assert made.prepare(early())
    made.submit(job(), outcomes.taker("ann"))
    outcomes.wait()
    assert not made._early
    assert made._early_room.enter("ann", 0)


def test_a_kernel_that_is_being_prepared_too_slowly_goes_on_for_who_asks_for_it(open_service, outcomes):
    store, made = Store(), None
    asked = threading.Event()

    class Asking(Store):
        def get(self, name, default=None):
            if not asked.is_set():  # it is begun, and somebody asks for it
                asked.set()
                made.submit(job("late"), outcomes.taker("late"))

    store = Asking()
    made = open_service(ECHO, store)
    made.prepare(early("late"))
    made.know(TARGET)
    assert asked.wait(LIMIT_S)
    assert "60 s" in outcomes.wait()[0][1].message


def test_what_is_prepared_is_bounded(open_service, monkeypatch):
    monkeypatch.setattr(service, "PREPARED_EACH", Amount(2, 1 << 20))
    monkeypatch.setattr(service, "PREPARED", Amount(3, 1 << 20))
    made = open_service(ECHO, Store())
    kernels = [
        early(tenant, TEXT + b"\n" * number) for number, tenant in enumerate(("ann", "ann", "ann", "bob", "bob"))
    ]
    assert [made.prepare(kernel) for kernel in kernels] == [True, True, False, True, False]
    assert made.prepare(kernels[0]), "it waits already"
    assert not open_service(ECHO).prepare(early()), "nothing would be kept"
    made.close()
    assert not made.prepare(early())


def test_a_service_that_closes_leaves_no_ptxas_and_no_files(open_service, outcomes, hanging_ptxas):
    made = open_service()
    made.submit(job(), outcomes.taker("closed"))
    process, folder = hanging_ptxas()
    made.close()
    assert ends(process)
    assert not folder.exists()
    assert isinstance(outcomes.wait()[0][1], CapacityExhausted)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="LINUX ONLY: scheduling groups")
def test_what_compiles_a_kernel_steps_back_in_the_scheduler_s_groups_too(open_service, outcomes, hanging_ptxas):
    open_service().submit(job(), outcomes.taker("k"))
    process, _ = hanging_ptxas()
    described = Path(f"/proc/self/fdinfo/{process}").read_text().splitlines()
    (pid,) = (line.split()[1] for line in described if line.startswith("Pid:"))
    os.close(process)
    group = Path(f"/proc/{pid}/autogroup").read_text()
    assert group.split()[-1] == "10"
    assert os.getpriority(os.PRIO_PROCESS, int(pid)) >= 10
    assert group != Path("/proc/self/autogroup").read_text()


def test_a_service_that_closes_answers_all(open_service, outcomes):
    made = open_service(ECHO)
    made.close()
    made.submit(job(), outcomes.taker("late"))
    assert isinstance(outcomes.wait()[0][1], CapacityExhausted)


def test_the_length_before_an_answer_is_its_own():
    assert LENGTH.size == 4
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job()), type=KernelJob) == job()
