"""The short way into a function: one sandbox after another in the same place, and nothing of one for the next."""

from __future__ import annotations

import _thread
import ctypes
import dataclasses
import gc
import struct
import threading
from contextlib import suppress

import pytest
from wasmtime import wat2wasm

from fakes.argv import encode_argv
from neighbours import until
from strategies.kernels import FILL, FOREVER
from tensorwasm import Runtime, settings
from tensorwasm.errors import (
    DeviceLost,
    DeviceUnavailable,
    GuestTrap,
    InvokeTimeout,
    TensorWasmError,
)
from tensorwasm.gpu.device.limits import PIN_PRICE_BYTES
from tensorwasm.gpu.emulator.streams.native import EmulatedNative
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.guest.sandbox import linker, state
from tensorwasm.guest.sandbox.state import STATES
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.local import SLOW_CALLS, LocalExecutor
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke.one_shot import PooledSandbox
from tensorwasm.values import Deadline

pytest.importorskip("numba")

FILL_AT, FOREVER_AT, ENTRY_AT, ARGV_AT, DATA_AT, TEXT_AT = 4096, 6144, 256, 512, 8192, 16384
ARGV = encode_argv([WindowArg(DATA_AT, 64), NumberArg("u32", struct.pack("<I", 42))])
MODULE = "wasi:cuda/host@0.3.0"


def quoted(data: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in data)


def load(at: int, text: bytes, name_at: int, name: bytes) -> str:
    return f"(call $load (i32.const {at}) (i32.const {len(text)}) (i32.const {name_at}) (i32.const {len(name)}))"


def numbers(*values: int) -> str:
    return "".join(f"(i32.const {value})" for value in values)


ONES = numbers(*(1,) * 6)
LOADED = load(FILL_AT, FILL, ENTRY_AT, b"fill")
FILLED = f"(call $launch {LOADED} {ONES} {numbers(0, ARGV_AT, len(ARGV))})"
WAT = f"""(module
 (import "{MODULE}" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
 (import "{MODULE}" "wasi_cuda_launch" (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
 (import "{MODULE}" "wasi_cuda_alloc" (func $alloc (param i32 i32) (result i64)))
 (import "{MODULE}" "wasi_cuda_stream_create" (func $stream (result i64)))
 (import "{MODULE}" "wasi_cuda_last_error_len" (func $last (result i32)))
 (memory (export "memory") 1)
 (data (i32.const {ENTRY_AT}) "{quoted(b"fill")}") (data (i32.const {ENTRY_AT + 16}) "{quoted(b"forever")}")
 (data (i32.const {ARGV_AT}) "{quoted(ARGV)}")
 (data (i32.const {FILL_AT}) "{quoted(FILL)}") (data (i32.const {FOREVER_AT}) "{quoted(FOREVER)}")
 (func (export "fill") (result i32) (drop {FILLED}) (i32.load (i32.const {DATA_AT})))
 (func (export "fill_and_trap") (drop {FILLED}) unreachable)
 (func (export "kernel") (result i64) {LOADED})
 (func (export "buffer") (result i64) (call $alloc (i32.const 64) (i32.const 0)))
 (func (export "stream") (result i64) (call $stream))
 (func (export "runaway") (result i32)
  (call $launch {load(FOREVER_AT, FOREVER, ENTRY_AT + 16, b"forever")} {ONES} {numbers(0, 0, 0)}))
 (func (export "err") (result i32)
  (drop (call $launch (i64.const 3) {ONES} (i32.const 0) (i32.const 0) (i32.const 0))) (call $last))
 (func (export "first_err") (result i32) (call $last)
  (drop (call $launch (i64.const 3) {ONES} (i32.const 0) (i32.const 0) (i32.const 0))))
 (func (export "last") (result i32) (call $last))
 (func (export "twice") (param i64) (result i64) (i64.mul (local.get 0) (i64.const 2)))
 (func (export "trap") unreachable)
 (func (export "spin") (loop (br 0)))
 (func (export "calls") (loop (drop (call $last)) (br 0)))
 (func (export "nothing")))"""
TALKING = """(module
 (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
 (import "wasi:tensor/host@0.1.0" "read-input" (func $read (param i32 i32) (result i32)))
 (memory (export "memory") 1)
 (func (export "echo") (result i32) (call $emit (i32.const 0) (call $read (i32.const 0) (i32.const 64)))))"""
GPU = {"grants": {"cuda"}, "memory_kind": "staged"}


@pytest.fixture(scope="module")
def native():
    with pytest.MonkeyPatch.context() as patch:
        changed = dataclasses.replace(settings.current(), native="on")
        patch.setattr(settings, "current", lambda: changed)
        yield


