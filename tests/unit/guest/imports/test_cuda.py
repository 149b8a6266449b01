"""``wasi:cuda`` answers the right code, in the right order, and leaves the right text behind."""

import mmap
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.argv import encode_argv
from fakes.device import FakeDevice
from fakes.gate import Sitter
from fakes.guest import MEMORY_ADDRESS, FakeCall, FakeMemory
from strategies.argv import around, records
from strategies.kernels import BY_VALUE, FILL, NOTHING, VECTOR_ADD, with_global
from tensorwasm.errors import (
    DeviceLost,
    DeviceUnavailable,
    InternalError,
    InvokeTimeout,
    KernelFault,
    LaunchRefused,
    QuotaExceeded,
    UnsupportedPtx,
)
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.limits.accounts import MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.session import Session
from tensorwasm.guest.imports import host_functions
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.guest.imports.cuda import CudaService
from tensorwasm.values import Deadline, LaunchConfig, Region

PAGE = 1 << 16
FUNCTIONS = {
    (function.module[-5:], function.name): function for function in host_functions() if "cuda" in function.module
}
DEVICE_FUNCTIONS = sorted(name for version, name in FUNCTIONS if version == "0.2.0" and "last_error" not in name)


class Guest:
    """A guest with a grant, calling as Wasm would: every number signed."""

    def __init__(self, memory=None, device=None, gate=None, ledger=None, deadline=None):
        self.device = device or FakeDevice()
        self.session = Session(self.device, ledger=ledger or MemoryLedger(), gate=gate or Gate())
        self.service = CudaService(self.session)
        self.call = FakeCall(memory or FakeMemory(), deadline or Deadline(), {"cuda": self.service})
        self.memory = self.call.memory

    def __call__(self, name, *params, version="0.2.0"):
        function = FUNCTIONS[version, f"wasi_cuda_{name}"]
        bits = {"i32": 32, "i64": 64}
        signed = [wrap(value, bits[kind]) for value, kind in zip(params, function.params, strict=True)]
        answer = function.body(self.call, *signed)
        width = bits[function.results[0]]
        assert -(1 << width - 1) <= answer < 1 << width - 1
        return int(answer)

    def put(self, data, at=0):
        self.memory.write(at, data)
        return at, len(data)

    def load(self, text=NOTHING, entry=b"nothing"):
        self.put(text)
        self.put(entry, 8192)
        return self("load_ptx", 0, len(text), 8192, len(entry))

    def launch(self, kernel, *args, grid=(1, 1, 1), block=(1, 1, 1), shared=0, version="0.2.0"):
        at, length = self.put(encode_argv(args), 16384)
        return self("launch", kernel, *grid, *block, shared, at, length, version=version)

    def alloc(self, size):
        return self("alloc", size & 0xFFFF_FFFF, size >> 32)

    @property
    def text(self):
        return self.service.last_error.decode()


