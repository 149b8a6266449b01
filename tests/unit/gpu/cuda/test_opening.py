import subprocess
import sys

import pytest

from fakes.driver import FakeDriver
from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.cuda import opening
from tensorwasm.gpu.cuda.assembler import Assembler
from tensorwasm.gpu.cuda.driver import calls
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with


def reason(fake: FakeDriver, ordinal: int = 0) -> str:
    with pytest.raises(DeviceUnavailable) as caught:
        open_with(Driver(fake), ordinal)
    return caught.value.message


def test_a_device_describes_itself(monkeypatch):
    monkeypatch.setattr(opening, "driver_version", lambda: "580.159.03")
    device = open_with(Driver(FakeDriver()), 0)
    info = device.info
    assert (info.kind, info.ordinal, info.name) == ("cuda", 0, "NVIDIA Fake")
    assert info.compute_capability == (9, 0)
    assert info.ptx_version == (9, 0)
    assert info.memory_bytes == 1 << 30
    assert info.max_shared_bytes == 232448
    assert info.concurrent_managed_access
    assert info.driver == "580.159.03 (CUDA 13.0)"
    device.close()


def test_without_the_kernel_modules_version_the_cuda_release_stands_alone(monkeypatch):
    monkeypatch.setattr(opening, "driver_version", lambda: "")
    device = open_with(Driver(FakeDriver(cuda=12040)), 0)
    assert device.info.driver == "CUDA 12.4"
    assert device.info.ptx_version == (8, 4)
    device.close()


@pytest.mark.parametrize("cuda", [12000, 12060, 12090, 13000, 13050, 14000])
def test_drivers_back_to_525_are_taken(cuda):
    open_with(Driver(FakeDriver(cuda=cuda)), 0).close()


def test_an_older_driver_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(opening, "driver_version", lambda: "470.256.02")
    assert reason(FakeDriver(cuda=11040)).startswith("driver 470.256.02 supports CUDA 11.4 and is older than 525")


def test_a_gpu_below_volta_is_refused_by_name():
    fake = FakeDriver()
    fake.attributes |= {"COMPUTE_CAPABILITY_MAJOR": 6, "COMPUTE_CAPABILITY_MINOR": 1}
    assert reason(fake).startswith("NVIDIA Fake has compute capability 6.1, below 7.0")


def test_a_gpu_in_prohibited_mode_is_refused_with_a_remedy():
    fake = FakeDriver()
    fake.attributes["COMPUTE_MODE"] = 2
    assert "nvidia-smi -q -d COMPUTE" in reason(fake)


@pytest.mark.parametrize(("ordinal", "devices", "words"), [(2, 2, "2 GPUs, cuda:0 to cuda:1"), (0, 0, "no GPU")])
def test_an_absent_ordinal_is_refused_with_those_that_exist(ordinal, devices, words):
    message = reason(FakeDriver(devices=devices), ordinal)
    assert f"no cuda:{ordinal}" in message
    assert words in message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (100, "docker add --gpus all"),
        (803, "reboot after a driver upgrade"),
        (804, "compat"),
        (802, "fabricmanager"),
        (34, "stubs"),
        (46, "compute mode"),
        (999, "dmesg"),
    ],
)
@pytest.mark.parametrize("function", ["cuInit", "cuDevicePrimaryCtxRetain"])
def test_each_error_of_the_driver_is_reported_with_its_number_and_a_remedy(function, code, words):
    fake = FakeDriver()
    fake.fail[function] = code
    message = reason(fake)
    assert f"error {code}" in message
    assert words.lower() in message.lower()


def test_an_absent_driver_is_named():
    fake = FakeDriver()
    fake.missing.add("cuInit")
    assert reason(fake).startswith("no driver: ")


def test_absent_bindings_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    calls.load_driver.cache_clear()
    with pytest.raises(DeviceUnavailable, match="cuda-bindings"):
        calls.load_driver()
    calls.load_driver.cache_clear()


def test_importing_the_package_imports_no_bindings_and_opening_names_what_is_missing():
    program = """
import sys
sys.modules["cuda"] = None
from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu import opening as probe
from tensorwasm.gpu.cuda import opening
try:
    probe.open_device("cuda")
except DeviceUnavailable as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "cuda-bindings is not installed; pip install 'tensor-wasm[cuda]'\n"


def ptxas(release):
    return lambda _: Assembler("/opt/cuda/bin/ptxas", release)


@pytest.mark.parametrize(
    ("found", "capability", "cuda", "words"),
    [
        (lambda _: None, (9, 0), 13000, "there is no ptxas here"),
        (ptxas((12, 0)), (10, 0), 13000, "ptxas here is of release 12.0, which does not serve this GPU and driver"),
        (ptxas((13, 0)), (9, 0), 12090, "of a CUDA 12 toolkit"),
    ],
)
@pytest.mark.rule("10-compiler")
def test_a_gpu_without_its_ptxas_is_refused_if_the_driver_must_not_compile(found, capability, cuda, words):
    fake = FakeDriver(cuda=cuda)
    fake.attributes |= dict(zip(("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR"), capability, strict=True))
    with pytest.raises(DeviceUnavailable, match=words) as refused:
        open_with(Driver(fake), 0, found, 8, jit=False)
    for what_to_do in ("TENSOR_WASM_PTXAS", "isolation='process'"):
        assert what_to_do in refused.value.message
    assert "/opt" not in refused.value.message
    assert fake.leftovers() == []
    open_with(Driver(fake), 0, found, 8).close()


@pytest.mark.parametrize(("release", "cuda", "isa"), [((12, 4), 13000, (8, 4)), ((13, 2), 13000, (9, 0))])
def test_a_device_takes_the_ptx_that_ptxas_knows_if_the_driver_must_not_compile(release, cuda, isa):
    driver = Driver(FakeDriver(cuda=cuda))
    device = open_with(driver, 0, ptxas(release), jit=False)
    assert device.info.ptx_version == isa
    device.close()
    device = open_with(driver, 0, ptxas(release))
    assert device.info.ptx_version == (9, 0)
    device.close()


def test_a_gpu_that_was_lost_stays_lost_for_the_process():
    fake = FakeDriver()
    driver = Driver(fake)
    device = open_with(driver, 0)
    fake.fail["cuMemAllocFromPoolAsync"] = 700
    with pytest.raises(Exception, match="700"):
        device.allocate(8)
    fake.fail.clear()
    with pytest.raises(DeviceUnavailable, match="start a new process"):
        open_with(driver, 0)
    device.close()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Thu Mar 1\nGCC version: 11.4.0\n", "580.159.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.54.03  Release Build\n", "535.54.03"),
        ("something else 1.2.3", ""),
    ],
)
def test_the_kernel_modules_version_is_read(tmp_path, monkeypatch, text, version):
    path = tmp_path / "version"
    path.write_text(text, encoding="ascii")
    monkeypatch.setattr(opening, "_KERNEL_MODULE", path)
    assert opening.driver_version() == version


def test_a_machine_without_the_kernel_module_has_no_version(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "_KERNEL_MODULE", tmp_path / "absent")
    assert opening.driver_version() == ""
