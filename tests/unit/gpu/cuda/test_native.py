import ctypes
import threading
from dataclasses import asdict

import pytest

from tensorwasm.errors import DeviceLost, DeviceUnavailable, InvalidHandle, InvalidKernel
from tensorwasm.values import NEVER, Deadline

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def test_the_table_names_every_function_and_the_context(device, fake):
    table = asdict(device.native.table)
    assert table.pop("context") == int(fake.primary)
    assert table.pop("context_number") == fake.primary.number
    assert len(set(table.values())) == 11
    assert all(table.values())
    assert fake.calls["cuGetProcAddress"] == 11
    assert device.native.table == device.native.table
    assert fake.calls["cuGetProcAddress"] == 11


def test_a_function_that_the_driver_lacks_makes_the_device_unavailable(device, fake):
    fake.cuGetProcAddress = lambda symbol, version, flags: (0, 0, "not found")
    with pytest.raises(DeviceUnavailable, match="cuLaunchKernel"):
        _ = device.native.table


def test_the_context_is_bound_and_unbound_however_deep(device, fake):
    with device.native.bound(), device.native.bound():
        assert fake.stack() == [fake.primary] * 2
        device.free(device.allocate(8))
        assert fake.stack() == [fake.primary] * 2
    assert fake.stack() == []


def test_an_error_inside_leaves_the_callers_context_current(device, fake):
    theirs = object()
    fake.stack().append(theirs)
    with pytest.raises(ZeroDivisionError), device.native.bound():
        raise ZeroDivisionError
    assert fake.stack() == [theirs]


@pytest.mark.parametrize("retained", [False, True])
def test_binding_notices_another_librarys_reset(device, fake, loaded, retained):
    device.native.kernel(loaded, "k", NEVER)
    fake.reset()
    if retained:
        fake.cuDevicePrimaryCtxRetain(0)
    with pytest.raises(DeviceLost, match="reset"), device.native.bound():
        pytest.fail("a kernel of the context that was reset is not to be launched")
    assert fake.stack() == []


def test_a_closed_device_binds_nothing(device):
    device.close()
    with pytest.raises(DeviceUnavailable), device.native.bound():
        pytest.fail("the device is closed")


def test_a_kernel_is_admitted_to_all_the_shared_memory_there_is(device, fake, loaded):
    for _ in range(2):
        kernel = device.native.kernel(loaded, "k", NEVER)
    assert kernel.max_threads == 512
    assert kernel.max_dynamic_shared_bytes == 232448 - 1024
    assert kernel.max_grid == (2**31 - 1, 65535, 65535)
    assert kernel.max_block == (1024, 1024, 64)
    assert kernel.handle
    assert fake.calls["cuFuncSetAttribute"] == 1


def test_a_kernel_that_is_not_there_is_named(device, loaded):
    with pytest.raises(InvalidKernel):
        device.native.kernel(loaded, "absent", NEVER)
    device.unload(loaded)
    with pytest.raises(InvalidHandle):
        device.native.kernel(loaded, "k", NEVER)


def test_streams_have_different_numbers(device, stream):
    other = device.open_stream()
    assert device.native.stream(stream) != device.native.stream(other)
    device.close_stream(other)
    with pytest.raises(InvalidHandle):
        device.native.stream(other)


def test_compiled_code_works_behind_the_clearing_of_what_it_may_touch(device, stream):
    device.allocate(64)
    device.native.confine(stream, (), NEVER)
    device.native.confine(stream, (), NEVER)
    assert len(stream.handle.waits) == 1


def test_work_of_compiled_code_is_waited_for_as_long_as_it_may_take(device, stream):
    deadline = Deadline.after(10)
    device.native.started(stream, deadline)
    assert stream.dues.latest == deadline


def test_a_callback_is_called_once_when_the_work_has_ended(device, fake, stream, work):
    called, came = [], threading.Event()

    @CALLBACK
    def callback(argument):
        called.append(argument)
        came.set()

    work(stream)
    fake.begin()
    device.native.notify(stream, ctypes.cast(callback, ctypes.c_void_p).value, 1234)
    assert called == []
    fake.finish()
    assert came.wait(30)
    assert called == [1234]


def test_a_callback_that_the_driver_refuses_is_an_error_of_the_tree(device, fake, stream):
    fake.fail["cuLaunchHostFunc"] = 719
    with pytest.raises(DeviceLost):
        device.native.notify(stream, 1, 2)