def wrap(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def u32(value):
    return NumberArg("u32", struct.pack("<I", value))


def u64(value):
    return NumberArg("u64", struct.pack("<Q", value))


@pytest.fixture
def guest():
    guest = Guest()
    yield guest
    guest.session.close()
    assert guest.device.holds_nothing()
    assert guest.device.broken == []


@pytest.fixture(scope="module")
def huge():
    """4 GiB of address space; only touched pages exist."""
    flags = (
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        if hasattr(mmap, "MAP_PRIVATE")
        else None
    )
    pages = mmap.mmap(-1, 1 << 32) if flags is None else mmap.mmap(-1, 1 << 32, flags=flags)
    return FakeMemory(memoryview(pages))


# -------------------------------------------------------------------------------------------------------- grant


@pytest.mark.parametrize("key", sorted(FUNCTIONS))
@pytest.mark.rule("15-grant")
def test_without_the_grant_everything_is_not_available(key):
    function = FUNCTIONS[key]
    assert function.body(FakeCall(None), *(-1 for _ in function.params)) == -1


def test_a_service_of_another_kind_is_a_bug_here():
    with pytest.raises(InternalError):
        FUNCTIONS["0.2.0", "wasi_cuda_sync"].body(FakeCall(services={"cuda": object()}))


def test_a_host_without_a_device_is_not_available(guest):
    guest.device.failures["open_stream"] = DeviceUnavailable("no GPU here")
    assert guest.launch(guest.load()) == -1
    assert guest.text == "no GPU here"


# --------------------------------------------------------------------------------------------------- last error


def test_nothing_has_failed_yet(guest):
    assert guest("last_error_len") == 0
    assert guest("last_error_copy", 0, 512) == 0
    assert guest("last_error_copy", -1, 512) == 0


def test_the_text_of_a_failure_is_copied_as_far_as_there_is_room(guest):
    guest("free", 9, 0)
    text = b"no device buffer 9"
    assert guest("last_error_len") == len(text)
    assert guest("last_error_copy", 0, 512) == len(text)
    assert guest.memory.read(0, len(text) + 1) == text + b"\0"
    assert guest("last_error_copy", 100, 4) == 4
    assert guest.memory.read(100, 5) == b"no d\0"
    assert guest("last_error_copy", -1, 0) == 0


def test_the_text_stays_until_the_next_failure(guest):
    guest("free", 9, 0)
    assert guest.alloc(4) == 1
    assert guest.text == "no device buffer 9"
    guest("free", 8, 0)
    assert guest.text == "no device buffer 8"


@pytest.mark.parametrize(("at", "length"), [(PAGE, 1), (PAGE - 3, 4), (-1, 4), (1 << 31, 4), (0, PAGE + 1), (0, -1)])
def test_a_bad_place_for_the_text_is_refused_and_not_recorded(guest, at, length):
    guest("free", 9, 0)
    assert guest("last_error_copy", at, length) == -2
    assert guest.text == "no device buffer 9"


def test_the_text_may_end_where_the_memory_ends(guest):
    guest("free", 9, 0)
    assert guest("last_error_copy", PAGE - 18, 18) == 18


def test_a_guest_without_memory_has_no_place_for_the_text(guest):
    guest("free", 9, 0)
    guest.call.memory_or_none = None
    assert guest("last_error_copy", 0, 4) == -2


@given(st.text(max_size=700))
def test_a_text_is_cut_at_512_bytes_and_a_characters_end(message):
    service = CudaService(Session(FakeDevice()))
    service.record(message)
    whole = message.encode("utf-8", "replace")
    if len(whole) <= 512:
        assert service.last_error == whole
    else:
        assert 506 <= len(service.last_error) <= 512
        assert service.last_error.decode().endswith("…")
        assert whole.startswith(service.last_error[:-3])


@pytest.mark.parametrize(("message", "kept"), [("x" * 512, 512), ("x" * 513, 512), ("é" * 256, 512), ("é" * 257, 511)])
def test_the_longest_text(message, kept):
    service = CudaService(Session(FakeDevice()))
    service.record(message)
    assert len(service.last_error) == kept


def test_two_instances_have_their_own_texts(guest):
    other = Guest()
    guest("free", 9, 0)
    assert other("last_error_len") == 0


# --------------------------------------------------------------------------------------------------------- load


def test_a_kernel_is_loaded(guest):
    assert guest.load() > 0
    assert guest.load(VECTOR_ADD, b"vector_add") > 0
    assert guest.session.statistics().kernels == 2


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ((0, -1, 0, -1), -2),
        ((0, -(1 << 31), 0, 300), -2),
        ((-1, (8 << 20) + 1, 0, 4), -6),
        ((-1, 8 << 20, 0, 4), -2),
        ((-1, 4, -1, -1), -6),
        ((-1, 4, -1, 257), -6),
        ((0, 4, -1, 256), -2),
        ((PAGE - 3, 4, 0, 4), -2),
        ((PAGE, 1, 0, 4), -2),
        ((0, 4, PAGE - 3, 4), -2),
        ((1 << 31, 4, 0, 4), -2),
    ],
)
def test_checks_of_load_come_in_order(guest, params, code):
    guest.put(b"\xff" * 1000)
    assert guest("load_ptx", *params) == code
    assert guest.text
    assert guest.device.calls == []


def test_a_name_has_at_most_256_bytes(guest):
    assert guest.load(NOTHING, b"n" * 256) == -3
    assert guest.load(NOTHING, b"n" * 257) == -6


