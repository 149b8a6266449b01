"""What workers of one executor keep apart between tenants. The workers are puppets that keep to the protocol."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tensorwasm.gpu.cuda.assembler import Assembler
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers import isolation
from tensorwasm.runtime.workers.conversation import known_targets
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.runtime.workers.process import Patience

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="worker processes are Linux's here")

PUPPET = (str(Path(__file__).resolve().parents[1] / "fakes" / "worker.py"), "puppet")
SOON_S = 60


def ask(executor, tenant, module=b"any"):
    """Return the process that answers."""
    request = Request(module=module, export="pid", tenant=tenant)
    return executor.submit(request).result(SOON_S).values[0]


@pytest.mark.rule("4-process")
def test_on_a_gpu_without_a_guard_tenants_share_no_process_unless_that_is_said(monkeypatch):
    monkeypatch.setattr(isolation, "find_assembler", lambda *_: None)
    with WorkerExecutor("cuda:0", options=WorkerOptions(program=PUPPET, patience=Patience(beat_s=0.05))) as executor:
        ann, bob = ask(executor, "ann"), ask(executor, "bob")
        assert ann != bob
        assert ask(executor, "ann") == ann
        assert {worker.tenant for worker in executor.workers()} == {"ann", "bob"}


def test_where_gpus_have_no_windows_tenants_share_no_process(monkeypatch):
    monkeypatch.setattr(isolation, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(isolation, "find_assembler", lambda *_: Assembler("ptxas", (13, 0)))
    with WorkerExecutor("cuda:0", options=WorkerOptions(program=PUPPET, patience=Patience(beat_s=0.05))) as executor:
        assert ask(executor, "ann") != ask(executor, "bob")


def test_on_a_gpu_with_a_ptxas_beside_it_tenants_share_guarded_workers(monkeypatch):
    monkeypatch.setattr(isolation, "find_assembler", lambda *_: Assembler("ptxas", (13, 0)))
    with WorkerExecutor("cuda:0", options=WorkerOptions(program=PUPPET, patience=Patience(beat_s=0.05))) as executor:
        assert ask(executor, "ann") == ask(executor, "bob")
        assert [worker.tenant for worker in executor.workers()] == [None]


@pytest.mark.rule("8-modules")
def test_a_worker_that_tenants_share_is_sent_the_module_of_each(monkeypatch):
    sent, send = [], known_targets.send_blob
    monkeypatch.setattr(known_targets, "send_blob", lambda number, data: sent.append(data) or send(number, data))
    with WorkerExecutor("emulator", options=WorkerOptions(program=PUPPET, patience=Patience(beat_s=0.05))) as executor:
        assert len({ask(executor, tenant) for tenant in ("ann", "bob", "ann", "bob")}) == 1
    assert sent == [b"any"] * 2
