"""Guarded sessions with more than 4 GiB: windows of other sizes, and kernels that stay in them."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from conformance.puppet import Puppet
from conformance.test_guarded_sessions import ASTRAY, COLLECT, COUNTER, SECRET, SOIL, launch, number, read, word
from fakes.argv import encode_argv
from fakes.emulation import kernel
from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.device.address_windows import SLACK_BYTES
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.limits import GIB, SessionLimits
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.guest.imports.argv import NumberArg
from tensorwasm.values import MIB, NEVER, LaunchConfig

LIMITS = SessionLimits(device_bytes=64 * GIB, allocation_bytes=8 * GIB)
CAPS = {"small": 64 * MIB, "four": 4 * GIB, "five": 5 * GIB - 16 * MIB, "eight": 8 * GIB, "large": 40 * GIB}
WINDOWS = {"small": 4 * GIB, "four": 4 * GIB, "five": 8 * GIB, "eight": 16 * GIB, "large": 64 * GIB}
STEP = 64 * MIB
TOUCH = kernel(
    f"""ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u64 %rd3, 0;
    NEXT: add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd3, 7; st.global.u64 [%rd4+8], %rd5;
    atom.global.add.u64 %rd6, [%rd4+8], 1; add.u64 %rd3, %rd3, {STEP}; setp.lt.u64 %p1, %rd3, %rd2; @%p1 bra NEXT;""",
    params=2,
).encode()
"""Writes to each 64 MiB of its buffer, whose size is its second parameter, what the place's offset is and 8."""


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """A device with memory for large buffers: pages of the emulator's that nothing is written to take none."""
    if request.param == "cuda":
        chosen = request.getfixturevalue("gpu")
        if chosen.info.memory_bytes < 16 * GIB:
            pytest.skip("A GPU WITH LITTLE MEMORY: these tests need 16 GiB")
    else:
        chosen = EmulatorDevice(memory_bytes=16 * GIB)
    before = chosen.statistics()
    yield chosen
    assert replace(chosen.statistics(), launches=0) == replace(before, launches=0), "something was left on the device"
    if request.param == "emulator":
        chosen.close()


@pytest.fixture
def accounts():
    accounts = Accounts(MemoryLedger())
    for tenant, cap_bytes in CAPS.items():
        accounts.register(tenant, cap_bytes, 64 * MIB)
    return accounts


@pytest.fixture
def shared(device, accounts):
    if not device.windows.available:
        pytest.skip("this device has no windows of addresses")
    with SharedDevice(device, accounts, Gate(8), guarded=True, limits=LIMITS) as shared:
        yield shared


@pytest.mark.parametrize("tenant", CAPS)
def test_a_window_is_as_large_as_the_cap_needs(shared, tenant):
    with shared.open_session(tenant) as session:
        window = session._core.window
        assert window.size_bytes == WINDOWS[tenant]
        assert window.address % window.size_bytes == 0
        assert window.width == ("narrow" if tenant in {"small", "four"} else "wide")
        own = session.buffers.allocate(64)
        launch(session, COUNTER, [BufferOffset(own, 0)])
        assert word(session, own) == 42
        (held,) = session._core.table.kernels.values()
        assert held.shared.guarded.verified.width == window.width
        assert 0 < held.data.address - window.address < 4 * GIB


def test_limits_of_the_session_decide_where_they_are_less(shared):
    with shared.open_session("large", SessionLimits()) as session:
        assert session._core.window.size_bytes == 4 * GIB