def test_regions_may_end_where_the_memory_ends(guest):
    guest.put(NOTHING, PAGE - len(NOTHING))
    guest.put(b"nothing")
    assert guest("load_ptx", PAGE - len(NOTHING), len(NOTHING), 0, 7) > 0


@pytest.mark.parametrize("name", [b"\xff", b"nothing\xc3", b"\xed\xa0\x80"])
def test_a_name_that_is_not_utf8_is_invalid(guest, name):
    assert guest.load(b"\0", name) == -9


@pytest.mark.parametrize("text", [b"", b"\0", b"\xff\xfe", b"x" * 100, NOTHING + b"\0\0", b"{" * 8000, NOTHING[:40]])
def test_text_that_is_no_ptx(guest, text):
    assert guest.load(text) == -4
    assert guest.text


@pytest.mark.parametrize("entry", [b"", b"something", b"Nothing", "ñothing".encode(), b"nothing\0"])
def test_an_entry_that_does_not_exist(guest, entry):
    assert guest.load(NOTHING, entry) == -3


def test_ptx_the_device_cannot_run_is_malformed_to_the_guest(guest):
    guest.device.failures["load"] = UnsupportedPtx("tcgen05.mma needs sm_100")
    assert guest.load() == -4
    assert guest.text == "tcgen05.mma needs sm_100"


def test_variables_beyond_the_limit_are_over_quota(guest):
    assert guest.load(with_global((256 << 20) + 1)) == -6


# ------------------------------------------------------------------------------------------------------- launch


def test_a_launch_reaches_the_device(guest):
    kernel = guest.load(VECTOR_ADD, b"vector_add")
    args = [WindowArg(0, 16), WindowArg(16, 16), BufferOffset(guest.alloc(16), 0), u32(4)]
    assert guest.launch(kernel, *args, grid=(4, 3, 2), block=(8, 4, 2), shared=64) == 0
    (launch,) = guest.device.launched
    assert (launch.config.grid, launch.config.block, launch.config.shared_bytes) == ((4, 3, 2), (8, 4, 2), 64)
    addresses = [int.from_bytes(value, "little") for value in launch.args]
    assert addresses == [MEMORY_ADDRESS, MEMORY_ADDRESS + 16, next(iter(guest.device.memory)), 4]
    assert Region(MEMORY_ADDRESS, PAGE, host=True) in launch.regions
    assert guest("sync") == 0


BAD_ARGS_REGION = (PAGE - 3, 4)
BAD_KERNEL = -1
BAD_GRID = (0, 1, 1)
BAD_TAG = b"\x09"
WINDOW_OUTSIDE = encode_argv([WindowArg(PAGE, 1)])


def test_checks_of_launch_come_in_order():
    full = Guest(gate=Gate(0))
    free = Guest()
    many = encode_argv([u32(1)] * 129)
    cases = [
        (full, BAD_KERNEL, BAD_GRID, BAD_TAG, PAGE, -2),
        (full, BAD_KERNEL, BAD_GRID, BAD_TAG, 0, -3),
        (full, 0, BAD_GRID, BAD_TAG, 0, -8),
        (full, 5, (1, 1, 1), BAD_TAG, 0, -6),
        (free, 5, (1, 1, 1), many, 0, -10),
        (free, 5, (1, 1, 1), bytes(4097), 0, -10),
        (free, 5, (1, 1, 1), BAD_TAG, 0, -9),
        (free, 5, (1, 1, 1), WINDOW_OUTSIDE + BAD_TAG, 0, -9),
        (free, 5, (1, 1, 1), WINDOW_OUTSIDE, 0, -2),
        (free, 5, (1, 1, 1), b"", 0, -3),
    ]
    for guest, kernel, grid, argv, shift, code in cases:
        at, length = guest.put(argv, 100)
        answer = guest("launch", kernel, *grid, 1, 1, 1, 0, at + shift, length)
        assert (answer, bool(guest.text)) == (code, True), (kernel, grid, argv[:5], shift)
    assert free.device.calls == full.device.calls == []
    assert full.session.statistics().back_pressure_rejections == 1


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1 << 31, 1, 1), (1, 1 << 31, 1), (1, 1, -1)])
def test_grids_of_nothing_or_too_much(guest, grid):
    assert guest.launch(guest.load(), grid=grid) == -8


