"""Every call of the driver fails, one at a time: typed error, true books, nothing leaked, lost where it must be."""

from __future__ import annotations

import ast
import ctypes
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import tensorwasm.gpu.cuda
from fakes.driver import ENTRY_POINTS, FakeDriver
from fakes.driver_memory import GRANULARITY
from tensorwasm.errors import CallerError, DeviceLost, DeviceUnavailable, LimitError, TensorWasmError
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.cuda.streams import device_streams
from tensorwasm.gpu.device.address_windows import WINDOW_BYTES
from tensorwasm.gpu.device.protocols import Advice
from tensorwasm.ptx.parser import parse
from tensorwasm.values import MIB, NEVER, LaunchConfig

from .conftest import KERNEL

MODULE = parse(KERNEL)
BIG_SHARED = LaunchConfig((1, 1, 1), (32, 1, 1), 100 << 10)
NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda argument: None)

DRIVERS: dict[str, Callable[[], FakeDriver]] = {
    "new": FakeDriver,
    "bindings 12": lambda: FakeDriver(bindings=12, cuda=12090),
    "old": lambda: without(FakeDriver(), "MEMORY_POOLS_SUPPORTED", "CONCURRENT_MANAGED_ACCESS"),
}
"""Kinds of drivers; a function is tried on the first that is asked for it."""

FOR_GOOD = {"cuGraphDestroy", "cuEventDestroy", "cuMemRelease", "cuStreamDestroy"}
"""Functions that release what callers cannot name: on failure the driver keeps it, which is logged and counted."""

ASKING = {"cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemPoolTrimTo", "cuCtxPopCurrent", "cuCtxGetId"}
"""Functions whose failure is an answer, or of no consequence."""


def without(fake: FakeDriver, *attributes: str) -> FakeDriver:
    fake.attributes |= dict.fromkeys(attributes, 0)
    return fake


@pytest.fixture(autouse=True)
def no_spin(monkeypatch):
    """Let a wait ask the driver once, so that every life makes the same calls."""
    monkeypatch.setattr(device_streams, "_SPIN_NS", 0)


# ---------------------------------------------------------------------- episodes in a device's life -----------------


def memory(device) -> None:
    stream, address = device.open_stream(), device.allocate(64)
    block = ctypes.create_string_buffer(64)
    device.write(address, b"12345678", stream)
    device.read(address, memoryview(bytearray(8)), stream)
    device.copy_in(address, ctypes.addressof(block), 64, stream)
    device.fill(address, 64, stream)
    device.copy_out(ctypes.addressof(block), address, 64, stream)
    device.synchronize(stream, NEVER)
    device.free(address)
    device.close_stream(stream)


def registration(device) -> None:
    device.register(1 << 20, 4096)
    device.unregister(1 << 20)


def launches(device) -> None:
    stream, loaded = device.open_stream(), device.load(MODULE, NEVER)
    device.launch(loaded, "k", BIG_SHARED, [bytes(8)], (), stream, NEVER)
    device.ended(stream)
    device.synchronize(stream, NEVER)
    device.unload(loaded)
    device.close_stream(stream)


def events(device) -> None:
    stream, event = device.open_stream(), device.events.open_event()
    device.events.record(event, stream)
    device.events.wait_event(stream, event)
    device.events.event_reached(event)
    device.events.synchronize_event(event, NEVER)
    device.events.close_event(event)
    device.close_stream(stream)


def waiting(device) -> None:
    fake, stream, loaded = device._core.driver.api, device.open_stream(), device.load(MODULE, NEVER)
    device.launch(loaded, "k", BIG_SHARED, [bytes(8)], (), stream, NEVER)
    fake.begin()
    fake.on_block = fake.finish
    try:
        device.synchronize(stream, NEVER)
    finally:
        fake.finish()


