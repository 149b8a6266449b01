"""A kernel is loaded once for a tenant, and nothing that one sandbox leaves in it is there for the next."""

import threading

import pytest

from fakes.device import FakeDevice
from strategies.kernels import FILL, NOTHING, VECTOR_ADD, padded, with_global, with_variable
from tensorwasm.errors import DeviceLost, InvalidKernel, InvokeTimeout, MalformedPtx, QuotaExceeded
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger, MemoryLedgerStatistics
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.resources.guarded_compiler import digest
from tensorwasm.gpu.resources.kernel_cache import KernelCache
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import NEVER, Deadline

HERE = (9, 0)
CONSTANT = with_variable(b"const", 4)


@pytest.fixture
def device():
    device = FakeDevice()
    yield device
    assert device.broken == []


@pytest.fixture
def ledger():
    return MemoryLedger()


@pytest.fixture
def shared(device, ledger):
    accounts = Accounts(ledger)
    accounts.register("other", 1 << 20)
    with SharedDevice(device, accounts, Gate()) as shared:
        yield shared
    assert device.holds_nothing()
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)


def loads(device):
    return device.calls.count("load")


def acquire(cache, text, entry, tenant="a"):
    key = tenant, digest(text), entry, HERE, "narrow"
    return cache.find(key) or cache.load(key, cache.draft(key, text, NEVER), NEVER)


def test_sandboxes_of_one_tenant_share_a_kernel(shared, device):
    for _ in range(3):
        with shared.open_session() as session:
            first = session.kernels.load(FILL, "fill", NEVER)
            second = session.kernels.load(FILL, "fill", NEVER)
            assert first != second
            assert session.statistics().kernels == 2
            assert session.statistics().ptx_bytes == 2 * len(FILL)
    assert loads(device) == 1
    assert "unload" not in device.calls


@pytest.mark.rule("8-kernels")
def test_tenants_do_not_share(shared, device):
    with shared.open_session() as one, shared.open_session("other") as two:
        one.kernels.load(FILL, "fill", NEVER)
        two.kernels.load(FILL, "fill", NEVER)
        assert loads(device) == 2


@pytest.mark.parametrize(("text", "entry"), [(FILL, "fill"), (VECTOR_ADD, "vector_add"), (padded(FILL, 999), "fill")])
def test_other_texts_are_other_kernels(shared, device, text, entry):
    with shared.open_session() as session:
        session.kernels.load(NOTHING, "nothing", NEVER)
        session.kernels.load(text, entry, NEVER)
        assert loads(device) == 2


def test_other_architectures_are_other_kernels(shared, device):
    with shared.open_session() as one, shared.open_session(architecture=(7, 5)) as two:
        one.kernels.load(FILL, "fill", NEVER)
        two.kernels.load(FILL, "fill", NEVER)
        assert loads(device) == 2


@pytest.mark.parametrize("text", [with_global(4), CONSTANT], ids=["global", "const"])
@pytest.mark.rule("4-variables")
def test_a_module_with_variables_is_loaded_for_each_and_parsed_once(shared, device, ledger, text):
    models = []
    load = device.load
    device.load = lambda module, deadline: models.append(module) or load(module, deadline)
    with shared.open_session() as one, shared.open_session() as two:
        one.kernels.load(text, "nothing", NEVER)
        two.kernels.load(text, "nothing", NEVER)
        assert one.statistics().device_bytes == two.statistics().device_bytes == 4
        assert ledger.statistics().device_bytes == 8
        assert len(device.modules) == 2
    assert not device.modules
    assert len(models) == 2
    assert models[0] is models[1]


def test_a_refused_text_is_refused_again(shared, device):
    with shared.open_session() as session:
        for _ in range(2):
            with pytest.raises(InvalidKernel):
                session.kernels.load(FILL, "full", NEVER)
            device.failures["load"] = MalformedPtx("ptxas refuses it")
            with pytest.raises(MalformedPtx):
                session.kernels.load(FILL, "fill", NEVER)
        assert loads(device) == 2


def test_a_deadline_that_passed_loads_nothing_even_if_it_is_there(shared):
    with shared.open_session() as session:
        session.kernels.load(FILL, "fill", NEVER)
        with pytest.raises(InvokeTimeout):
            session.kernels.load(FILL, "fill", Deadline.after(0))
        assert session.statistics().kernels == 1


def test_idle_kernels_are_kept_within_a_count(device):
    cache = KernelCache(device, max_idle=2)
    texts = [padded(FILL, len(FILL) + extra) for extra in range(4)]
    kernels = [acquire(cache, text, "fill") for text in texts]
    assert (cache.held, cache.idle) == (4, 0)
    for kernel in kernels:
        cache.release(kernel)
    assert (cache.held, cache.idle, len(device.modules)) == (0, 2, 2)
    assert acquire(cache, texts[3], "fill") is kernels[3]
    assert acquire(cache, texts[0], "fill") is not kernels[0]
    assert loads(device) == 5


