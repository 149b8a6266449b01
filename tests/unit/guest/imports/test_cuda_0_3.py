"""``wasi:cuda/host@0.3.0``: what a body asks of the session, and which code a refusal becomes."""

import dataclasses
import inspect
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.argv import encode_argv
from fakes.device import FakeDevice
from fakes.guest import MEMORY_ADDRESS, FakeCall
from fakes.session import FakeSession
from strategies.argv import around
from tensorwasm.errors import (
    DeviceLost,
    InternalError,
    InvalidArgs,
    InvalidHandle,
    InvalidKernel,
    InvokeTimeout,
    KernelFault,
    LaunchRefused,
    QuotaExceeded,
)
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow, Scalar
from tensorwasm.gpu.session import Session
from tensorwasm.guest.imports import host_functions, interfaces
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.guest.imports.cuda import CudaService
from tensorwasm.values import WASM_PAGE_BYTES, Deadline, LaunchConfig, Region

PAGE = WASM_PAGE_BYTES
MEMORY = Region(MEMORY_ADDRESS, PAGE, host=True)
DEADLINE = Deadline(1 << 60)
BODIES = {function.name: function for function in host_functions() if function.module.endswith("@0.3.0")}
OLDER = {function.core_name for function in interfaces.CUDA_0_2.functions}
TABLE = {function.core_name: function for function in interfaces.CUDA.functions if function.core_name not in OLDER}
BITS = {"i32": 32, "i64": 64}
ONE = (1, 1, 1)


METHODS = [
    (part, name)
    for part, fake in vars(FakeSession()).items()
    for name in sorted(vars(type(fake)))
    if part in {"buffers", "kernels", "streams", "events", "graphs"} and not name.startswith("_")
]


@pytest.mark.parametrize(("part", "name"), METHODS)
def test_the_fake_takes_what_a_session_takes(part, name):
    def shape(session):
        method = getattr(getattr(session, part), name)
        return [(p.name, p.default, p.kind) for p in inspect.signature(method).parameters.values()]

    with Session(FakeDevice()) as session:
        assert shape(FakeSession()) == shape(session)


class Guest:
    """A guest whose session is a fake, calling as Wasm would: every number signed."""

    def __init__(self):
        self.session = FakeSession()
        self.service = CudaService(self.session)
        self.call = FakeCall(deadline=DEADLINE, services={"cuda": self.service})

    def __call__(self, name, *params):
        function = BODIES[f"wasi_cuda_{name}"]
        signed = [signed_number(value, BITS[kind]) for value, kind in zip(params, function.params, strict=True)]
        answer = function.body(self.call, *signed)
        assert -(1 << BITS[function.results[0]] - 1) <= answer < 1 << BITS[function.results[0]] - 1
        return int(answer)


def signed_number(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@pytest.fixture
def guest():
    return Guest()


# What each function asks of the session: name, parameters, answer of the session, the call, what the guest is told.
ASKED = [
    ("unload", (7,), None, ("kernels.unload", 7, DEADLINE), 0),
    ("stream_create", (), 3, ("streams.open",), 3),
    ("stream_destroy", (3,), None, ("streams.close", 3, DEADLINE), 0),
    ("stream_sync", (0,), None, ("streams.synchronize", DEADLINE, 0), 0),
    ("stream_query", (3,), True, ("streams.ended", 3), 0),
    ("stream_query", (3,), False, ("streams.ended", 3), 1),
    ("event_create", (), 4, ("events.open",), 4),
    ("event_destroy", (4,), None, ("events.close", 4), 0),
    ("event_record", (4, 3), None, ("events.record", 4, 3), 0),
    ("stream_wait_event", (3, 4), None, ("events.wait", 3, 4), 0),
    ("event_sync", (4,), None, ("events.synchronize", 4, DEADLINE), 0),
    ("event_query", (4,), True, ("events.reached", 4), 0),
    ("event_query", (4,), False, ("events.reached", 4), 1),
    ("graph_begin", (3,), None, ("graphs.begin", 3), 0),
    ("graph_end", (3,), 5, ("graphs.end", 3), 5),
    ("graph_launch", (5, 3), None, ("graphs.replay", 5, MEMORY, DEADLINE, 3), 0),
    ("graph_destroy", (5,), None, ("graphs.close", 5, DEADLINE), 0),
    (
        "memcpy_h2d_async",
        (9, 8, 16, 32, 3),
        None,
        ("buffers.copy_in", 9, 8, HostWindow(MEMORY_ADDRESS + 16, 32), MEMORY, DEADLINE, 3),
        0,
    ),
    (
        "memcpy_d2h_async",
        (16, 9, 8, 32, 3),
        None,
        ("buffers.copy_out", HostWindow(MEMORY_ADDRESS + 16, 32), MEMORY, 9, 8, DEADLINE, 3),
        0,
    ),
    (
        "launch_async",
        (7, 4, 3, 2, 8, 4, 2, 64, 0, 0, 3),
        None,
        ("kernels.submit", 7, LaunchConfig((4, 3, 2), (8, 4, 2), 64), (), MEMORY, DEADLINE, 3),
        0,
    ),
]


@pytest.mark.parametrize(("name", "params", "answered", "asked", "told"), ASKED)
def test_each_function_makes_one_call_of_the_session(guest, name, params, answered, asked, told):
    guest.session.answers[asked[0]] = answered
    assert guest(name, *params) == told
    assert guest.session.calls == [asked]
    assert guest.service.last_error == b""


def test_sync_waits_for_every_stream(guest):
    assert guest("sync") == 0
    assert guest.session.calls == [("streams.synchronize", DEADLINE, None)]


def test_the_table_above_asks_for_every_new_function_but_those_about_the_device():
    assert {f"wasi_cuda_{name}" for name, *_ in ASKED} == set(TABLE) - {
        "wasi_cuda_device_attribute",
        "wasi_cuda_device_name",
    }


METHOD_OF = {name: asked[0] for name, _, _, asked, _ in ASKED}
PARAMS = {name: params for name, params, *_ in ASKED}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidKernel("x"), -3),
        (LaunchRefused("x"), -5),
        (KernelFault("x"), -5),
        (QuotaExceeded("x"), -6),
        (InvalidArgs("x"), -9),
        (InvalidHandle("x"), -11),
    ],
)
@pytest.mark.parametrize("name", METHOD_OF)
def test_a_refusal_is_a_code_and_leaves_its_text(guest, name, error, code):
    guest.session.refusals[METHOD_OF[name]] = error
    assert guest(name, *PARAMS[name]) == code
    assert guest.service.last_error == b"x"


