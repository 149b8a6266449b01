import pytest

from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.runtime.workers.devices import list_devices


def no_gpu():
    raise DeviceUnavailable("no driver")


def unasked():
    raise AssertionError("nobody needed to know")


def test_every_gpu_has_its_ordinal():
    assert list_devices(["cuda"], lambda: 3) == ("cuda:0", "cuda:1", "cuda:2")
    assert list_devices(["auto"], lambda: 2) == ("cuda:0", "cuda:1")
    assert list_devices(["emulator", "cuda"], lambda: 1) == ("emulator", "cuda:0")


def test_gpus_are_counted_only_where_that_matters():
    assert list_devices(["emulator"], unasked) == ("emulator",)
    assert list_devices(["cuda:1", "cuda:0"], unasked) == ("cuda:1", "cuda:0")


def test_without_a_gpu_auto_is_the_emulator_and_cuda_an_error():
    assert list_devices(["auto"], no_gpu) == ("emulator",)
    assert list_devices(["auto"], lambda: 0) == ("emulator",)
    with pytest.raises(DeviceUnavailable, match="no driver"):
        list_devices(["cuda"], no_gpu)
    with pytest.raises(DeviceUnavailable, match="no GPU"):
        list_devices(["cuda"], lambda: 0)


@pytest.mark.parametrize("choices", [[], ["emulator", "emulator"], ["cuda", "cuda:0"], ["tpu"], ["cuda:-1"]])
def test_none_one_twice_and_no_such_device_are_refused(choices):
    with pytest.raises(InvalidArgs):
        list_devices(choices, lambda: 1)