@pytest.fixture
def runtime(native):
    with Runtime(device="emulator") as runtime:
        runtime.load(bytes(wat2wasm(WAT))).invoke("nothing", **GPU)  # from now on there is compiled code
        yield runtime


@pytest.fixture
def function(runtime):
    return runtime.load(bytes(wat2wasm(WAT)))


def idle(function) -> list[PooledSandbox]:
    return [pooled for plan in function.dispatch.plans.values() for pooled in plan._idle]


def test_statistics_say_what_a_guest_had_when_it_left(function):
    for _ in range(2):
        left = function.invoke("buffer", **GPU).gpu
        assert (left.allocations, left.device_bytes) == (1, 64)
    assert function.invoke("nothing", **GPU).gpu.allocations == 0


def test_a_kernel_that_was_loaded_before_is_loaded_and_launched_without_python(function):
    before = function.invoke("fill", **GPU)
    (pooled,) = idle(function)
    assert not pooled.session._core.used
    for _ in range(3):
        after = function.invoke("fill", **GPU)
        assert after.values == before.values == (42,)
        assert after.gpu == before.gpu
        assert not pooled.session._core.used
    assert idle(function) == [pooled]


def test_each_guest_may_stage_as_much_as_the_first(function):
    options = {**GPU, "memory_kind": "auto"}
    assert function.invoke("fill", **options).values == (42,)
    (pooled,) = idle(function)
    for _ in range(3):
        assert pooled.session.layout.stage_left == PIN_PRICE_BYTES
        assert function.invoke("fill", **options).gpu.pinned_bytes == 0
        assert not pooled.session._core.used
    pooled.session.layout.stage_left = 0
    assert function.invoke("fill", **options).gpu.pinned_bytes == 0, "Python counts the memory's own size"
    assert function.invoke("fill", **options).gpu.staged_launches == 0, "and compiled code goes on with the next guest"


def test_ids_of_kernels_differ_from_guest_to_guest(function):
    assert len({function.invoke("kernel", **GPU).values for _ in range(6)}) == 6


def test_numbers_begin_anew_for_each_guest(function):
    for export in ("buffer", "stream"):
        assert [function.invoke(export, **GPU).values for _ in range(3)] == [(1,)] * 3
    assert idle(function) == []


@pytest.mark.rule("4-session")
def test_the_last_error_is_the_guests_own(function):
    assert function.invoke("err", **GPU).values[0] > 0
    assert function.invoke("last", **GPU).values == (0,)
    assert [function.invoke("first_err", **GPU).values for _ in range(3)] == [
        (0,)
    ] * 3  # in one place, one after another
    assert function.invoke("err", **GPU).gpu.kernels_launched == 0


@pytest.mark.rule("8-sessions")
def test_no_tenant_comes_where_another_has_been(function, runtime):
    for tenant in ("ann", "bob"):
        runtime.accounts.register(tenant, 1 << 20)
    for tenant in ("ann", "bob", "ann"):
        assert function.invoke("fill", tenant=tenant, **GPU).values == (42,)
    assert len({id(pooled.session) for pooled in idle(function)}) == 2
    assert sorted(pooled.session._core.tenancy.tenant for pooled in idle(function)) == ["ann", "bob"]


def test_without_the_grant_a_guest_has_no_gpu(function):
    assert function.invoke("kernel").values[0] < 0
    assert function.invoke("fill").values == (0,)


def test_an_endless_kernel_ends_with_its_guest_and_its_session_serves_no_other(function):
    with pytest.raises(InvokeTimeout):
        function.invoke("runaway", deadline=Deadline.after(0.2), **GPU)
    assert idle(function) == []
    assert function.invoke("fill", **GPU).values == (42,)


def test_a_guest_that_traps_after_a_launch_leaves_nothing(function):
    with pytest.raises(GuestTrap):
        function.invoke("fill_and_trap", **GPU)
    assert idle(function) == []
    assert function.invoke("fill", **GPU).values == (42,)


def test_pinned_memory_is_released_before_it_goes(function, monkeypatch):
    assert [function.invoke("fill", grants={"cuda"}, memory_kind="pinned").values for _ in range(3)] == [(42,)] * 3
    assert idle(function) == []
    assert function.host.share().device.statistics().registered_bytes == 0


def test_a_host_function_may_invoke_the_function_that_called_it(runtime):
    echo = runtime.load(bytes(wat2wasm(TALKING)))
    inner: list[tuple[bytes, ...]] = []

    def again(chunk: bytes) -> bool:
        inner.append(echo.invoke("echo", input=chunk[1:]).chunks)
        return True

    assert echo.invoke("echo", input=b"abc", on_chunk=again).values == (0,)
    assert inner == [(b"bc",)]


