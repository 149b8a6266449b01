"""A renewed session shows each guest what a new session would."""

from __future__ import annotations

import ctypes
import mmap
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.device import FakeDevice
from fakes.gate import Sitter
from strategies.kernels import FILL, NOTHING, with_global
from tensorwasm.errors import CapacityExhausted, DeviceLost, KernelFault, TensorWasmError
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow, Scalar
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.limits.accounts import Accounts
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import LOAD_ROWS, OFFER_ROWS, SessionLayout
from tensorwasm.gpu.resources.device_resources import MAX_PARKED, SessionPool
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import NEVER, Deadline, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
PAGES = 4


class World:
    """A device, and guest memory."""

    def __init__(self, limits=None, slots=None) -> None:
        self.device = FakeDevice(effects=True)
        self.gate = Gate(4)
        self.accounts = Accounts()
        self.shared = SharedDevice(self.device, self.accounts, self.gate)
        self.limits = limits
        self.pages = mmap.mmap(-1, PAGES << 16)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.memory = Region(self.address, PAGES << 16, host=True)

    @property
    def session_pool(self) -> SessionPool:
        return self.shared._resources.session_pool

    def open(self, layout=None, **options):
        layout = SessionLayout() if layout is None else layout
        return self.shared.open_session(limits=self.limits, memory_kind="staged", layout=layout, **options)

    def close(self) -> None:
        self.shared.close()
        assert self.device.holds_nothing()
        assert self.device.broken == []
        assert self.gate.in_use == 0


@pytest.fixture
def world():
    world = World()
    yield world
    world.close()


def load_native(session, row: int = 0) -> int:
    """Do what compiled code does with an offer."""
    layout = session.layout
    assert layout.budget
    kernel_id = layout.next_kernel
    layout.kernels[kernel_id % len(layout.kernels)].id = kernel_id
    layout.kernels[kernel_id % len(layout.kernels)].head = layout.offers[row].head
    layout.loaded[layout.loads] = row
    layout.loads += 1
    layout.loaded_bytes += layout.offers[row].text_bytes
    layout.next_kernel += 1
    layout.budget -= 1
    return kernel_id


def offered(session) -> list[bytes]:
    return [ctypes.string_at(row.text, row.text_bytes) for row in session.layout.offers if row.head]


def fill(world, session, kernel, value=7, offset=0) -> None:
    arguments = [HostWindow(world.address + offset, 4), Scalar(struct.pack("<I", value))]
    session.kernels.launch(kernel, ONE, lambda: arguments, world.memory, NEVER)


# ------------------------------------------------------------------------------------------------- programs

OPERATIONS = {
    "load": lambda world, session, seen: seen.kernels.append(session.kernels.load(FILL, "fill", NEVER)),
    "load nothing": lambda world, session, seen: session.kernels.load(NOTHING, "nothing", NEVER),
    "load private": lambda world, session, seen: session.kernels.load(with_global(64), "nothing", NEVER),
    "load badly": lambda world, session, seen: session.kernels.load(b"\0", "fill", NEVER),
    "load another": lambda world, session, seen: session.kernels.load(FILL, "other", NEVER),
    "launch": lambda world, session, seen: fill(world, session, seen.kernels[0]),
    "launch none": lambda world, session, seen: fill(world, session, 3),
    "unload": lambda world, session, seen: session.kernels.unload(seen.kernels.pop(), NEVER),
    "allocate": lambda world, session, seen: seen.add(session.buffers.allocate(64)),
    "allocate too much": lambda world, session, seen: session.buffers.allocate(1 << 40),
    "free": lambda world, session, seen: session.buffers.free(1, NEVER),
    "stream": lambda world, session, seen: seen.add(session.streams.open()),
    "close stream": lambda world, session, seen: session.streams.close(1, NEVER),
    "event": lambda world, session, seen: seen.add(session.events.open()),
    "close event": lambda world, session, seen: session.events.close(1),
    "record": lambda world, session, seen: session.events.record(1, 0),
    "begin graph": lambda world, session, seen: session.graphs.begin(0),
    "end graph": lambda world, session, seen: seen.add(session.graphs.end(0)),
    "submit": lambda world, session, seen: session.kernels.submit(
        seen.kernels[0], ONE, lambda: [BufferOffset(1, 0), Scalar(b"1234")], None, NEVER
    ),
    "synchronize": lambda world, session, seen: session.streams.synchronize(NEVER),
}
programs = st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=8)
plain = st.lists(st.sampled_from(["load", "load nothing", "launch", "load badly", "unload", "synchronize"]), max_size=6)