@pytest.mark.parametrize("block", [(0, 1, 1), (1025, 1, 1), (33, 32, 1), (1, -1, -1), (1 << 31, 1 << 31, 1)])
def test_blocks_of_nothing_or_too_much(guest, block):
    assert guest.launch(guest.load(), block=block) == -8


def test_the_largest_geometry(guest):
    most = (1 << 31) - 1
    assert guest.launch(guest.load(), grid=(most, most, most), block=(32, 16, 2), shared=228 << 10) == 0


@pytest.mark.parametrize("shared", [(228 << 10) + 1, -1, 1 << 31])
def test_too_much_shared_memory(guest, shared):
    assert guest.launch(guest.load(), shared=shared) == -8


@pytest.mark.parametrize("kernel", [0, 1, (1 << 63) - 1, -1, -(1 << 63)])
def test_kernels_that_do_not_exist(guest, kernel):
    guest.load()
    assert guest.launch(kernel) == -3


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([], -9),
        ([u32(1)], -9),
        ([WindowArg(0, 4), u32(1), u32(1)], -9),
        ([u32(1), u32(1)], -9),
        ([WindowArg(0, 4), u64(1)], -9),
        ([u64(0), u32(1)], -5),
        ([u64(4096), u32(1)], -5),
        ([u64(MEMORY_ADDRESS + PAGE), u32(1)], -5),
        ([u64((1 << 64) - 8), u32(1)], -5),
        ([NumberArg("i64", struct.pack("<q", -8)), u32(1)], -5),
        ([NumberArg("f64", struct.pack("<d", 1.0)), u32(1)], -5),
        ([WindowArg(1, 4), u32(1)], -5),
        ([WindowArg(PAGE - 3, 4), u32(1)], -2),
        ([WindowArg((1 << 32) - 1, 1), u32(1)], -2),
        ([WindowArg(0, (1 << 32) - 1), u32(1)], -2),
        ([WindowArg(PAGE + 1, 0), u32(1)], -2),
        ([BufferOffset(0, 0), u32(1)], -11),
        ([BufferOffset(2, 0), u32(1)], -11),
        ([BufferOffset(1, 64), u32(1)], -5),
        ([BufferOffset(1, (1 << 64) - 4), u32(1)], -5),
        ([BufferOffset(1, 2), u32(1)], -5),
    ],
)
def test_arguments_that_do_not_fit_never_reach_the_device(guest, args, code):
    guest.alloc(64)
    assert guest.launch(guest.load(FILL, b"fill"), *args) == code
    assert guest.device.launched == []
    assert guest.session.failure is None


@pytest.mark.parametrize(
    ("arg", "address"),
    [
        (WindowArg(PAGE, 0), 0),
        (WindowArg(PAGE - 4, 4), MEMORY_ADDRESS + PAGE - 4),
        (WindowArg(4, 0), MEMORY_ADDRESS + 4),
    ],
)
def test_windows_at_the_end_of_memory(guest, arg, address):
    assert guest.launch(guest.load(FILL, b"fill"), arg, u32(1)) == 0
    assert guest.device.launched[0].args[0] == struct.pack("<Q", address)


def test_structures_by_value_cannot_be_passed(guest):
    assert guest.launch(guest.load(BY_VALUE, b"by_value"), u64(1)) == -10


def test_heap_of_the_host_is_no_argument(guest):
    heap = bytearray(64)
    assert guest.launch(guest.load(FILL, b"fill"), u64(id(heap) & ~7), u32(1)) == -5


def test_the_older_version_takes_no_arguments(guest):
    kernel = guest.load()
    assert guest.launch(kernel, version="0.1.0") == 0
    assert guest.launch(kernel, u32(1), version="0.1.0") == -10
    assert "0.2.0" in guest.text
    at, length = guest.put(b"\xff", 64)
    assert guest("launch", kernel, 1, 1, 1, 1, 1, 1, 0, at, length, version="0.1.0") == -10
    assert guest("launch", -1, 1, 1, 1, 1, 1, 1, 0, at, length, version="0.1.0") == -3


def test_a_refusal_of_the_device_is_a_failed_launch(guest):
    kernel = guest.load()
    guest.device.failures["launch"] = LaunchRefused("too many resources")
    assert guest.launch(kernel) == -5
    assert guest.text == "too many resources"
    assert guest.launch(kernel) == 0


