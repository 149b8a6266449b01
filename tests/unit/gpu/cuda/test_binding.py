from types import SimpleNamespace

import pytest

from fakes.driver import FakeDriver
from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.cuda.driver.calls import UNKNOWN, Driver, DriverFailure


@pytest.mark.parametrize("error", [KeyError(77), ValueError("77 is not a valid CUresult")])
def test_a_result_code_that_the_bindings_do_not_know_is_an_unknown_failure(error):
    def query(stream):
        raise error

    driver = Driver(SimpleNamespace(cuStreamQuery=query))
    assert driver.attempt("cuStreamQuery", 1) == (UNKNOWN, None)
    with pytest.raises(DriverFailure, match="999"):
        driver.call("cuStreamQuery", 1)


def test_an_attribute_that_bindings_or_driver_do_not_know_is_not_supported():
    fake = FakeDriver()
    driver = Driver(fake)
    assert driver.supports(0, "MANAGED_MEMORY")
    assert not driver.supports(0, "OF_A_LATER_DRIVER")
    fake.attributes["MANAGED_MEMORY"] = 0
    assert not driver.supports(0, "MANAGED_MEMORY")
    fake.CUdevice_attribute = object()
    assert not driver.supports(0, "CONCURRENT_MANAGED_ACCESS")


def test_an_entry_point_is_there_if_the_bindings_spell_it():
    with pytest.raises(DeviceUnavailable, match="cuMemAdvise_v2"):
        Driver(FakeDriver()).call("cuMemAdvise_v2", 0, 0, "", None)
