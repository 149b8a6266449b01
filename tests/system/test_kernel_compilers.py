"""Kernels of guarded workers: the parent has them compiled, and keeps them for whatever process comes next."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from fakes.emulation import kernel, store_result
from tensorwasm.errors import CapacityExhausted, DeviceFault, TensorWasmError
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.broker import WorkerBroker
from tensorwasm.runtime.workers.kernels.service import KernelService
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.runtime.workers.process import Patience
from tensorwasm.values import Limits

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="worker processes are Linux's here")

WORKER = str(Path(__file__).resolve().parents[1] / "fakes" / "worker.py")
SOON_S = 60
# A stand-in whose cubins are the texts themselves; it notes each of its runs.
PTXAS = """#!{python} -S
import os, sys
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.0, V13.0.0")
    sys.exit()
import time
os.close(os.open("{runs}/" + str(time.monotonic_ns()), os.O_CREAT))
text = open(sys.argv[-1]).read()
open(sys.argv[sys.argv.index("-o") + 1], "w").write(text)
print("ptxas info    : Used 8 registers")
print("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
"""
TEXT = kernel("mov.u32 %r1, NUMBER;\n" + store_result())
GUEST = """(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (memory (export "memory") 1) (data (i32.const 16) "k") (data (i32.const 1024) "{text}")
  (func (export "load") (result i64)
    (call $load (i32.const 1024) (i32.const {size}) (i32.const 16) (i32.const 1))))"""


def guest(number: int, text: str = TEXT) -> bytes:
    """Return a guest that loads a kernel of its own."""
    made = text.replace("NUMBER", str(number)).replace("\n", " ")
    return bytes(wat2wasm(GUEST.format(text=made.replace("\\", "").replace('"', "\\22"), size=len(made))))


class Asked:
    """A service that answers as it is told."""

    def __init__(self, answer):
        self.answer = answer
        self.jobs = []

    def submit(self, job, done):
        self.jobs.append(job)
        if self.answer is not None:
            done(self.answer)

    def know(self, target):
        self.target = target

    def close(self):
        pass


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Return how often ptxas ran."""
    folder, path = tmp_path / "runs", tmp_path / "ptxas"
    folder.mkdir()
    path.write_text(PTXAS.format(python=sys.executable, runs=folder))
    path.chmod(0o700)
    monkeypatch.setenv("TENSOR_WASM_PTXAS", str(path))
    return lambda: len(list(folder.iterdir()))


@pytest.fixture
def open_executor():
    made = []

    def make(kind, service):
        options = WorkerOptions(program=(WORKER, kind), patience=Patience(beat_s=0.05))
        executor = WorkerExecutor("emulator", isolation="guarded", options=options)
        executor._kernels = service
        made.append(executor)
        return executor

    yield make
    for each in made:
        each.close()


def ask(executor, module=b"any", export="load", tenant="ann", text="some text"):
    request = Request(module=module, export=export, tenant=tenant, argv=(text,), grants=Grants(cuda=True))
    return executor.submit(request).result(SOON_S)


def loads(executor, module, tenant="ann"):
    """Return whether a guest has loaded its kernel."""
    (kernel_id,) = ask(executor, module, tenant=tenant).values
    return kernel_id > 0


class Store(dict):
    def __init__(self):
        self._changed = threading.Condition()

    def put(self, name, data):
        with self._changed:
            self[name] = data
            self._changed.notify_all()

    def wait(self, number):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self) >= number, SOON_S)


def test_a_kernel_is_compiled_once_whatever_process_wants_it(open_executor, runs):
    executor = open_executor("images", KernelService(Store()))
    assert loads(executor, guest(1))
    assert loads(executor, guest(1))
    assert runs() == 1
    (worker,) = executor.workers()
    os.kill(worker.pid, signal.SIGKILL)
    while True:
        try:  # a tenant whose call is lost with the process has one of its own from then on
            assert loads(executor, guest(2), tenant="eve")
            break
        except DeviceFault:
            continue
    before = runs()
    assert loads(executor, guest(1))
    assert executor.workers()[0].pid != worker.pid
    assert runs() == before
    assert loads(executor, guest(1), tenant="bob")
    assert runs() == before + 1, "another tenant's kernel is another one"