@pytest.mark.parametrize("where", ["launch", "synchronize"])
def test_after_a_kernels_fault_only_the_texts_are_left(guest, where):
    kernel = guest.load()
    guest.device.failures[where] = KernelFault("thread (1,0,0): ld.global at 0x10")
    assert guest.launch(kernel) == -5
    assert guest.text == "thread (1,0,0): ld.global at 0x10"
    for name in DEVICE_FUNCTIONS:
        guest.service.last_error = b""
        params = FUNCTIONS["0.2.0", name].params
        assert guest(name.removeprefix("wasi_cuda_"), *(-1 for _ in params)) == -7
        assert "thread (1,0,0)" in guest.text
    assert guest("last_error_copy", 0, 512) > 0


def test_sync_waits_for_work_in_flight(guest):
    kernel = guest.load()
    guest.session.kernels.submit(kernel, LaunchConfig((1, 1, 1), (1, 1, 1)), tuple, None, Deadline())
    assert guest.device.busy
    assert guest("sync") == 0
    assert not guest.device.busy


@pytest.mark.parametrize(
    "error", [InvokeTimeout("late"), DeviceLost("gone"), InternalError("bug"), RuntimeError("bug")]
)
@pytest.mark.parametrize("where", ["launch", "synchronize"])
def test_errors_that_a_guest_cannot_handle_end_its_call(guest, where, error):
    kernel = guest.load()
    guest.device.failures[where] = error
    with pytest.raises(type(error)) as caught:
        guest.launch(kernel)
    assert caught.value is error
    assert guest("sync") == -7


def test_near_the_deadline_a_busy_gpu_refuses():
    gate = Gate(1)
    gate.enter(Deadline(), Sitter())
    guest = Guest(gate=gate, deadline=Deadline.after(0.03))
    assert guest.launch(guest.load()) == -6


# ------------------------------------------------------------------------------------------------ device buffers


def test_a_buffer_lives_from_alloc_to_free(guest):
    handle = guest.alloc(8)
    assert handle == 1
    guest.put(b"12345678", 100)
    assert guest("memcpy_h2d", handle, 0, 100, 8) == 0
    assert guest("memcpy_d2h", 200, handle, 0, 8) == 0
    assert guest.memory.read(200, 8) == b"12345678"
    assert guest("free", handle, 0) == 0
    assert guest("free", handle, 0) == -11
    assert guest("memcpy_h2d", handle, 0, 100, 8) == -11
    assert guest("memcpy_d2h", 200, handle, 0, 8) == -11


@pytest.mark.parametrize(
    ("size", "code"),
    [(0, -9), ((256 << 20) + 1, -6), (1 << 31, -6), (1 << 32, -6), (1 << 53, -6), (1 << 63, -6), ((1 << 64) - 1, -6)],
)
def test_sizes_that_no_buffer_has(guest, size, code):
    assert guest.alloc(size) == code
    assert guest.device.calls == []


def test_the_largest_buffer(guest):
    assert guest.alloc(256 << 20) == 1


def test_a_device_without_memory_is_over_quota_and_charges_nothing(guest):
    guest.device.failing["pool_allocate"] = QuotaExceeded("out of memory")
    assert guest.alloc(8) == -6
    assert guest.session.statistics().device_bytes == 0


def test_checks_of_copies_come_in_order(guest):
    handle = guest.alloc(8)
    for high, low, at, length, code in [
        (0, 99, PAGE, 1, -2),
        (0, handle, PAGE - 3, 4, -2),
        (0, handle, 0, -1, -2),
        (0, handle, -1, 1, -2),
        (0, 99, 0, 9, -11),
        (1, handle, 0, 1, -11),
        (0, handle, 0, 9, -9),
        (0, handle, 0, 8, 0),
        (0, handle, PAGE, 0, 0),
        (0, 99, PAGE, 0, -11),
    ]:
        assert guest("memcpy_h2d", low, high, at, length) == code
        assert guest("memcpy_d2h", at, low, high, length) == code


@given(around(64))
def test_halves_make_the_whole(value):
    guest, seen = Guest(), []
    guest.session.buffers = SimpleNamespace(allocate=lambda size: seen.append(size) or 1)
    assert guest.alloc(value) == 1
    assert seen == [value]


