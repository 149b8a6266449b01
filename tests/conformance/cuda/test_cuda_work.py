"""What only a GPU can show of work: calls back, order, recordings, compiled code's own launches, shares, threads."""

from __future__ import annotations

import ctypes
import struct
import threading

import pytest

from conformance.cuda.kernels import COUNT, SMID
from tensorwasm.errors import InvokeTimeout, LaunchRefused
from tensorwasm.gpu.cuda.driver.calls import load_driver
from tensorwasm.gpu.cuda.opening import open_cuda
from tensorwasm.ptx.parser import parse
from tensorwasm.values import MIB, NEVER, Deadline, LaunchConfig, Region

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
LIMIT_S = 30.0
CALL_BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
LAUNCH_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
GRAPH_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
STREAM_QUERY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
COPY_IN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
COPY_OUT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
CONTEXT_CURRENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))


@pytest.fixture
def loaded(gpu):
    module = gpu.load(parse(COUNT), NEVER)
    yield module
    gpu.unload(module)


@pytest.fixture
def word(gpu):
    """A word of device memory that begins at 0."""
    address = gpu.allocate(4)
    yield address
    gpu.free(address)


def reach(address: int, size_bytes: int = 4) -> list[Region]:
    """Return what a kernel may touch."""
    return [Region(address, size_bytes, host=False)]


def add(device, loaded, address: int, stream) -> None:
    device.launch(loaded, "count", ONE, [struct.pack("<Q", address)], reach(address), stream, NEVER)


def value(device, address: int, stream) -> int:
    into = bytearray(4)
    device.read(address, memoryview(into), stream)
    return int.from_bytes(into, "little")


class Counter:
    """A C function that counts its calls by argument."""

    def __init__(self) -> None:
        self.arguments: list[int] = []
        self.came = threading.Semaphore(0)
        self._function = CALL_BACK(self._call)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def _call(self, argument: int) -> None:
        self.arguments.append(argument)
        self.came.release()


# ---------------------------------------------------------------------------------------------------- calls back


@pytest.mark.hardware("H4")
def test_a_stream_wakes_by_a_call_back_after_its_work_and_once(gpu, flag, poll, stream):
    counter = Counter()
    poll()
    gpu.native.notify(stream, counter.address, 7)
    assert not gpu.ended(stream)
    assert counter.arguments == []
    flag.value = 1
    assert counter.came.acquire(timeout=LIMIT_S)
    gpu.synchronize(stream, NEVER)
    assert counter.arguments == [7]


@pytest.mark.hardware("H4")
def test_a_thousand_call_backs_come_once_each_and_in_order(gpu, loaded, word, stream):
    counter = Counter()
    for number in range(1, 1001):
        add(gpu, loaded, word, stream)
        gpu.native.notify(stream, counter.address, number)
    gpu.synchronize(stream, NEVER)
    assert counter.arguments == list(range(1, 1001))
    assert value(gpu, word, stream) == 1000


# -------------------------------------------------------------------------------------------- order and deadlines


def test_a_stream_waits_for_an_event_of_another(gpu, flag, poll, loaded, word, stream):
    other, event = gpu.open_stream(), gpu.events.open_event()
    poll()
    gpu.events.record(event, stream)
    gpu.events.wait_event(other, event)
    add(gpu, loaded, word, other)
    assert not gpu.events.event_reached(event)
    assert not gpu.ended(other)
    flag.value = 1
    gpu.events.synchronize_event(event, Deadline.after(LIMIT_S))
    gpu.synchronize(other, Deadline.after(LIMIT_S))
    assert value(gpu, word, other) == 1
    gpu.events.close_event(event)
    gpu.close_stream(other)


def test_a_wait_for_an_event_ends_at_its_deadline_and_the_device_lives(gpu, flag, poll, stream):
    event = gpu.events.open_event()
    poll()
    gpu.events.record(event, stream)
    with pytest.raises(InvokeTimeout):
        gpu.events.synchronize_event(event, Deadline.after(0.01))
    flag.value = 1
    gpu.events.synchronize_event(event, Deadline.after(LIMIT_S))
    gpu.events.close_event(event)