@pytest.mark.parametrize("error", [InvokeTimeout("late"), DeviceLost("gone"), InternalError("bug")])
@pytest.mark.parametrize("name", METHOD_OF)
def test_errors_that_a_guest_cannot_handle_end_its_call(guest, name, error):
    guest.session.refusals[METHOD_OF[name]] = error
    with pytest.raises(type(error)) as caught:
        guest(name, *PARAMS[name])
    assert caught.value is error


@pytest.mark.parametrize("name", TABLE)
def test_after_a_failure_everything_answers_internal_and_asks_nothing(guest, name):
    guest.session.failure = KernelFault("thread 0")
    assert BODIES[name].body(guest.call, *(1 for _ in BODIES[name].params)) == -7
    assert b"thread 0" in guest.service.last_error
    assert guest.session.calls == []


# ---------------------------------------------------------------------------------------- numbers that travel whole


@given(around(64), around(64), around(64))
def test_handles_and_offsets_are_read_as_unsigned(handle, offset, stream):
    guest, low = Guest(), (1 << 64) - 1
    guest("memcpy_h2d_async", handle, offset, 0, 0, stream)
    guest("memcpy_d2h_async", 0, handle, offset, 0, stream)
    guest("stream_sync", stream)
    guest("event_record", handle, stream)
    guest("graph_launch", handle, stream)
    to, back, waited, recorded, replayed = guest.session.calls
    assert (to[1], to[2], to[-1]) == (handle & low, offset & low, stream & low)
    assert (back[3], back[4], back[-1]) == (handle & low, offset & low, stream & low)
    assert waited[-1] == stream & low
    assert recorded[1:] == (handle & low, stream & low)
    assert (replayed[1], replayed[-1]) == (handle & low, stream & low)


@pytest.mark.parametrize("kernel", [-1, -(1 << 63)])
def test_a_negative_kernel_is_none(guest, kernel):
    assert guest("unload", kernel) == -3
    assert guest("launch_async", kernel, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99) == -3
    assert guest.session.calls == []


# ------------------------------------------------------------------------------------------------- guest memory


def test_a_waiting_copy_says_which_memory_its_bytes_are_in(guest):
    assert guest("memcpy_h2d", 9, 1, 16, 32) == guest("memcpy_d2h", 16, 9, 1, 32) == 0
    for name, handle, data, deadline, offset_bytes, memory in guest.session.calls:
        assert name in {"buffers.write", "buffers.read"}
        assert (handle, len(data), deadline, offset_bytes, memory) == (1 << 32 | 9, 32, DEADLINE, 0, MEMORY)


WINDOWS = [
    (0, PAGE, 0),
    (PAGE, 0, 0),
    (PAGE - 1, 1, 0),
    (PAGE - 1, 2, -2),
    (PAGE + 1, 0, -2),
    (PAGE, 1, -2),
    (0, PAGE + 1, -2),
    (0, -1, -2),
    (-1, 0, -2),
    (-1, -1, -2),
    (1 << 31, 1 << 31, -2),
]


@pytest.mark.parametrize(("at", "length", "code"), WINDOWS)
def test_the_window_of_a_copy_has_to_lie_inside_the_memory(guest, at, length, code):
    assert guest("memcpy_h2d_async", 1, 0, at, length, 0) == code
    assert guest("memcpy_d2h_async", at, 1, 0, length, 0) == code
    assert len(guest.session.calls) == (2 if code == 0 else 0)


