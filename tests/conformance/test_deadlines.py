"""Whatever waits for the GPU ends at the guest's deadline, through real Wasm, on every device."""

from __future__ import annotations

import time

import pytest

from conformance.puppet import Puppet, strings
from conformance.work import WORD_AT, Work, u64
from fakes.argv import encode_argv
from tensorwasm.errors import InvokeTimeout
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_3
from tensorwasm.values import Deadline

BUSY_S = 0.8
"""How long the device is kept busy: less than a session waits at its end, so that nothing outlives it."""
LIMIT_S = 0.2
"""When the call has to end."""


WAITING = {
    "sync": lambda stream, **_: (),
    "stream_sync": lambda stream, **_: (stream,),
    "stream_destroy": lambda stream, **_: (stream,),
    "event_sync": lambda event, **_: (event,),
    "free": lambda handle, **_: (handle, 0),
    "unload": lambda kernel, **_: (kernel,),
    "memcpy_h2d": lambda handle, **_: (handle, 0, WORD_AT, 4),
    "memcpy_d2h": lambda handle, **_: (WORD_AT, handle, 0, 4),
    "graph_destroy": lambda graph, **_: (graph,),
}


@pytest.fixture
def busy(device, compiled, guarded):
    """A puppet whose stream, event, graph, buffer and kernel are in use for a while; what they are; its deadline.

    As in an invocation, what was started has the deadline of what waits for it.
    """
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        work = Work(puppet)
        handle, stream, event = work.buffer(bytes(4)), puppet.stream_create(), puppet.event_create()
        assert work.affine_kernel > 0
        assert work.nap_kernel > 0
        assert puppet.graph_begin(stream) == 0
        assert work.nap(BUSY_S, stream) == 0
        graph = puppet.graph_end(stream)
        assert graph > 0
        deadline = Deadline.after(LIMIT_S)
        assert puppet.graph_launch(graph, stream, deadline=deadline) == 0
        assert puppet.event_record(event, stream, deadline=deadline) == 0
        things = {"stream": stream, "event": event, "graph": graph, "handle": handle, "kernel": work.nap_kernel}
        yield puppet, things, deadline


@pytest.mark.parametrize("name", WAITING)
def test_waiting_ends_at_the_deadline_and_is_the_end(busy, name):
    puppet, things, deadline = busy
    with pytest.raises(InvokeTimeout) as caught:
        getattr(puppet, name)(*WAITING[name](**things), deadline=deadline)
    assert deadline.expired()
    assert time.monotonic_ns() < deadline.at_ns + (BUSY_S - LIMIT_S) * 1e9
    assert caught.value.exit_code == 124
    assert caught.value.kind == "invoke_timeout"
    assert puppet.stream_query(things["stream"]) == -7
    assert puppet.sync() == -7


def test_a_waiting_launch_behind_others_ends_at_the_deadline(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        work = Work(puppet)
        kernel = work.nap_kernel
        deadline = Deadline.after(LIMIT_S)
        argv = encode_argv([u64(round(BUSY_S * 1e9))])
        assert puppet.begin(kernel, argv, deadline=deadline) == 0
        brief = encode_argv([u64(1)])
        with pytest.raises(InvokeTimeout):
            puppet.start(kernel, brief, block=(1, 1, 1), deadline=deadline)
        assert puppet.sync() == -7


def test_the_table_has_every_function_that_waits_for_work():
    waiting = {name for name, function in strings(CUDA_MODULE_0_3).items() if function.waits}
    only_for_a_place = {"launch_async", "memcpy_h2d_async", "memcpy_d2h_async", "graph_launch"}
    only_for_room = {"alloc", "stream_create", "event_record", "stream_wait_event"}
    assert waiting - only_for_a_place - only_for_room - {"load_ptx", "launch"} == set(WAITING)


def test_starting_and_asking_do_not_wait(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        work = Work(puppet)
        handle, stream, event = work.buffer(bytes(4)), puppet.stream_create(), puppet.event_create()
        assert work.affine(1, 1, 0) == 0
        assert puppet.sync() == 0
        assert work.nap_kernel > 0
        start = time.monotonic()
        assert work.nap(BUSY_S / 2, stream) == 0
        assert puppet.event_record(event, stream) == 0
        assert puppet.memcpy_h2d_async(handle, 0, WORD_AT, 4, 0) == 0
        assert work.affine(1, 1, stream) == 0
        assert puppet.event_query(event) == 1
        assert puppet.stream_query(stream) == 1
        assert time.monotonic() - start < BUSY_S / 4
        assert puppet.sync() == 0
        assert puppet.event_query(event) == 0
