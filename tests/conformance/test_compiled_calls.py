"""The device as compiled code drives it: C functions by their addresses, and being called back."""

from __future__ import annotations

import ctypes
import struct
import threading

import pytest

from conformance.compiled import AT, HOST_FUNCTION, INT, NOT_READY, U64, Compiled
from conformance.rig import Rig, mixed, until
from tensorwasm.values import NEVER, Deadline


@pytest.fixture
def compiled(device):
    with Rig(device) as rig, device.native.bound():
        yield Compiled(rig)


def word(block, at=0):
    return struct.unpack_from("<I", block, 4 * at)[0]


def test_the_context_is_current_where_the_device_is_bound(device):
    found, codes = [], []

    def look():
        context = U64(0)
        with device.native.bound():
            function = ctypes.CFUNCTYPE(INT, AT)(device.native.table.context_current)
            codes.append(function(ctypes.addressof(context)))
            found.append(context.value)

    threads = [threading.Thread(target=look) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.native.table.context != 0
    assert found == [device.native.table.context] * 16
    assert codes == [0] * 16


def test_a_kernel_says_how_it_may_be_launched(compiled):
    kernel = compiled.device.native.kernel(compiled.rig.loaded, "mix", NEVER)
    assert kernel.handle == compiled.kernel != 0
    assert kernel.max_threads == 1024
    assert kernel.max_dynamic_shared_bytes == compiled.device.info.max_shared_bytes
    assert kernel.max_block == (1024, 1024, 64)
    assert kernel.max_grid == ((1 << 31) - 1, 65535, 65535)


def test_launches_copies_and_queries(compiled):
    address = compiled.rig.words(1, 0)
    block, host = compiled.rig.host()
    compiled.confine()
    assert compiled.spin() == 0
    block[:4] = struct.pack("<I", 7)
    expected = 1
    for factor in range(1, 20):
        assert compiled.memcpy_htod_async(address + 4, host, 4, compiled.stream) == 0
        assert compiled.mix(address, address + 4, factor) == 0
        expected = mixed(expected, 7, factor)
    assert compiled.memcpy_dtoh_async(host + 4, address, 4, compiled.stream) == 0
    assert compiled.spin() == 0
    assert word(block, 1) == expected


def test_python_and_compiled_code_share_a_stream(compiled):
    address = compiled.rig.words(1)
    compiled.confine(Deadline.after(60))
    compiled.rig.mix(compiled.own, address, address, 2)
    compiled.mix(address, address, 3)
    compiled.rig.mix(compiled.own, address, address, 4)
    compiled.rig.drain(compiled.own)
    assert compiled.rig.look(address) == [mixed(17, 17, 4)]


def test_compiled_code_records_a_graph_and_replays_it(compiled):
    address = compiled.rig.words(1)
    compiled.confine()
    compiled.device.graphs.begin_capture(compiled.own)
    assert compiled.mix(address, address, 2) == 0
    assert compiled.mix(address, address, 3) == 0
    graph = compiled.rig.graph(compiled.own)
    assert compiled.rig.look(address) == [1]
    handle = compiled.device.graphs.graph_handle(graph)
    assert handle != 0
    for _ in range(2):
        assert compiled.graph_launch(handle, compiled.stream) == 0
    assert compiled.spin() == 0
    once = mixed(4, 4, 3)
    again = mixed(once, once, 2)
    assert compiled.rig.look(address) == [mixed(again, again, 3)]


def test_a_stream_that_is_busy_is_not_ready(compiled):
    block, flag = compiled.rig.host()
    compiled.rig.hold(compiled.own, flag)
    assert not compiled.device.ended(compiled.own)
    assert compiled.stream_query(compiled.stream) == NOT_READY
    block[:4] = struct.pack("<I", 1)
    assert compiled.spin() == 0


def called(calls, block):
    """Return a C function that notes its argument and a word, and an event that says so."""
    event = threading.Event()

    @HOST_FUNCTION
    def function(argument):
        calls.append((argument, word(block)))
        event.set()

    return function, event


@pytest.mark.parametrize("by", ["notify", "launch_host_func"])
def test_a_host_function_is_called_once_when_the_work_has_ended(compiled, by):
    block, flag = compiled.rig.host()
    address = compiled.rig.words(1, 0)
    calls = []
    function, event = called(calls, block)
    place = ctypes.cast(function, AT).value
    block[4:8] = bytes(4)
    compiled.rig.hold(compiled.own, flag + 4)
    compiled.rig.mix(compiled.own, address, address, 2)
    compiled.device.copy_out(flag, address, 4, compiled.own)
    if by == "notify":
        compiled.device.native.notify(compiled.own, place, 12345)
    else:
        assert compiled.launch_host_func(compiled.stream, place, 12345) == 0
    assert not event.wait(0.05)
    block[4:8] = struct.pack("<I", 1)
    assert event.wait(30)
    assert compiled.spin() == 0
    compiled.rig.drain(compiled.own)
    assert calls == [(12345, 4)]


def test_each_of_many_notices_arrives_once_even_with_a_second_waiter(compiled):
    calls, count = [], 40
    block, _ = compiled.rig.host()
    address = compiled.rig.words(1)
    function, _ = called(calls, block)
    streams = [compiled.rig.stream() for _ in range(count)]
    for index, stream in enumerate(streams):
        compiled.rig.mix(stream, address, address, 1)
        compiled.device.native.notify(stream, ctypes.cast(function, AT).value, index + 1)
    compiled.rig.drain(*streams)
    until(lambda: len(calls) == count)
    assert sorted(argument for argument, _ in calls) == list(range(1, count + 1))


def test_a_notice_on_a_stream_without_work_comes_at_once(compiled):
    calls = []
    block, _ = compiled.rig.host()
    function, event = called(calls, block)
    compiled.device.native.notify(compiled.own, ctypes.cast(function, AT).value, 1)
    assert event.wait(30)
    assert len(calls) == 1
