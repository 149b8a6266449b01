"""Memory of the kind ``auto`` is staged until that has cost as much as registering it."""

import ctypes
import mmap
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.device import FakeDevice
from strategies.kernels import FILL
from tensorwasm.errors import CallerError, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.arguments import HostWindow, Scalar
from tensorwasm.gpu.device.limits import PIN_PRICE_BYTES, STAGE_SLOT_BYTES
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import NEVER, WASM_PAGE_BYTES, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
MOST = 16 * WASM_PAGE_BYTES


class World:
    """A guest's memory, and a session that has a kernel."""

    def __init__(self, pinned_bytes=MOST, layout=None, kind="auto"):
        self.device = FakeDevice(effects=True)
        self.accounts = Accounts(MemoryLedger())
        self.accounts.register("tenant", 1 << 20, pinned_bytes)
        self.shared = SharedDevice(self.device, self.accounts, Gate(4))
        self.pages = mmap.mmap(-1, MOST)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.size = MOST // 2
        self.session = self.shared.open_session("tenant", memory_kind=kind, layout=layout)
        self.kernel = self.session.kernels.load(FILL, "fill", NEVER)

    def launch(self, *arguments):
        memory = Region(self.address, self.size, host=True)
        self.session.kernels.launch(self.kernel, ONE, lambda: arguments, memory, NEVER)

    def fill(self, length, value=5):
        self.launch(HostWindow(self.address, length), Scalar(struct.pack("<I", value)))
        assert struct.unpack("<I", self.pages[:4]) == (value,)

    def pay(self, total):
        """Stage that many bytes, launch by launch; return how many are registered then."""
        while total:
            part = min(total, STAGE_SLOT_BYTES)
            self.fill(part, total)
            total -= part
        return self.pinned

    @property
    def pinned(self):
        return self.session.statistics().pinned_bytes

    @property
    def left(self):
        return self.session._core.layout.stage_left

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()
        self.shared.close()
        assert self.device.broken == []
        assert self.device.holds_nothing()


lengths = st.integers(4, STAGE_SLOT_BYTES) | st.sampled_from([STAGE_SLOT_BYTES, STAGE_SLOT_BYTES + 1])
steps = st.tuples(st.integers(0, 3), lengths, st.integers(1, 7))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.lists(steps, min_size=1, max_size=6))
@example(4, [(0, STAGE_SLOT_BYTES, 5), (1, WASM_PAGE_BYTES, 1), (0, 4, 1)])
@example(8, [(0, STAGE_SLOT_BYTES, 6), (0, 4, 1), (1, 4, 1)])
def test_memory_is_registered_when_the_rent_would_pass_the_price(pages, program):
    with World() as world:
        world.size, staged, bought = pages * WASM_PAGE_BYTES, 0, False
        for grown, asked, times in program:
            world.size = min(world.size + grown * WASM_PAGE_BYTES, MOST)
            length = min(asked, world.size)
            for _ in range(times):
                rented = length <= STAGE_SLOT_BYTES and staged + length <= world.size // 2 + PIN_PRICE_BYTES
                bought = bought or not rented
                staged += 0 if bought else length
                world.fill(length)
                assert world.pinned == (world.size if bought else 0)
                assert world.left == (0 if bought else world.size // 2 + PIN_PRICE_BYTES - staged)


def test_the_next_guest_of_a_session_has_paid_nothing():
    layout = SessionLayout()
    with World(layout=layout) as world:
        assert layout.stage_left == PIN_PRICE_BYTES
        for _ in range(2):
            assert world.pay(world.size // 2 + PIN_PRICE_BYTES) == 0
            assert layout.stage_left == 0
            assert world.session.renew()
            assert layout.stage_left == PIN_PRICE_BYTES
            layout.stage_left, layout.stage_used = 100, 7  # as compiled code leaves it, of which no Python hears
            assert world.session.renew()
            assert (layout.stage_left, layout.stage_used) == (PIN_PRICE_BYTES, 0)
            world.kernel = world.session.kernels.load(FILL, "fill", NEVER)


@pytest.mark.parametrize("refused", ["cap", "device"])
def test_memory_that_cannot_be_registered_is_staged_and_tried_again_at_the_price(refused):
    with World(0 if refused == "cap" else MOST) as world:
        price = world.size // 2 + PIN_PRICE_BYTES
        world.pay(price)
        for _ in range(2):
            if refused == "device":
                world.device.failures["register"] = LaunchRefused("no such memory")
            world.fill(8)
            assert world.left == PIN_PRICE_BYTES - 8
            assert world.pay(price - 8) == world.left == 0
        world.device.failures.clear()
        world.accounts.register("tenant", 1 << 20, MOST)
        assert world.pay(4) == world.size
        assert world.session.statistics().quota_refusals == 0


def test_memory_that_has_outgrown_the_cap_is_staged():
    with World(MOST // 2) as world:
        world.pay(world.size // 2 + PIN_PRICE_BYTES + 4)
        before, world.size = world.session.statistics(), MOST
        world.fill(4)
        assert world.pinned == before.pinned_bytes == MOST // 2
        assert world.session.statistics().staged_launches == before.staged_launches + 1
        assert world.left == 0
        with pytest.raises(QuotaExceeded):
            world.fill(STAGE_SLOT_BYTES + 1)


def test_a_launch_that_is_refused_has_staged_nothing():
    with World() as world:
        with pytest.raises(CallerError):
            world.launch(HostWindow(world.address, 8))
        assert world.left == PIN_PRICE_BYTES + world.size // 2


@pytest.mark.parametrize(("kind", "pinned"), [("staged", 0), ("pinned", MOST // 2)])
def test_other_kinds_have_no_account(kind, pinned):
    with World(kind=kind) as world:
        assert world.pay(4) == pinned
        assert world.pay(world.size // 2 + PIN_PRICE_BYTES + 4) == pinned