def graphs(device) -> None:
    stream, loaded = device.open_stream(), device.load(MODULE, NEVER)
    device.allocate(64)
    device.graphs.begin_capture(stream)
    device.launch(loaded, "k", BIG_SHARED, [bytes(8)], (), stream, NEVER)
    graph = device.graphs.end_capture(stream)
    device.graphs.replay(graph, stream, (), NEVER)
    device.synchronize(stream, NEVER)
    device.graphs.close_graph(graph)
    device.graphs.begin_capture(stream)
    device.close_stream(stream)


def pools(device) -> None:
    pool = device.pools.open_pool(64 * MIB)
    device.pools.pool_free(pool, device.pools.pool_allocate(pool, MIB))
    with suppress(LimitError):
        device.pools.pool_allocate(pool, 65 * MIB)
    device.pools.close_pool(pool)


def managed(device) -> None:
    stream, address = device.open_stream(), device.unified.allocate_managed(4096)
    device.unified.advise(address, 4096, Advice.ACCESSED_BY)
    device.unified.prefetch(address, 4096, stream, to_host=False)
    device.unified.free_managed(address)


def growth(device) -> None:
    if device.unified.growable:
        start = device.unified.reserve(2 * GRANULARITY)
        device.unified.map(start, GRANULARITY)
        device.unified.unmap(start, GRANULARITY)
        device.unified.unreserve(start, 2 * GRANULARITY)


def windows(device) -> None:
    if not device.windows.available:
        return
    windows, stream = device.windows, device.open_stream()
    window = windows.open_window(16 * MIB)
    windows.map_device(window, 4 * MIB, 2 * MIB)
    windows.map_host(window, 128 * MIB, 2 * MIB)
    windows.clear(window, 128 * MIB, 2 * MIB, stream)
    windows.unmap(window, 4 * MIB)
    windows.unmap(window, 128 * MIB)
    windows.close_window(window)
    device.close_stream(stream)


def native(device) -> None:
    stream, loaded = device.open_stream(), device.load(MODULE, NEVER)
    _ = device.native.table
    device.allocate(64)
    with device.native.bound():
        device.native.kernel(loaded, "k", NEVER)
        device.native.confine(stream, (), NEVER)
        device.native.notify(stream, ctypes.cast(NOTHING, ctypes.c_void_p).value, 0)


EPISODES = (memory, registration, launches, events, waiting, graphs, pools, managed, growth, windows, native)
LEFT_OVER = (memory, launches, events)
"""Episodes after which something is left for `close`, given that a share is closed with it."""


def live(fake: FakeDriver) -> Iterator[tuple[object, TensorWasmError | None]]:
    """Live through everything on a driver, yielding each device after each episode with the error that ended it."""
    for share in (None, 16):
        try:
            device = open_with(Driver(fake), 0, multiprocessors=share)
        except TensorWasmError as error:
            yield None, error
            continue
        for episode in EPISODES if share is None else LEFT_OVER:
            error = None
            try:
                episode(device)
            except TensorWasmError as caught:
                error = caught
            yield device, error
        hold_everything(device)
        yield device, None
        device.close()
        yield device, None


def hold_everything(device) -> None:
    """Leave something of everything for `close`."""
    with suppress(TensorWasmError):
        stream = device.open_stream()
        device.open_stream()
        device.graphs.begin_capture(stream)
        device.graphs.end_capture(stream)
        device.graphs.begin_capture(stream)
    with suppress(TensorWasmError):
        device.pools.pool_allocate(device.pools.open_pool(MIB), 512)
    with suppress(TensorWasmError):
        device.unified.map(device.unified.reserve(GRANULARITY), GRANULARITY)
    with suppress(TensorWasmError):
        window = device.windows.open_window(16 * MIB)
        device.windows.map_device(window, 0, 2 * MIB)
        device.windows.map_host(window, 4 * MIB, 2 * MIB)
    for hold in (
        lambda: device.allocate(64),
        lambda: device.register(1 << 21, 4096),
        lambda: device.load(MODULE, NEVER),
        device.events.open_event,
        lambda: device.unified.allocate_managed(64),
    ):
        with suppress(TensorWasmError):
            hold()