def test_a_session_uses_more_than_4_gib(shared):
    with shared.open_session("eight") as session:
        sizes = (5 * GIB, 2 * GIB + 512 * MIB, 256 * MIB)
        handles = [session.buffers.allocate(size_bytes) for size_bytes in sizes]
        places = [session._core.table.buffers[handle].address for handle in handles]
        assert any(at // (4 * GIB) != places[0] // (4 * GIB) for at in [*places, places[0] + 5 * GIB - 1])
        for handle, size_bytes in zip(handles, sizes, strict=True):
            launch(session, TOUCH, [BufferOffset(handle, 0), number(size_bytes)])
        into = bytearray(16)
        for handle, size_bytes in zip(handles, sizes, strict=True):
            for at in range(0, size_bytes, STEP):
                session.buffers.read(handle, memoryview(into), NEVER, at)
                assert struct.unpack("<QQ", into) == (0, at + 8)
        with pytest.raises(QuotaExceeded):
            session.buffers.allocate(512 * MIB)


def test_a_wide_kernel_leaves_its_window_nowhere(shared):
    with shared.open_session("eight") as victim, shared.open_session("five") as attacker:
        secret, own = victim.buffers.allocate(len(SECRET)), attacker.buffers.allocate(4096)
        victim.buffers.write(secret, SECRET, NEVER)
        theirs, window = victim._core.table.buffers[secret].address, attacker._core.window
        base, size, wild = window.address, window.size_bytes, random.Random(1)
        ends = [
            base - 8,
            base - SLACK_BYTES - 32,
            base + size,
            base + size + SLACK_BYTES - 8,
            base + size + SLACK_BYTES,
        ]
        others = [base - size, base + 2 * size, victim._core.window.address, victim._core.window.address - 8]
        words = [victim._core.window.stop.flag_at, window.stop.flag_at, window.stop.status_at, 0, 8]
        high = [theirs | 1 << bit for bit in range(40, 64)] + [(base + size // 2) ^ 1 << bit for bit in range(33, 64)]
        seen, places = set(), [theirs, theirs + 8, *ends, *others, *words, *high]
        for place in (*places, *(wild.getrandbits(64) for _ in range(64))):
            attacker.buffers.write(own, struct.pack("<QQ", 0, place), NEVER)
            launch(attacker, ASTRAY, [BufferOffset(own, 0)])
            seen.add(word(attacker, own))
        assert read(victim, secret, len(SECRET)) == SECRET
        assert not seen & set(struct.unpack("<64Q", SECRET))
        assert victim._core.window.stop.status == window.stop.status == 0


@pytest.mark.parametrize("step", [8, 4096, 2 * MIB - 8, 5 << 20, (1 << 32) + 8])
def test_a_wide_window_shows_its_next_session_nothing(shared, step):
    for tenant in ("eight", "eight", "small", "eight"):
        with shared.open_session(tenant) as session:
            own = session.buffers.allocate(64)
            launch(session, COLLECT, [BufferOffset(own, 0), number(step)])
            assert word(session, own) == 0
            launch(session, SOIL, [BufferOffset(own, 0), number(step)])
    assert shared._resources.windows.idle == 2


def test_a_tenant_whose_cap_grows_has_a_larger_window_then(shared, accounts):
    session = shared.open_session("small")
    assert session.renew()
    session.park()
    accounts.register("small", 8 * GIB)
    assert not session.resume()
    session.close()
    with shared.open_session("small") as session:
        assert session._core.window.size_bytes == 16 * GIB


def test_compiled_code_says_how_large_the_window_is(device, compiled):
    limits = SessionLimits(device_bytes=12 * GIB, allocation_bytes=5 * GIB)
    with Puppet(device, compiled=compiled, guarded=True, session_limits=limits) as puppet:
        assert puppet.session._core.window.size_bytes == 16 * GIB
        counter, touch = puppet.load(COUNTER, b"k"), puppet.load(TOUCH, b"k")
        first, large = (puppet.session.buffers.allocate(size_bytes) for size_bytes in (64, 5 * GIB))
        one = LaunchConfig((1, 1, 1), (1, 1, 1))
        argv = encode_argv([BufferOffset(large, 0), NumberArg("u64", struct.pack("<Q", 5 * GIB))])
        assert puppet.start(touch, argv, one.grid, one.block) == 0, puppet.error()
        assert puppet.start(counter, encode_argv([BufferOffset(first, 0)]), one.grid, one.block) == 0, puppet.error()
        assert word(puppet.session, first) == 42
        into = bytearray(8)
        for at in range(0, 5 * GIB, STEP):
            puppet.session.buffers.read(large, memoryview(into), NEVER, at + 8)
            assert int.from_bytes(into, "little") == at + 8