class Seen:
    """What a guest has seen; kernels by how far their ids are from the first."""

    def __init__(self) -> None:
        self.kernels: list[int] = []
        self.numbers: list[object] = []
        self.first = 0

    def add(self, number: object) -> None:
        self.numbers.append(number)


def run(world, session, program) -> list[object]:
    """Return everything that a guest sees of a session: numbers, errors, what its memory holds, the figures."""
    seen, found = Seen(), []
    world.pages[:] = bytes(len(world.pages))
    for name in program:
        try:
            before = len(seen.kernels)
            OPERATIONS[name](world, session, seen)
            if len(seen.kernels) > before:
                seen.first = seen.first or seen.kernels[-1]
                seen.add(seen.kernels[-1] - seen.first)
        except (TensorWasmError, IndexError) as error:
            text = str(error).replace(str(seen.kernels[0]), "K") if seen.kernels else str(error)
            found.append((type(error), text))
        found.append(session.statistics())
    return [*found, *seen.numbers, bytes(world.pages[:64]), session.failure]


@given(st.lists(programs | plain, min_size=1, max_size=4), programs)
@pytest.mark.rule("4-session")
def test_a_later_guest_sees_what_the_first_one_saw(earlier, program):
    world, other = World(), World()
    session = world.open()
    for before in earlier:
        run(world, session, before)
        if not session.renew():
            session.close()
            session = world.open()
    fresh = other.open()
    assert run(world, session, program) == run(other, fresh, program)
    for each, used in ((world, session), (other, fresh)):
        used.close()
        each.close()


@given(plain)
def test_the_layout_keeps_only_what_the_session_keeps(program):
    world = World()
    session = world.open()
    run(world, session, program)
    assert session.renew()
    layout = session.layout
    assert not any(row.id or row.head for row in layout.kernels)
    assert (
        layout.loads,
        layout.loaded_bytes,
        layout.pending,
        layout.staged,
        layout.stage_used,
        layout.reach_bytes,
    ) == (0,) * 6
    assert set(offered(session)) <= {FILL, NOTHING}
    assert layout.budget == (LOAD_ROWS if offered(session) else 0)
    if layout.stage_at:
        assert not any(ctypes.string_at(layout.stage_at, layout.stage_bytes))
    session.close()
    assert bytes(layout.offers) == bytes(ctypes.sizeof(layout.offers))
    world.close()


@pytest.mark.parametrize(
    "left",
    [
        ["allocate"],
        ["allocate", "free"],
        ["stream"],
        ["stream", "close stream"],
        ["event"],
        ["event", "close event"],
        ["begin graph"],
        ["begin graph", "end graph"],
        ["allocate", "load", "submit"],
    ],
)
@pytest.mark.rule("4-session")
def test_a_session_that_gave_out_a_number_is_not_renewed(world, left):
    session = world.open()
    run(world, session, left)
    assert not session.renew()
    session.close()


def test_a_poisoned_session_is_not_renewed(world):
    session = world.open()
    kernel = session.kernels.load(FILL, "fill", NEVER)
    world.device.failures["synchronize"] = KernelFault("a kernel broke a rule")
    with pytest.raises(KernelFault):
        fill(world, session, kernel)
    assert not session.renew()
    session.close()


def test_a_closed_session_is_not_renewed(world):
    session = world.open()
    session.close()
    assert not session.renew()


def test_each_guest_begins_with_a_permit_if_there_is_one_and_with_none_refused(world):
    session = world.open()
    kernel, others = session.kernels.load(FILL, "fill", NEVER), [Sitter() for _ in range(4)]
    for other in others:
        world.gate.enter(NEVER, other)
    with pytest.raises(CapacityExhausted):
        session.kernels.launch(kernel, ONE, list, None, Deadline.after(0.01))
    assert session.statistics().back_pressure_rejections == 1
    for other in others:
        world.gate.leave(other)
    assert session.renew()
    assert session.layout.placed
    session.kernels.load(FILL, "fill", NEVER)
    assert session.statistics().back_pressure_rejections == 0
    session.close()