# ----------------------------------------------------------------------------------------------------------- judging


def check_books(fake: FakeDriver, device) -> None:
    """The device's books, and what it cannot name any more and has counted, are what the driver holds."""
    said = device.statistics()
    kinds = [handle.kind for handle in fake.handles]
    unnamed = said.release_failures
    assert said.allocations == len(fake.memory)
    assert said.allocated_bytes == sum(map(len, fake.memory.values()))
    assert said.registrations == len(fake.registered)
    assert said.modules == kinds.count("module")
    assert said.unified_bytes == sum(size for size, _ in fake.managed.values()) + sum(host_views(fake))
    assert said.graphs <= kinds.count("exec") + kinds.count("graph") <= said.graphs + unnamed + 1  # one in recording
    assert said.pools <= kinds.count("pool") <= said.pools + unnamed + 1  # the device's own
    assert said.streams <= kinds.count("stream") <= said.streams + unnamed + 4  # the device's own
    held_bytes = sum(handle.size for handle in fake.handles if handle.kind == "memory")
    assert said.window_bytes == held_bytes or (unnamed and said.window_bytes < held_bytes)
    assert said.windows <= len(window_ranges(fake)) <= said.windows + unnamed


def window_ranges(fake: FakeDriver) -> list[range]:
    """Return the ranges that are reserved for windows."""
    return [range(start, start + size) for start, (size, _) in fake.reserved.items() if size > WINDOW_BYTES]


def host_views(fake: FakeDriver) -> Iterator[int]:
    """Yield the bytes of each mapping that is in no window."""
    for start, size in fake.mapped.items():
        if not any(start in found for found in window_ranges(fake)):
            yield size