def test_eight_threads_each_get_their_own_result(function):
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(40):
            options = GPU if turn % 2 else {}
            try:
                found = function.invoke("twice", [number * 1000 + turn], **options).values
                filled = function.invoke("fill", **GPU).values if turn % 8 == 0 else (42,)
            except TensorWasmError as error:
                found = filled = error
            if (found, filled) != ((2 * (number * 1000 + turn),), (42,)):
                wrong.append((number, turn, found, filled))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_device_that_is_lost_serves_no_parked_session(function, monkeypatch):
    function.invoke("fill", **GPU)
    (before,) = idle(function)
    monkeypatch.setattr(EmulatedNative, "usable", False)
    function.invoke("fill", **GPU)
    assert before not in idle(function)
    assert before.session._core.closed


def test_a_context_that_is_gone_is_a_lost_device(function):
    function.host.share()._resources._driver.context = 5
    with pytest.raises(DeviceLost):
        function.invoke("nothing", **GPU)
    assert idle(function) == []


def test_closing_the_runtime_ends_what_is_parked(native):
    runtime = Runtime(device="emulator")
    function = runtime.load(bytes(wat2wasm(WAT)))
    function.invoke("fill", **GPU)
    device = runtime.open_device()
    runtime.close()
    assert all(pooled.session._core.closed for pooled in idle(function))
    assert device.statistics().registered_bytes == 0
    with pytest.raises(DeviceUnavailable):
        function.invoke("fill", **GPU)


def test_sandboxes_of_a_collected_plan_are_closed(runtime):
    function = runtime.load(bytes(wat2wasm(WAT)))
    function.invoke("fill", **GPU)
    (pooled,) = idle(function)
    del function
    gc.collect()
    until(lambda: pooled.session._core.closed)