def test_waiting_for_an_event_that_was_never_recorded_does_not_block(gpu, stream):
    event = gpu.events.open_event()
    gpu.events.wait_event(stream, event)
    gpu.synchronize(stream, Deadline.after(LIMIT_S))
    assert gpu.events.event_reached(event)
    gpu.events.close_event(event)


# ------------------------------------------------------------------------------------------------------ recordings


def test_a_graph_of_a_hundred_launches_runs_all_of_them_each_time(gpu, loaded, word, stream):
    gpu.graphs.begin_capture(stream)
    for _ in range(100):
        add(gpu, loaded, word, stream)
    graph = gpu.graphs.end_capture(stream)
    assert value(gpu, word, stream) == 0
    for turn in (1, 2):
        gpu.graphs.replay(graph, stream, reach(word), NEVER)
        gpu.synchronize(stream, NEVER)
        assert value(gpu, word, stream) == 100 * turn
    gpu.graphs.close_graph(graph)


def test_work_of_other_threads_does_not_disturb_a_recording(gpu, loaded, word, stream):
    driver = load_driver()
    failed: list[Exception] = []

    def disturb() -> None:
        try:
            pool, other = gpu.pools.open_pool(64 * MIB), gpu.open_stream()
            gpu.pools.pool_free(pool, gpu.pools.pool_allocate(pool, MIB))
            gpu.write(word, bytes(4), other)
            add(gpu, loaded, word, other)
            gpu.synchronize(other, NEVER)
            with gpu.native.bound():  # another library's calls, which a strict recording would refuse
                driver.call("cuMemFree", driver.call("cuMemAlloc", 1 << 16))
            gpu.free(gpu.allocate(64))
            gpu.close_stream(other)
            gpu.pools.close_pool(pool)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failed.append(error)

    gpu.graphs.begin_capture(stream)
    add(gpu, loaded, word, stream)
    thread = threading.Thread(target=disturb)
    thread.start()
    thread.join()
    add(gpu, loaded, word, stream)
    graph = gpu.graphs.end_capture(stream)
    assert failed == []
    gpu.graphs.replay(graph, stream, reach(word), NEVER)
    gpu.synchronize(stream, NEVER)
    assert value(gpu, word, stream) == 3
    gpu.graphs.close_graph(graph)


def test_a_recording_may_end_on_another_thread(gpu, loaded, word, stream):
    graphs = []
    gpu.graphs.begin_capture(stream)
    add(gpu, loaded, word, stream)
    thread = threading.Thread(target=lambda: graphs.append(gpu.graphs.end_capture(stream)))
    thread.start()
    thread.join()
    gpu.graphs.replay(graphs[0], stream, reach(word), NEVER)
    gpu.synchronize(stream, NEVER)
    assert value(gpu, word, stream) == 1
    gpu.graphs.close_graph(graphs[0])


def test_a_recording_that_was_spoilt_is_refused_and_the_stream_runs_again(gpu, loaded, word, stream):
    driver, outside, event = load_driver(), gpu.open_stream(), gpu.events.open_event()
    gpu.events.record(event, outside)
    gpu.graphs.begin_capture(stream)
    add(gpu, loaded, word, stream)
    with gpu.native.bound():
        assert driver.attempt("cuStreamWaitEvent", stream.handle, event.handle, 0)[0] != 0
        assert driver.attempt("cuStreamQuery", stream.handle)[0] != 0
    with pytest.raises(LaunchRefused):
        gpu.graphs.end_capture(stream)
    gpu.events.close_event(event)
    gpu.close_stream(outside)
    add(gpu, loaded, word, stream)
    gpu.synchronize(stream, NEVER)
    assert value(gpu, word, stream) == 1


def test_memory_allocated_during_a_recording_is_cleared_before_the_replay(gpu, loaded, stream):
    gpu.graphs.begin_capture(stream)
    address = gpu.allocate(64 * MIB)
    add(gpu, loaded, address + 64 * MIB - 4, stream)
    graph = gpu.graphs.end_capture(stream)
    gpu.graphs.replay(graph, stream, reach(address, 64 * MIB), NEVER)
    gpu.synchronize(stream, NEVER)
    assert value(gpu, address + 64 * MIB - 4, stream) == 1
    gpu.graphs.close_graph(graph)
    gpu.free(address)