# --------------------------------------------------------------------------------------------------- offers


def renewed(world, texts=((FILL, "fill"),)):
    session = world.open()
    for text, entry in texts:
        session.kernels.load(text, entry, NEVER)
    assert session.renew()
    return session


def test_kernels_loaded_by_compiled_code_belong_to_the_guest(world):
    session = renewed(world)
    loads = world.device.calls.count("load")
    kernel = load_native(session)
    assert session.statistics().kernels == 1
    assert session.statistics().ptx_bytes == len(FILL)
    fill(world, session, kernel, 9)
    assert world.pages[:4] == struct.pack("<I", 9)
    assert session.kernels.load(FILL, "fill", NEVER) == kernel + 1
    assert session.statistics().kernels == 2
    session.kernels.unload(kernel, NEVER)
    assert session.statistics() == session.statistics()._replace(kernels=1, ptx_bytes=len(FILL))
    assert world.device.calls.count("load") == loads
    session.close()


def test_the_budget_is_within_the_limit_of_kernels():
    world = World(SessionLimits(kernels=3))
    session = renewed(world)
    assert session.layout.budget == 3
    load_native(session)
    session.kernels.load(FILL, "fill", NEVER)
    assert session.layout.budget == 1
    session.close()
    world.close()


def test_the_budget_is_within_the_limit_of_text():
    world = World(SessionLimits(total_ptx_bytes=2 * len(FILL) + 1))
    session = renewed(world)
    assert session.layout.budget == 2
    session.close()
    world.close()


@pytest.mark.rule("4-variables")
def test_a_kernel_with_variables_is_not_offered(world):
    session = renewed(world, [(with_global(64), "nothing")])
    assert offered(session) == []
    assert session.layout.budget == 0
    session.close()


def test_the_oldest_offer_makes_room(world):
    texts = [(FILL + b"\n" * count, "fill") for count in range(OFFER_ROWS + 2)]
    session = renewed(world, texts)
    assert len(offered(session)) == OFFER_ROWS
    assert FILL not in offered(session)
    assert world.shared._resources.kernels.held == OFFER_ROWS
    session.close()
    assert world.shared._resources.kernels.held == 0


def test_ids_begin_elsewhere_each_time(world):
    session = world.open()
    starts = []
    for _ in range(8):
        starts.append(session.kernels.load(FILL, "fill", NEVER))
        assert session.renew()
    assert len({start >> 16 for start in starts}) == 8
    assert all(start & 0xFFFF == 1 for start in starts)
    session.close()


# -------------------------------------------------------------------------------------------------- parking


def test_a_pooled_session_is_taken_by_one_caller(world):
    session = renewed(world)
    session.park()
    assert len(world.session_pool) == 1
    assert session.resume()
    assert not session.resume()
    session.close()


def test_a_full_pool_closes_its_first_session(world):
    sessions = [renewed(world) for _ in range(MAX_PARKED + 2)]
    for session in sessions:
        session.park()
    assert [session.resume() for session in sessions] == [False] * 2 + [True] * MAX_PARKED
    for session in sessions:
        session.close()


def test_the_device_closes_pooled_sessions_and_those_put_later(world):
    early, late = renewed(world), world.shared.open_session(memory_kind="pinned", layout=SessionLayout())
    early.park()
    world.shared.close()
    late.park()
    for session in (early, late):
        assert not session.resume()
        with pytest.raises(DeviceLost):
            session.buffers.allocate(1)


def test_a_tenant_that_has_gone_is_not_served(world):
    world.accounts.register("acme", 1 << 20)
    session = world.open(tenant="acme")
    session.kernels.load(FILL, "fill", NEVER)
    assert session.renew()
    session.park()
    world.accounts.unregister("acme")
    assert not session.resume()
    session.close()


def test_a_pooled_session_gives_up_its_slot_when_one_is_needed(world):
    ring = world.shared._resources.ring
    parked = [renewed(world) for _ in range(MAX_PARKED)]
    for session in parked:
        session.park()
    taken = [ring.take("default") for _ in range(ring.idle)]
    session = world.open()
    fill(world, session, session.kernels.load(FILL, "fill", NEVER))
    assert len(world.session_pool) == MAX_PARKED - 1
    session.close()
    for slot in taken:
        ring.give(slot)