def test_idle_kernels_are_kept_within_a_size(device):
    cache = KernelCache(device, max_idle_bytes=1000)
    for size in (600, 700, 1001):
        cache.release(acquire(cache, padded(FILL, size), "fill"))
        assert cache.idle <= 1
    assert cache.idle == 0
    assert not device.modules


def test_a_kernel_that_is_held_is_not_unloaded(device):
    cache = KernelCache(device, max_idle=0)
    first, second = acquire(cache, FILL, "fill"), acquire(cache, FILL, "fill")
    cache.release(first)
    assert first is second
    assert len(device.modules) == 1
    assert cache.close() == []
    assert len(device.modules) == 1
    cache.release(second)
    assert not device.modules


def test_two_that_load_at_once_keep_one(device):
    cache = KernelCache(device)
    both = threading.Barrier(2)
    load, found = device.load, []

    def slowly(module, deadline):
        both.wait(10)
        return load(module, deadline)

    device.load = slowly
    threads = [threading.Thread(target=lambda: found.append(acquire(cache, FILL, "fill"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found[0] is found[1]
    assert (len(device.modules), cache.held) == (1, 1)
    for kernel in found:
        cache.release(kernel)
    assert cache.idle == 1
    assert cache.close() == []
    assert device.holds_nothing()


def test_a_second_copy_that_cannot_be_dropped_holds_nothing(device):
    cache = KernelCache(device)
    key = "a", digest(FILL), "fill", HERE, "narrow"
    draft = cache.draft(key, FILL, NEVER)
    first = cache.load(key, draft, NEVER)
    device.failures["unload"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        cache.load(key, draft, NEVER)
    cache.release(first)
    assert (cache.held, cache.idle, len(device.modules)) == (0, 1, 2)
    assert cache.close() == []
    assert not device.modules


def test_many_threads_take_and_give(device):
    cache = KernelCache(device, max_idle=1)
    texts = [padded(FILL, len(FILL) + extra) for extra in range(3)]

    def work():
        for turn in range(60):
            cache.release(acquire(cache, texts[turn % 3], "fill"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.held == 0
    assert len(device.modules) == cache.idle <= 1
    assert cache.close() == []
    assert device.holds_nothing()


def test_an_unloaded_kernel_is_gone_for_the_session_and_kept_for_the_next(shared, device):
    with shared.open_session() as session:
        kernel = session.kernels.load(FILL, "fill", NEVER)
        session.kernels.unload(kernel, NEVER)
        with pytest.raises(InvalidKernel):
            session.kernels.unload(kernel, NEVER)
        assert session.statistics().kernels == session.statistics().ptx_bytes == 0
        assert session.kernels.load(FILL, "fill", NEVER) == kernel + 1
    assert loads(device) == 1


def test_a_kernel_that_the_device_did_not_unload_is_unloaded_at_the_end(shared, device):
    session = shared.open_session()
    kernel = session.kernels.load(with_global(4), "nothing", NEVER)
    device.failures["unload"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        session.kernels.unload(kernel, NEVER)
    assert session.statistics().device_bytes == 4
    session.close()
    assert not device.modules


def test_a_surplus_kernel_that_the_device_did_not_unload_is_no_failure_of_who_gave_back_another(device):
    cache = KernelCache(device, max_idle=0)
    kernel = acquire(cache, FILL, "fill")
    device.failing["unload"] = DeviceLost("gone")
    cache.release(kernel)
    assert len(cache.close()) == 1
    device.failing.clear()
    assert cache.close() == []
    assert device.holds_nothing()


def test_a_load_that_gets_no_stream_for_compiled_code_has_changed_nothing(shared, device):
    with shared.open_session(layout=SessionLayout()) as session:
        device.failures["open_stream"] = QuotaExceeded("no more streams")
        with pytest.raises(QuotaExceeded):
            session.kernels.load(FILL, "fill", NEVER)
        assert session.statistics().kernels == session.statistics().ptx_bytes == 0
        session.kernels.load(FILL, "fill", NEVER)
        assert session.failure is None


def test_two_that_load_at_once_have_one_image(device, monkeypatch):
    # Pads have the address of an image, and only the kernel keeps it alive: a second one would free the first.
    cache = KernelCache(device)
    kernel = acquire(cache, FILL, "fill")
    describe, inner = device.native.kernel, []

    def meet(*arguments):
        monkeypatch.setattr(device.native, "kernel", describe)
        inner.append(kernel.image(device, NEVER))  # another thread, while the device is asked
        return describe(*arguments)

    monkeypatch.setattr(device.native, "kernel", meet)
    outer = kernel.image(device, NEVER)
    assert inner == [outer]
    assert kernel.image(device, NEVER) is outer
    cache.release(kernel)
    assert cache.close() == []