def test_kernels_of_all_fronts_are_compiled_once_by_the_parent(open_executor, runs, tmp_path):
    executor, path = open_executor("images", KernelService(Store())), tmp_path / "broker.sock"
    with (
        WorkerBroker(executor, path),
        WorkerExecutor(broker=path) as first,
        WorkerExecutor(broker=path) as second,
    ):
        assert loads(first, guest(1))
        assert loads(second, guest(1))
        assert loads(executor, guest(1))
        assert loads(second, guest(2), tenant="bob")
    assert runs() == 2


def test_a_guest_gets_the_code_of_a_kernel_that_is_refused(open_executor, runs):
    executor = open_executor("images", KernelService(Store()))
    assert not loads(executor, guest(1, TEXT.replace("mov.u32", "brkpt; mov.u32")))
    assert loads(executor, guest(1))
    assert runs() == 1


def test_an_ask_has_the_tenant_text_and_device(open_executor):
    asked = Asked(b"a kernel")
    executor = open_executor("puppet", asked)
    assert ask(executor, export="ask", text="the text").stdout == b"7"
    (job,) = asked.jobs
    assert (job.tenant, job.text, job.entry, job.architecture, job.width) == ("ann", b"the text", "k", (9, 0), "narrow")
    assert (job.target.shared_base, job.target.assembler) == (1024, "ptxas 13.0")


def test_a_refusal_reaches_the_process(open_executor):
    executor = open_executor("puppet", Asked(CapacityExhausted("too many kernels wait")))
    assert b"too many kernels wait" in ask(executor, export="ask").stdout


def test_an_answer_for_a_process_that_has_gone_is_dropped(open_executor):
    asked = Asked(None)
    executor = open_executor("puppet", asked)
    answers = []
    asked.submit = lambda job, done: answers.append(done)
    with pytest.raises(TensorWasmError):
        ask(executor, export="ask_and_die")
    asked.submit = lambda job, done: done(b"a kernel")
    assert ask(executor, export="ask").stdout == b"7"
    for done in answers:
        done(b"an answer that is late")
    assert ask(executor, export="ask").stdout == b"7"


def test_an_ask_for_a_call_that_has_ended_is_refused(open_executor):
    asked = Asked(b"a kernel")
    executor = open_executor("puppet", asked)
    assert ask(executor, export="ask_late").values == (7,)
    assert ask(executor, export="pid", tenant="bob").values
    assert not asked.jobs


def test_a_guest_with_an_empty_text_gets_a_code_and_its_worker_goes_on(open_executor, runs):
    executor = open_executor("images", KernelService(Store()))
    assert loads(executor, guest(1))
    (worker,) = executor.workers()
    assert not loads(executor, guest(2, ""))
    assert [each.pid for each in executor.workers()] == [worker.pid]


def test_a_kernel_of_a_deployed_module_is_compiled_before_its_first_call(open_executor, runs):
    store = Store()
    executor = open_executor("images", KernelService(store))
    executor.prepare("ann", guest(1))  # before there is any process, which says what the device is
    assert loads(executor, guest(2), tenant="bob")
    store.wait(2)
    executor.prepare("ann", guest(3))
    store.wait(3)
    before = runs()
    assert loads(executor, guest(1))
    assert loads(executor, guest(3))
    assert runs() == before == 3
    assert executor.prepared == 2


def test_a_module_of_junk_is_prepared_without_harm(open_executor, runs):
    store = Store()
    executor = open_executor("images", KernelService(store))
    for module in (b"junk", guest(1, ".version 8.0 .entry k( rubbish"), guest(1, TEXT.replace("mov", "brkpt; mov"))):
        executor.prepare("eve", module)
    executor.prepare("ann", guest(4))
    assert loads(executor, guest(5), tenant="bob")
    store.wait(2)
    assert executor.prepared == 1


def test_calls_that_wait_for_new_kernels_hold_up_no_other_tenant(open_executor, runs):
    class OneTenants(KernelService):
        """Compiles for one tenant, and for the other never ends."""

        def submit(self, job, done):
            if job.tenant == "ann":
                super().submit(job, done)

    asked = OneTenants(Store())
    executor = open_executor("images", asked)
    assert loads(executor, guest(0))
    flood = [
        executor.submit(
            Request(
                module=guest(number),
                export="load",
                tenant="flood",
                grants=Grants(cuda=True),
                limits=Limits(wall_s=10 * SOON_S),
            )
        )
        for number in range(1, 65)
    ]
    assert loads(executor, guest(100)), "a new kernel"
    assert not any(each.done() for each in flood)
