import ctypes
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.compiled import HOST_FUNCTION, SIGNATURES, Compiled
from conformance.rig import Rig, until
from tensorwasm.errors import InvalidHandle, InvokeTimeout, KernelFault, LaunchRefused
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.emulator.handles import Handles
from tensorwasm.values import NEVER, Deadline, Region

FAULT, TIMEOUT, INVALID, HANDLE, NOT_READY, RECORDING = 719, 702, 1, 400, 600, 900


@pytest.fixture
def compiled():
    device = EmulatorDevice()
    with Rig(device) as rig:
        yield Compiled(rig)
    device.close()


def launch(compiled, *, function=None, grid=(1, 1, 1), block=(1, 1, 1), shared=0, stream=None, params=None, extra=None):
    function = compiled.kernel if function is None else function
    stream = compiled.stream if stream is None else stream
    return compiled.launch_kernel(function, *grid, *block, shared, stream, params, extra)


def test_a_stream_that_was_never_confined_may_touch_nothing(compiled):
    address = compiled.rig.words(1)
    assert compiled.mix(address, address, 1) == 0
    assert compiled.stream_query(compiled.stream) == FAULT
    assert compiled.mix(address, address, 1) == FAULT
    assert compiled.memcpy_dtoh_async(None, address, 4, compiled.stream) == INVALID
    with pytest.raises(KernelFault, match="accesses 4 bytes"):
        compiled.device.synchronize(compiled.own, NEVER)
    assert compiled.rig.look(address) == [1]


def test_freed_memory_is_out_of_reach_and_the_rest_is_not(compiled):
    address = compiled.rig.words(1)
    gone = compiled.device.allocate(4)
    compiled.rig.regions.append(Region(gone, 4, host=False))
    compiled.confine()
    compiled.device.free(gone)
    assert compiled.mix(address, address, 1) == 0
    assert compiled.spin() == 0
    assert compiled.rig.look(address) == [3]
    compiled.mix(gone, address, 1)
    assert compiled.spin() == FAULT
    with pytest.raises(KernelFault, match="use after free"):
        compiled.device.ended(compiled.own)


def test_the_deadline_of_a_confinement_is_kept(compiled):
    _, flag = compiled.rig.host()
    compiled.confine(Deadline.after(0.05))
    kernel = compiled.device.native.kernel(compiled.rig.loaded, "await", NEVER).handle
    value = ctypes.c_uint64(flag)
    places = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    assert launch(compiled, function=kernel, params=ctypes.addressof(places)) == 0
    assert compiled.spin() == TIMEOUT
    with pytest.raises(InvokeTimeout):
        compiled.rig.drain(compiled.own)


def test_a_refused_call_changes_nothing(compiled):
    values = (ctypes.c_uint64 * 3)()
    places = (ctypes.c_void_p * 3)(*[ctypes.addressof(values)] * 3)
    params = ctypes.addressof(places)
    nulls = (ctypes.c_void_p * 3)()
    for code, options in (
        (INVALID, {"params": params, "grid": (0, 1, 1)}),
        (INVALID, {"params": params, "block": (1025, 1, 1)}),
        (INVALID, {"params": params, "shared": 1 << 31}),
        (INVALID, {"params": None}),
        (INVALID, {"params": ctypes.addressof(nulls)}),
        (INVALID, {"params": params, "extra": params}),
        (HANDLE, {"params": params, "function": compiled.stream}),
        (HANDLE, {"params": params, "function": 0}),
        (HANDLE, {"params": params, "stream": compiled.kernel}),
        (HANDLE, {"params": params, "stream": 0}),
    ):
        assert launch(compiled, **options) == code, options
    assert compiled.memcpy_htod_async(1, params, 8, compiled.stream) == INVALID
    assert compiled.memcpy_htod_async(1, params, 0, compiled.stream) == 0
    assert compiled.graph_launch(compiled.stream, compiled.stream) == HANDLE
    assert compiled.launch_host_func(compiled.stream, None, None) == INVALID
    assert compiled.context_current(None) == INVALID
    assert compiled.stream_query(compiled.stream) == 0
    assert compiled.device.ended(compiled.own)


