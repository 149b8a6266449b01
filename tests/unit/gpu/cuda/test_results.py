import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import (
    CallerError,
    DeviceLost,
    DeviceUnavailable,
    InternalError,
    InvalidDimensions,
    KernelFault,
    LaunchRefused,
    QuotaExceeded,
    TensorWasmError,
    UnsupportedPtx,
)
from tensorwasm.gpu.cuda.driver.calls import MEANINGS, DriverFailure, FailureScope, describe, meaning, translate


@given(
    st.integers(1, 2**31 - 1), st.sampled_from(["cuMemAlloc", "cuLaunchKernel", "cuModuleLoadDataEx"]), st.booleans()
)
def test_every_code_of_every_call_is_an_error_of_the_tree_that_names_both(code, function, waiting):
    error = translate(DriverFailure(function, code), waiting=waiting)
    assert isinstance(error, TensorWasmError)
    assert str(code) in error.message
    assert function in error.message


@given(st.integers(1, 2**31 - 1))
def test_results_that_end_the_device_are_never_the_callers_error(code):
    failure = DriverFailure("cuMemAlloc", code)
    if meaning(failure).scope is not FailureScope.CALL:
        assert not isinstance(translate(failure), CallerError)


def test_a_code_that_is_not_in_the_table_loses_the_device():
    assert meaning(DriverFailure("cuMemFree", 123456)).scope is FailureScope.DEVICE


@pytest.mark.parametrize("code", [700, 702, 710, 714, 715, 716, 717, 718, 719])
def test_a_kernels_fault_is_named_where_it_is_waited_for_and_a_loss_elsewhere(code):
    failure = DriverFailure("cuStreamQuery", code)
    assert isinstance(translate(failure, waiting=True), KernelFault)
    assert isinstance(translate(failure), DeviceLost)


@pytest.mark.parametrize(
    ("function", "code", "error"),
    [
        ("cuMemAlloc", 2, QuotaExceeded),
        ("cuLaunchKernel", 1, LaunchRefused),
        ("cuLaunchKernel", 701, InvalidDimensions),
        ("cuMemHostRegister", 712, LaunchRefused),
        ("cuMemFree", 1, InternalError),
        ("cuModuleLoadDataEx", 222, UnsupportedPtx),
        ("cuMemAllocFromPoolAsync", 2, QuotaExceeded),
        ("cuMemAddressReserve", 2, LaunchRefused),
        ("cuMemCreate", 2, QuotaExceeded),
        ("cuMemCreate", 304, QuotaExceeded),
        ("cuStreamEndCapture", 901, LaunchRefused),
        ("cuStreamEndCapture", 401, LaunchRefused),
        ("cuGraphInstantiate", 1, LaunchRefused),
        ("cuStreamQuery", 900, LaunchRefused),
        ("cuDevSmResourceSplitByCount", 914, DeviceUnavailable),
        ("cuLaunchKernel", 917, DeviceLost),
        ("cuInit", 100, DeviceUnavailable),
        ("cuInit", 803, DeviceUnavailable),
        ("cuMemAlloc", 214, DeviceLost),
    ],
)
def test_the_table(function, code, error):
    assert type(translate(DriverFailure(function, code))) is error


def test_every_absent_device_has_a_remedy():
    for code, row in MEANINGS.items():
        if row.error is DeviceUnavailable:
            assert row.fix, code


def test_the_compilers_log_is_part_of_the_sentence():
    assert "line 4; error" in describe(DriverFailure("cuModuleLoadDataEx", 218, "line 4; error : no"))