@pytest.mark.parametrize("options", [{}, GPU])
@pytest.mark.parametrize("export", ["spin", "calls"])
def test_ctrl_c_ends_a_guest_on_the_main_thread(function, interrupt_handler, capfd, export, options):
    function.invoke("nothing", **options)
    for pause_s in (0.0, 0.001, 0.02):
        interrupter = threading.Timer(pause_s, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may come at once
            interrupter.start()
            function.invoke(export, **options)
        interrupter.join()
        assert function.invoke("twice", [1], **options).values == (2,)
    assert "ignored" not in capfd.readouterr().err


def interrupted_once(function):
    """Return a function whose first call is interrupted when it is over."""
    interrupts = [KeyboardInterrupt]

    def call(*args):
        answer = function(*args)
        if interrupts:
            raise interrupts.pop()
        return answer

    return call


class Interrupted:
    """Sandboxes, the first look at which is interrupted."""

    def __init__(self, states):
        self.get = states.get
        self._find = interrupted_once(states.__getitem__)

    def __getitem__(self, token):
        return self._find(token)


def test_an_interrupt_before_a_host_function_knows_its_guest_is_not_lost(function, monkeypatch):
    function.invoke("buffer", **GPU)
    monkeypatch.setattr(linker, "_caller_context", interrupted_once(linker._caller_context))
    with pytest.raises(KeyboardInterrupt):
        function.invoke("buffer", **GPU)
    assert function.invoke("buffer", **GPU).values == (1,)


@pytest.mark.parametrize("options", [{}, GPU])
def test_an_interrupt_before_the_clock_knows_its_guest_is_not_lost(function, monkeypatch, options):
    function.invoke("nothing", **options)
    with monkeypatch.context() as patch:
        patch.setattr(state, "STATES", Interrupted(STATES))
        with pytest.raises(KeyboardInterrupt):
            function.invoke("spin", **options)
    assert function.invoke("twice", [1], **options).values == (2,)


@pytest.mark.parametrize("options", [{}, GPU])
def test_python_that_cannot_go_deeper_says_so(function, options, capfd):
    found: list[tuple[int, ...]] = []

    def descend() -> None:
        try:
            found.append(function.invoke("last", **options).values)
        except (RecursionError, ctypes.ArgumentError):  # ctypes dresses its own up
            found.append(())
        descend()

    with pytest.raises(RecursionError):
        descend()
    assert found[0] != ()
    assert set(found) <= {found[0], ()}
    assert function.invoke("last", **options).values == found[0]
    assert "ignored" not in capfd.readouterr().err


def test_guarded_sandboxes_take_turns_while_the_device_clears_their_windows(native, monkeypatch):
    now_ns = [0]
    monkeypatch.setattr("tensorwasm.gpu.session.session.time.monotonic_ns", lambda: now_ns[0])
    with Runtime(device="emulator", isolation="guarded") as runtime:
        function = runtime.load(bytes(wat2wasm(WAT)))
        assert function.invoke("fill", **GPU).values == (42,)
        first = idle(function)
        assert len(first) == 1
        assert function.invoke("fill", **GPU).values == (42,)
        both = idle(function)
        assert len(both) == 2
        assert both[0] is first[0]
        for turns in (1, 0, 1):
            assert function.invoke("fill", **GPU).values == (42,)
            assert idle(function) == [both[turns], both[1 - turns]]


def test_a_window_that_was_cleared_long_ago_serves_again(native, monkeypatch):
    now_ns = [0]
    monkeypatch.setattr("tensorwasm.gpu.session.session.time.monotonic_ns", lambda: now_ns[0])
    with Runtime(device="emulator", isolation="guarded") as runtime:
        function = runtime.load(bytes(wat2wasm(WAT)))
        for _ in range(3):
            assert function.invoke("fill", **GPU).values == (42,)
            now_ns[0] += 1_000_000
            assert len(idle(function)) == 1


@pytest.mark.parametrize(
    ("isolation", "export"),
    [("stream", "spin"), ("stream", "calls"), ("guarded", "spin"), ("guarded", "calls"), ("guarded", "runaway")],
)
def test_a_guest_is_ended_from_another_thread(native, isolation, export):
    with Runtime(device="emulator", isolation=isolation) as runtime:
        function = runtime.load(bytes(wat2wasm(WAT)))
        assert function.dispatch.call("nothing", (), announce=lambda _: None, **GPU).values == ()
        before, ended = idle(function), threading.Event()
        assert before

        def announce(stop):
            threading.Thread(target=lambda: (stop(), ended.set())).start()

        with pytest.raises((GuestTrap, InvokeTimeout)):
            function.dispatch.call(export, (), announce=announce, **GPU)
        assert ended.wait(60)
        assert idle(function) == before
        assert function.dispatch.call("fill", (), announce=lambda _: None, **GPU).values == (42,)


def test_what_ends_a_guest_ends_no_other_that_its_sandbox_serves(native):
    stops = []
    with Runtime(device="emulator") as runtime:
        function = runtime.load(bytes(wat2wasm(WAT)))
        for _ in range(3):
            assert function.dispatch.call("fill", (), announce=stops.append, **GPU).values == (42,)
            stops[-1]()
        assert len(idle(function)) == 1


def test_a_stop_that_comes_after_the_guest_ended_finds_the_next_one_running(native):
    stops = []
    with Runtime(device="emulator", isolation="guarded") as runtime:
        function = runtime.load(bytes(wat2wasm(WAT)))
        assert function.dispatch.call("fill", (), announce=stops.append, **GPU).values == (42,)
        (pooled,) = idle(function)
        pooled.session._clearing_since_ns = 0  # long ago
        assert function.dispatch.call("fill", (), announce=lambda _: stops[0](), **GPU).values == (42,)
        assert idle(function) == [pooled]
        assert not pooled.session._core.window.stop.stopping


def test_a_stop_reaches_the_kernels_of_its_guest_and_its_sandbox_serves_no_other(native):
    told = []
    with Runtime(device="emulator", isolation="guarded") as runtime:
        function = runtime.load(bytes(wat2wasm(WAT)))
        function.dispatch.call("nothing", (), announce=lambda _: None, **GPU)
        (pooled,) = idle(function)

        def announce(stop):
            stop()
            told.append(pooled.session._core.window.stop.stopping)

        with suppress(GuestTrap):  # such a short guest may end well all the same
            function.dispatch.call("nothing", (), announce=announce, **GPU)
        assert told == [True]
        assert pooled.session._core.closed
        assert idle(function) == []


def test_a_sandbox_whose_session_cannot_be_entered_is_closed(function, monkeypatch):
    def refuse(_):
        raise DeviceLost("gone")

    function.invoke("fill", **GPU)
    (pooled,) = idle(function)
    monkeypatch.setattr(pooled.session, "enter", refuse)
    with pytest.raises(DeviceLost):
        function.invoke("fill", **GPU)
    assert pooled.session._core.closed
    assert idle(function) == []


def test_an_executor_makes_short_calls_on_its_own_thread(native, monkeypatch):
    with Runtime(device="emulator") as runtime:
        executor = LocalExecutor(runtime)
        request = Request(module=bytes(wat2wasm(WAT)), export="fill", grants=Grants(cuda=True), memory_kind="staged")
        pending = executor.submit(request)
        assert pending.result(60).values == (42,)
        assert pending.waits
        monkeypatch.setattr("tensorwasm.runtime.executor.local.SLOW_S", -1.0)
        assert all(executor.submit(request).result(60).values == (42,) for _ in range(SLOW_CALLS))
        later = executor.submit(request)  # its last calls took long
        assert later.result(60).values == (42,)
        assert not later.waits
        executor.close()