def test_handles_are_64_bits_wide(guest):
    handle = guest.alloc(8)
    assert guest("free", handle, 1) == -11
    assert guest("free", handle, -1) == -11
    assert guest("free", handle, 0) == 0


# ------------------------------------------------------------------------------------------------- hostile input


def test_memory_beyond_2_gib_works(huge):
    guest = Guest(huge)
    at = (1 << 32) - PAGE
    huge.write(at, NOTHING)
    huge.write(at + 8192, b"nothing")
    assert guest("load_ptx", at, len(NOTHING), at + 8192, 7) > 0
    huge.write(at, FILL)
    huge.write(at + 8192, b"fill")
    kernel = guest("load_ptx", at, len(FILL), at + 8192, 4)
    argv = encode_argv([WindowArg((1 << 32) - 4, 4), u32(1)])
    end = (1 << 32) - len(argv)
    huge.write(end, argv)
    assert guest("launch", kernel, 1, 1, 1, 1, 1, 1, 0, end, len(argv)) == 0
    assert guest.device.launched[0].args[0] == struct.pack("<Q", MEMORY_ADDRESS + (1 << 32) - 4)
    handle = guest.alloc(8)
    huge.write((1 << 32) - 8, b"abcdefgh")
    assert guest("memcpy_h2d", handle, 0, (1 << 32) - 8, 8) == 0
    assert guest("memcpy_d2h", 1 << 31, handle, 0, 8) == 0
    assert huge.read(1 << 31, 8) == b"abcdefgh"
    assert guest("memcpy_h2d", handle, 0, 0, 3 << 30) == -9
    assert guest("launch", kernel, 1, 1, 1, 1, 1, 1, 0, 0, 3 << 30) == -10
    guest("free", 99, 0)
    assert guest("last_error_copy", 3 << 30, 512) > 0
    assert guest("last_error_copy", (1 << 32) - 4, 4) == 4


def test_a_guest_without_memory_has_no_regions():
    guest = Guest()
    guest.call.memory_or_none = None
    assert guest("load_ptx", 0, 0, 0, 0) == -2
    assert guest("launch", 1, 1, 1, 1, 1, 1, 1, 0, 0, 0) == -2
    assert guest("memcpy_h2d", guest.alloc(8), 0, 0, 0) == -2
    assert guest("sync") == 0


@settings(max_examples=300)
@given(st.data())
def test_any_numbers_answer_a_documented_code_and_leave_the_guest_as_it_was(data):
    guest = Guest()
    buffer = guest.alloc(64)
    kernel = guest.load(FILL, b"fill")
    name = data.draw(st.sampled_from(DEVICE_FUNCTIONS))
    params = FUNCTIONS["0.2.0", name].params
    small = st.integers(0, 70)
    values = [data.draw(around(64) | st.just(kernel) if kind == "i64" else around(32) | small) for kind in params]
    answer = guest(name.removeprefix("wasi_cuda_"), *values)
    assert answer >= -11
    assert answer not in {-1, -7}
    assert guest.session.failure is None
    assert bool(guest.text) == (answer < 0)
    guest.session.close()
    assert guest.device.holds_nothing()
    assert guest.device.broken == []
    assert buffer == 1


@settings(max_examples=300)
@given(st.lists(records, max_size=4) | st.binary(max_size=64), st.integers(0, 3))
@pytest.mark.rule("5-owned")
def test_any_records_answer_a_code_or_reach_the_device_with_owned_addresses(args, cut):
    guest = Guest()
    guest.alloc(64)
    kernel = guest.load(FILL, b"fill")
    argv = args if isinstance(args, bytes) else encode_argv(args)
    argv = argv[: len(argv) - cut]
    at, length = guest.put(argv, 20000)
    answer = guest("launch", kernel, 1, 1, 1, 1, 1, 1, 0, at, length)
    assert answer in {0, -2, -5, -9, -10, -11}
    assert len(guest.device.launched) == (answer == 0)
    for launch in guest.device.launched:
        address = int.from_bytes(launch.args[0], "little")
        assert address % 4 == 0
        assert address == 0 or any(region.address <= address < region.end for region in launch.regions)