@given(around(32), around(32))
def test_no_window_that_reaches_the_session_leaves_the_memory(at, length):
    guest = Guest()
    guest("memcpy_h2d_async", 1, 0, at, length, 0)
    for _, _, _, window, memory, *_ in guest.session.calls:
        assert memory == MEMORY
        assert memory.address <= window.address <= window.address + window.length_bytes <= memory.end


def test_a_guest_without_memory_has_no_windows(guest):
    guest.call.memory_or_none = None
    assert guest("memcpy_h2d_async", 1, 0, 0, 0, 0) == -2
    assert guest("memcpy_d2h_async", 0, 1, 0, 0, 0) == -2
    assert guest("launch_async", 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == -2
    assert guest("graph_launch", 1, 0) == -2
    assert guest.session.calls == []


@pytest.mark.rule("2-text")
def test_a_text_and_the_name_of_its_entry_are_copied_before_they_are_read():
    session = FakeSession()
    call = FakeCall(services={"cuda": CudaService(session)})
    call.memory.write(0, b"text" + b"name")
    BODIES["wasi_cuda_load_ptx"].body(call, 0, 4, 4, 4)
    call.memory.write(0, b"\xff" * 8)
    assert session.calls == [("kernels.load", b"text", "name", call.deadline)]
    assert type(session.calls[0][1]) is bytes


@pytest.mark.parametrize("name", ["launch", "launch_async"])
@pytest.mark.rule("2-argv")
def test_argument_records_are_copied_and_resolved_late(guest, monkeypatch, name):
    argv = encode_argv([WindowArg(16, 4), BufferOffset(2, 8), NumberArg("u32", struct.pack("<I", 9))])
    guest.call.memory.write(256, argv)
    resolved = []

    def wait_for_a_place(_kernel, _config, arguments, *_rest, **_named):
        guest.call.memory.write(256, b"\xff" * len(argv))
        resolved.append(arguments())
        guest.call.memory.write(256, bytes(len(argv)))

    for method in ("launch", "submit"):
        monkeypatch.setattr(guest.session.kernels, method, wait_for_a_place)
    stream = () if name == "launch" else (0,)
    assert guest(name, 7, *ONE, *ONE, 0, 256, len(argv), *stream) == 0
    assert resolved == [(HostWindow(MEMORY_ADDRESS + 16, 4), BufferOffset(2, 8), Scalar(struct.pack("<I", 9)))]


@pytest.mark.parametrize(("at", "length"), [(PAGE, 1), (-1, 1), (0, PAGE + 1)])
def test_the_region_of_the_records_comes_first(guest, at, length):
    assert guest("launch_async", -1, 0, 0, 0, 0, 0, 0, 0, at, length, -1) == -2


@pytest.mark.parametrize(("argv", "code"), [(b"\x09", -9), (bytes(4097), -10), (b"\x05\0", -9)])
def test_damaged_records_of_an_asynchronous_launch(guest, argv, code):
    guest.call.memory.write(0, argv)
    assert guest("launch_async", 7, *ONE, *ONE, 0, 0, len(argv), 0) == code


# -------------------------------------------------------------------------------------------------- the device


@pytest.mark.parametrize(
    ("attribute", "answer"),
    [(1, 0), (2, 9), (3, 0), (4, 9), (5, 0), (6, 1), (7, 1 << 40), (8, 228 << 10), (9, 1024), (10, 32), (11, 0)],
)
def test_attributes_of_the_device(guest, attribute, answer):
    assert guest("device_attribute", attribute) == answer


def test_device_attributes_distinguish_a_gpu_from_the_emulator(guest):
    guest.session.info = dataclasses.replace(guest.session.info, kind="cuda", concurrent_managed_access=True)
    assert guest("device_attribute", 1) == guest("device_attribute", 11) == 1


@given(st.integers(-(1 << 31), (1 << 31) - 1).filter(lambda number: not 1 <= number <= 11))
def test_attributes_that_do_not_exist(attribute):
    guest = Guest()
    assert guest("device_attribute", attribute) == -9
    assert str(attribute).encode() in guest.service.last_error


@pytest.mark.parametrize(("length", "copied"), [(0, 0), (2, 2), (4, 4), (PAGE, 4)])
def test_as_much_of_the_name_as_fits(guest, length, copied):
    assert guest("device_name", 0, length) == copied
    assert guest.call.memory.read(0, 6) == b"fake"[:copied].ljust(6, b"\0")


@pytest.mark.parametrize(("at", "length"), [(PAGE, 1), (1, PAGE), (-1, 4), (0, -1)])
def test_the_place_for_the_name_has_to_lie_inside_the_memory(guest, at, length):
    assert guest("device_name", at, length) == -2
    assert guest.service.last_error