def test_handles_end_with_what_they_name(compiled):
    device = compiled.device
    other = device.open_stream()
    handle = device.native.stream(other)
    device.graphs.begin_capture(other)
    graph = device.graphs.end_capture(other)
    graph_handle = device.graphs.graph_handle(graph)
    assert compiled.graph_launch(graph_handle, handle) == 0
    device.close_stream(other)
    device.graphs.close_graph(graph)
    assert compiled.stream_query(handle) == HANDLE
    assert compiled.graph_launch(graph_handle, compiled.stream) == HANDLE
    assert compiled.memcpy_htod_async(0, None, 0, handle) == HANDLE
    for refused in (
        lambda: device.native.stream(other),
        lambda: device.native.confine(other, [], NEVER),
        lambda: device.native.notify(other, 0, 0),
        lambda: device.graphs.graph_handle(graph),
        lambda: device.graphs.replay(graph, compiled.own, [], NEVER),
        lambda: device.native.kernel(object(), "mix", NEVER),
    ):
        with pytest.raises(InvalidHandle):
            refused()
    device.unload(compiled.rig.loaded)
    assert launch(compiled) == HANDLE


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_no_handle_that_was_not_given_is_taken(compiled, data):
    known = {compiled.stream, compiled.kernel}
    handles = st.integers(0, (1 << 64) - 1) | st.integers(0, 200)
    handle = data.draw(handles.filter(lambda one: one not in known))
    name = data.draw(st.sampled_from([name for name in SIGNATURES if name != "context_current"]))
    arguments = [handle if kind is ctypes.c_void_p else 1 for kind in SIGNATURES[name]]
    assert getattr(compiled, name)(*arguments) in {HANDLE, INVALID}


def test_a_recording_stream_is_not_asked(compiled):
    compiled.device.graphs.begin_capture(compiled.own)
    assert compiled.stream_query(compiled.stream) == RECORDING
    for refused in (
        lambda: compiled.device.ended(compiled.own),
        lambda: compiled.device.synchronize(compiled.own, NEVER),
        lambda: compiled.device.native.notify(compiled.own, 1, 1),
        lambda: compiled.device.copy_in(compiled.rig.words(1), ctypes.addressof(ctypes.c_uint32()), 4, compiled.own),
    ):
        with pytest.raises(LaunchRefused):
            refused()
    assert compiled.launch_host_func(compiled.stream, 1, None) == INVALID
    assert compiled.rig.graph(compiled.own).actions == ()


def test_one_query_is_enough_where_no_other_thread_is_at_work(compiled):
    address = compiled.rig.words(1)
    compiled.confine()
    for _ in range(5):
        compiled.mix(address, address, 1)
    assert compiled.stream_query(compiled.stream) == 0
    assert compiled.rig.look(address) == [63]


def test_a_query_leaves_the_work_to_the_background_where_a_notice_is_pending(compiled):
    block, flag = compiled.rig.host()
    compiled.rig.hold(compiled.own, flag)
    done, thread = threading.Event(), []
    function = HOST_FUNCTION(lambda _: (thread.append(threading.current_thread()), done.set()))
    compiled.device.native.notify(compiled.own, ctypes.cast(function, ctypes.c_void_p).value, 0)
    assert compiled.stream_query(compiled.stream) == NOT_READY
    block[0] = 1
    assert done.wait(20)
    assert compiled.spin() == 0
    assert thread != [threading.current_thread()]


def notice(calls):
    done = threading.Event()
    return HOST_FUNCTION(lambda argument: (calls.append(argument), done.set())), done


def test_a_notice_comes_even_if_the_work_fails(compiled):
    calls = []
    function, done = notice(calls)
    place = ctypes.cast(function, ctypes.c_void_p).value
    compiled.rig.mix(compiled.own, 64, 64, 1)
    compiled.device.native.notify(compiled.own, place, 7)
    assert done.wait(20)
    with pytest.raises(KernelFault):
        compiled.rig.drain(compiled.own)
    compiled.device.native.notify(compiled.own, place, 8)
    assert calls == [7, 8]


@pytest.mark.parametrize("end", ["close_stream", "close"])
def test_a_notice_comes_once_when_the_stream_goes_and_its_work_has_ended(end):
    device = EmulatorDevice()
    rig = Rig(device)
    flag = device.unified.allocate_managed(4096)
    rig.regions.append(Region(flag, 4096, host=True))
    stream, calls = device.open_stream(), []
    function, done = notice(calls)
    rig.hold(stream, flag)
    device.native.notify(stream, ctypes.cast(function, ctypes.c_void_p).value, 7)
    until(lambda: stream.running)
    getattr(device, end)(*[stream] * (end == "close_stream"))
    if end == "close_stream":
        assert calls == []
        ctypes.c_uint32.from_address(flag).value = 1
    assert done.wait(20)
    device.close()
    assert calls == [7]


def test_a_bug_in_a_function_is_an_error_and_no_success(compiled, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(compiled.device._queues, "reached", broken)
    assert compiled.stream_query(compiled.stream) == 999
    assert "broke off" in caplog.text


def test_handles_are_never_used_twice():
    handles, things = Handles(), [frozenset({number}) for number in range(3)]
    first = [handles.of(thing) for thing in things]
    assert [handles.of(thing) for thing in things] == first
    handles.drop(things[1])
    handles.drop(things[1])
    assert handles.find(first[1], frozenset) is None
    assert handles.find(first[0], frozenset) is things[0]
    assert handles.find(first[0], dict) is None
    assert handles.of(things[1]) not in first