# ------------------------------------------------------------------------------------------------- compiled code


@pytest.mark.hardware("BUG-8-context")
@pytest.mark.parametrize("share", [None, 16])
def test_the_table_launches_copies_replays_and_asks(share):
    device = open_cuda(multiprocessors=share)
    stream, loaded, address = device.open_stream(), device.load(parse(COUNT), NEVER), device.allocate(4)
    table = device.native.table
    kernel, raw = device.native.kernel(loaded, "count", NEVER), device.native.stream(stream)
    device.native.confine(stream, (), NEVER)
    device.graphs.begin_capture(stream)
    add(device, loaded, address, stream)
    graph = device.graphs.end_capture(stream)
    argument, word = ctypes.c_uint64(address), ctypes.c_uint32(40)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    current = ctypes.c_void_p()
    with device.native.bound():
        assert CONTEXT_CURRENT(table.context_current)(ctypes.byref(current)) == 0
        assert current.value == table.context
        assert COPY_IN(table.memcpy_htod_async)(address, ctypes.addressof(word), 4, raw) == 0
        launch = LAUNCH_KERNEL(table.launch_kernel)
        assert launch(kernel.handle, 1, 1, 1, 1, 1, 1, kernel.max_dynamic_shared_bytes, raw, arguments, None) == 0
        assert GRAPH_LAUNCH(table.graph_launch)(device.graphs.graph_handle(graph), raw) == 0
        assert COPY_OUT(table.memcpy_dtoh_async)(ctypes.addressof(word), address, 4, raw) == 0
        device.native.started(stream, NEVER)
        device.synchronize(stream, NEVER)
        assert STREAM_QUERY(table.stream_query)(raw) == 0
    assert word.value == 42
    device.close()
    assert device.statistics().release_failures == 0


@pytest.mark.hardware("BUG-6", "H2-context")
def test_sixteen_threads_bind_the_one_context_and_leave_none_behind(gpu, loaded):
    driver = load_driver()
    failed: list[Exception] = []
    contexts: set[int] = set()
    start = threading.Barrier(16)

    def work() -> None:
        try:
            assert int(driver.call("cuCtxGetCurrent")) == 0
            start.wait()
            stream, address = gpu.open_stream(), gpu.allocate(4)
            for _ in range(50):
                add(gpu, loaded, address, stream)
                with gpu.native.bound(), gpu.native.bound():
                    contexts.add(int(driver.call("cuCtxGetCurrent")))
            gpu.synchronize(stream, NEVER)
            assert value(gpu, address, stream) == 50
            gpu.free(address)
            gpu.close_stream(stream)
            assert int(driver.call("cuCtxGetCurrent")) == 0
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert contexts == {gpu.native.table.context}


# ---------------------------------------------------------------------------------------------------------- shares


@pytest.mark.hardware("BUG-8-context")
@pytest.mark.parametrize("asked", [8, 20])
def test_kernels_of_a_share_run_on_its_multiprocessors_alone(gpu, asked):
    blocks = 20_000
    device = open_cuda(multiprocessors=asked)
    share = device.info.multiprocessors
    assert asked <= share < gpu.info.multiprocessors
    stream, loaded, address = device.open_stream(), device.load(parse(SMID), NEVER), device.allocate(4 * blocks)
    seen: set[int] = set()
    for _ in range(5):
        shape = LaunchConfig((blocks, 1, 1), (1, 1, 1))
        device.launch(loaded, "smid", shape, [struct.pack("<Q", address)], (), stream, NEVER)
        into = bytearray(4 * blocks)
        device.read(address, memoryview(into), stream)
        seen |= set(struct.unpack(f"<{blocks}I", into))
    assert 0 < len(seen) <= share
    device.close()
    assert device.statistics().release_failures == 0


def test_a_share_beside_the_whole_device_takes_nothing_from_it(gpu, loaded, word, stream):
    device = open_cuda(multiprocessors=8)
    add(gpu, loaded, word, stream)
    theirs = device.open_stream()
    address, module = device.allocate(4), device.load(parse(COUNT), NEVER)
    add(device, module, address, theirs)
    assert value(device, address, theirs) == 1
    device.close()
    add(gpu, loaded, word, stream)
    assert value(gpu, word, stream) == 2
