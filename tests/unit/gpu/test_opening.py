import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.driver import FakeDriver
from tensorwasm import settings
from tensorwasm.errors import DeviceUnavailable, InvalidArgs, QuotaExceeded, UnsupportedPtx
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.opening import CHOICES, open_device, open_emulator, parse_choice
from tensorwasm.ptx import parse
from tensorwasm.settings import Settings
from tensorwasm.values import MIB, NEVER, NEWEST_PTX, SmPlacement


class Emulator:
    """Stands for the emulator."""


def emulator(multiprocessors):
    return Emulator()


def gpu(ordinal, multiprocessors, **options):
    return open_with(Driver(FakeDriver(devices=2)), ordinal, multiprocessors=multiprocessors, **options)


def no_gpu(ordinal, multiprocessors, **_):
    raise DeviceUnavailable("driver 470 is older than 525")


def test_auto_takes_the_gpu_where_it_works():
    device, reason = open_device("auto", emulator, gpu)
    assert device.info.kind == "cuda"
    assert reason == "NVIDIA Fake works"
    device.close()


def test_auto_says_why_not_where_it_does_not():
    device, reason = open_device("auto", emulator, no_gpu)
    assert isinstance(device, Emulator)
    assert reason == "no usable GPU: driver 470 is older than 525"


def test_the_emulator_is_opened_without_a_look_at_the_gpu():
    def never(ordinal, multiprocessors, **_):
        raise AssertionError

    assert isinstance(open_device("emulator", emulator, never)[0], Emulator)


def test_the_emulator_has_the_memory_that_the_settings_give_it(monkeypatch):
    given_mib = Settings.from_environment({"TENSOR_WASM_EMULATOR_MEMORY": "3"})
    monkeypatch.setattr(settings, "current", lambda: given_mib)
    device, _ = open_device("emulator")
    assert device.info.memory_bytes == 3 * MIB
    with pytest.raises(QuotaExceeded):
        device.allocate(4 * MIB)
    device.close()


def test_the_emulator_takes_the_newest_ptx_by_default(monkeypatch):
    newest = parse(f".version {NEWEST_PTX[0]}.{NEWEST_PTX[1]}\n.target sm_90a\n.address_size 64\n")
    device, _ = open_device("emulator")
    device.unload(device.load(newest, NEVER))
    device.close()
    told = Settings.from_environment({"TENSOR_WASM_EMULATOR_PTX": "8.4", "TENSOR_WASM_EMULATOR_ARCH": "sm_100"})
    monkeypatch.setattr(settings, "current", lambda: told)
    device, _ = open_device("emulator")
    assert (device.info.ptx_version, device.info.compute_capability) == ((8, 4), (10, 0))
    with pytest.raises(UnsupportedPtx, match=r"up to sm_100 and ISA 8\.4"):
        device.load(newest, NEVER)
    device.close()


@pytest.mark.parametrize("version", ["9.6", "5.0"])
def test_a_ptx_version_that_is_not_read_is_no_setting(version):
    with pytest.raises(InvalidArgs, match=r"TENSOR_WASM_EMULATOR_PTX is from 6\.0 to"):
        Settings.from_environment({"TENSOR_WASM_EMULATOR_PTX": version})


@pytest.mark.parametrize(("choice", "ordinal"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_a_gpu_is_chosen_by_its_ordinal(choice, ordinal):
    device, _ = open_device(choice, emulator, gpu)
    assert device.info.ordinal == ordinal
    device.close()


@pytest.mark.parametrize("choice", ["emulator", "cuda:1", "auto"])
def test_a_share_of_a_device_is_passed_on(choice):
    device, _ = open_device(choice, open_emulator, gpu, multiprocessors=20)
    assert device.info.multiprocessors == (20 if choice == "emulator" else 24)
    device.close()


@pytest.mark.parametrize("choice", ["emulator", "cuda", "auto"])
def test_a_share_of_nothing_is_refused(choice):
    with pytest.raises(InvalidArgs, match="at least 1"):
        open_device(choice, open_emulator, gpu, multiprocessors=0)


@pytest.mark.parametrize("choice", ["cuda:1", "auto"])
def test_placement_and_compiler_are_passed_to_the_gpu(choice):
    told = []

    def note(ordinal, multiprocessors, **options):
        told.append((multiprocessors, options))
        return gpu(ordinal, multiprocessors)

    open_device(choice, emulator, note, multiprocessors=16, place=SmPlacement(8, (24,)), jit=False)[0].close()
    open_device(choice, emulator, note)[0].close()
    assert told == [(16, {"place": SmPlacement(8, (24,)), "jit": False}), (None, {"place": None, "jit": True})]


def test_a_gpu_that_was_asked_for_is_never_replaced():
    with pytest.raises(DeviceUnavailable, match="470"):
        open_device("cuda", emulator, no_gpu)


@given(st.text(alphabet=st.characters(exclude_characters="0123456789")))
def test_an_unknown_choice_lists_the_known_ones(choice):
    if choice not in CHOICES[:3]:
        with pytest.raises(InvalidArgs, match="auto, emulator, cuda or cuda:N"):
            parse_choice(choice)


@pytest.mark.parametrize(
    "choice",
    ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda:N", "cuda\n", "emulator:0", "auto:1", "cuda:99999"],
)
def test_near_misses_are_refused(choice):
    with pytest.raises(InvalidArgs):
        parse_choice(choice)