def names_in_source() -> set[str]:
    """Collect every entry point that gpu/cuda names, wherever it is called in the end."""
    found = set()
    for path in Path(tensorwasm.gpu.cuda.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and re.fullmatch(r"cu[A-Z]\w+", str(node.value)):
                found.add(node.value)
    return found


@cache
def calls(kind: str) -> dict[str, int]:
    """Count the calls of each entry point in an undisturbed life."""
    fake = DRIVERS[kind]()
    for device, error in live(fake):
        assert error is None or isinstance(error, CallerError), error
        if device.info.multiprocessors == 132:
            check_books(fake, device)
    assert fake.leftovers() == []
    return dict(fake.calls)


NATIVE_ONLY = {"cuLaunchKernel", "cuCtxGetCurrent"}
"""Functions that compiled code calls, asked for by name (the first is called by the device as well)."""

FUNCTIONS = sorted(names_in_source() - {"cuCtxGetCurrent"})


def chosen(function: str) -> tuple[str, int]:
    """Return the kind of driver to try a function on, and how often it is called there."""
    for kind in DRIVERS:
        if count := calls(kind).get(function, 0):
            return kind, count
    raise AssertionError(f"nothing here calls {function}")


def turns(count: int) -> list[int]:
    return sorted({1, 2, (count + 1) // 2, count} & set(range(1, count + 1)))


@pytest.mark.hardware("H8")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_call_that_fails_has_created_and_changed_nothing(function, caplog):
    kind, count = chosen(function)
    for nth in turns(count):
        for code in (801, 2) if nth == 1 else (801,):
            fake = DRIVERS[kind]()
            fake.fail_once(function, nth, code)
            caplog.clear()
            kept = 0
            for device, _ in live(fake):
                if device is None:
                    continue
                if device.info.multiprocessors == 132 and not device._core.closed:
                    check_books(fake, device)
                kept = max(kept, device.statistics().release_failures)
            assert fake.failed(), f"call {nth} of {function} was not made"
            assert len([entry for entry in caplog.records if entry.levelno >= logging.WARNING]) >= kept
            if fake.leftovers():
                assert kept, f"call {nth} of {function} left {fake.leftovers()} and no failure was counted"
            if function != "cuCtxPopCurrent":
                assert fake.stack() == []


@pytest.mark.parametrize("function", sorted(set(FUNCTIONS) - ASKING))
def test_a_sticky_failure_anywhere_loses_the_device_and_is_not_a_callers_error(function):
    kind, count = chosen(function)
    for nth in turns(count)[:2]:
        fake = DRIVERS[kind]()
        fake.fail_once(function, nth, 719)
        failed = False
        for device, error in live(fake):
            if failed:
                break
            if fake.failed() and device is None:
                assert isinstance(error, DeviceUnavailable)
                break
            if fake.failed():
                failed = True
                assert not isinstance(error, CallerError | LimitError), error
                with pytest.raises((DeviceLost, DeviceUnavailable)):
                    device.allocate(8)
        assert fake.stack() == []


@pytest.mark.parametrize(
    ("function", "release"),
    [
        ("cuMemFreeAsync", lambda device, held: device.free(held["memory"])),
        ("cuMemFree", lambda device, held: device.unified.free_managed(held["managed"])),
        ("cuEventDestroy", lambda device, held: device.events.close_event(held["event"])),
        ("cuStreamDestroy", lambda device, held: device.close_stream(held["stream"])),
        ("cuMemPoolDestroy", lambda device, held: device.pools.close_pool(held["pool"])),
    ],
)
def test_a_release_that_fails_is_logged_and_counted_and_may_be_tried_again(device, fake, caplog, function, release):
    held = {
        "memory": device.allocate(64),
        "managed": device.unified.allocate_managed(64),
        "event": device.events.open_event(),
        "stream": device.open_stream(),
        "pool": device.pools.open_pool(MIB),
    }
    before = device.statistics()
    with fake.failing(function, 801), pytest.raises(TensorWasmError):
        release(device, held)
    assert device.statistics().release_failures == 1
    assert [function in entry.getMessage() for entry in caplog.records] == [True]
    check_books(fake, device)
    release(device, held)
    assert device.statistics() != before
    device.close()
    assert fake.leftovers() == []


@pytest.mark.parametrize("function", ["cuMemAllocFromPoolAsync", "cuLaunchKernel", "cuEventQuery"])
def test_an_entry_point_that_the_driver_lacks_makes_the_device_unavailable(fake, function):
    fake.missing.add(function)
    errors = [error for _, error in live(fake) if error is not None]
    assert any(isinstance(error, DeviceUnavailable) and function in error.message for error in errors)
    fake.missing.clear()
    assert fake.stack() == []
    assert fake.leftovers() == []


def test_the_list_of_functions_is_that_of_the_source():
    assert {"cuMemAllocFromPoolAsync", "cuGreenCtxCreate", "cuLaunchHostFunc", "cuMemAdvise"} <= set(FUNCTIONS)
    assert names_in_source() <= set(ENTRY_POINTS) | {"cuCtxGetCurrent"}


@pytest.mark.parametrize("function", sorted(ENTRY_POINTS))
def test_the_fake_takes_what_the_bindings_take(function):
    real = pytest.importorskip("cuda.bindings.driver")
    if not hasattr(real, function):
        pytest.skip(f"these bindings have no {function}")
    signature = re.match(r"\w+\((.*?)\)", getattr(real, function).__doc__)[1]
    taken = [part for part in re.sub(r"\[[^]]*\]", "", signature).split(",") if part.strip()]
    parameters = list(inspect.signature(ENTRY_POINTS[function]).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        assert len(taken) >= len(parameters)
    else:
        assert len(taken) == len(parameters)


def test_a_life_leaves_no_thread():
    before = set(threading.enumerate())
    for device, _ in live(FakeDriver()):
        del device
    assert set(threading.enumerate()) <= before
