"""What a crowd of guests of guarded kernels has pending together is gone soon after its deadline."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from wasmtime import wat2wasm

from fakes.emulation import kernel
from tensorwasm.errors import CapacityExhausted, InvokeTimeout
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.limits import GUARDED_PIECES
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.limits.queue_credits import LENT_LUMPS, LUMP_PIECES, PIECES
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.gpu.state.numbered import StreamTable
from tensorwasm.runtime import Runtime
from tensorwasm.server.serving import SWITCH_S
from tensorwasm.values import MIB, NEVER, Deadline, LaunchConfig, Limits

CROWD = 24
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
LARGE = LaunchConfig((1 << 20, 1, 1), (1024, 1, 1))
FEW = LaunchConfig((64, 1, 1), (1, 1, 1))
"""For the emulator, which is slow."""
GRAPH_LAUNCHES = 2500
"""More than a session may borrow."""
LATE_S = 0.5
"""Half of what the end of a session waits before the device counts as lost. Other tests may use the GPU meanwhile."""
NUMBER = kernel("ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], 7;").encode()


class Member:
    """A session that starts work without waiting for any of it, on a thread of its own."""

    def __init__(self, session):
        self.session, self.lost = session, False
        self._kernel, buffer = session.kernels.load(NUMBER, "k", NEVER), session.buffers.allocate(64)
        self._arguments = lambda: [BufferOffset(buffer, 0)]
        self._graph = 0

    def launch(self, deadline, config=ONE):
        self.session.kernels.submit(self._kernel, config, self._arguments, None, deadline)

    def blocks(self, deadline):
        self.launch(deadline, LARGE if self.session.info.kind != "emulator" else FEW)

    def replay(self, deadline):
        self.session.graphs.replay(self._graph, None, deadline)

    def record(self, launches=GRAPH_LAUNCHES):
        self.session.graphs.begin(0)
        for _ in range(launches):
            self.launch(NEVER)
        self._graph = self.session.graphs.end(0)

    def flood(self, kind, begin, deadline):
        begin.wait()
        with suppress(InvokeTimeout, CapacityExhausted):
            while not deadline().expired():
                getattr(self, kind)(deadline())
        self.session.close()


@pytest.fixture
def shared(device):
    if not device.windows.available:
        pytest.skip("this device has no windows of addresses")
    accounts = Accounts(MemoryLedger())
    for tenant in ("crowd", "neighbour"):
        accounts.register(tenant, 64 * MIB, 64 * MIB)
    with SharedDevice(device, accounts, Gate(2 * CROWD), guarded=True) as shared:
        yield shared


@pytest.fixture
def _service_switches():
    """Have threads hand the interpreter on as in the service: on many cores 24 of them would wait 5 ms each time."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("_service_switches")
@pytest.mark.parametrize("kind", ["launch", "replay", "blocks"])
def test_a_crowd_of_sessions_on_threads(device, shared, kind):
    members, neighbour = [Member(shared.open_session("crowd")) for _ in range(CROWD)], shared.open_session("neighbour")
    for member in members:
        member.launch(NEVER)
        if kind == "replay":
            member.record()
        member.session.streams.synchronize(NEVER)
    begin, due = threading.Barrier(CROWD + 1, timeout=60), NEVER
    threads = [
        threading.Thread(target=member.flood, args=(kind, begin, lambda: due), daemon=True) for member in members
    ]
    for thread in threads:
        thread.start()
    small = Member(neighbour)
    due = Deadline.after(0.5)
    begin.wait()
    most, longest_ns = 0, 0
    while any(thread.is_alive() for thread in threads):
        began_ns = time.monotonic_ns()
        small.launch(Deadline.after(100))
        neighbour.streams.synchronize(NEVER)
        longest_ns = max(longest_ns, time.monotonic_ns() - began_ns)
        most = max(most, sum(each.session._core.layout.pending for each in members if each.session.permit.runs()))
    late_s = (time.monotonic_ns() - due.at_ns) / 1e9
    neighbour.close()
    # Twice, since the members are asked one after the other: what one has may have ended, and another have begun.
    assert most <= 2 * (CROWD * PIECES + LENT_LUMPS // 2 * LUMP_PIECES + GUARDED_PIECES)
    assert sum(member.session.statistics().kernels_launched for member in members) > CROWD
    assert not [member for member in members if member.session.abandoned]
    if device.info.kind != "emulator":
        assert late_s < LATE_S
        assert longest_ns < LATE_S * 1e9


@pytest.mark.parametrize("launches", [GRAPH_LAUNCHES, 1000])
def test_what_the_device_does_not_have_yet_does_not_count_as_ended(shared, monkeypatch, launches):
    first, second = (Member(shared.open_session("crowd")) for _ in range(2))
    first.record(launches)
    second.session.streams.synchronize(NEVER)
    counting, seen = StreamTable.counting, []

    @contextmanager
    def counting_while_another_asks(table, stream, pieces):
        with counting(table, stream, pieces):
            lumps = first.session.credits.lumps
            seen.append(second.session.credits.take(GUARDED_PIECES))
            second.session.credits.given()
            assert first.session.credits.lumps == lumps
            yield

    monkeypatch.setattr(StreamTable, "counting", counting_while_another_asks)
    first.replay(NEVER)
    assert seen == [launches < GRAPH_LAUNCHES], "what is small needs no place of its own"
    for member in (first, second):
        member.session.streams.synchronize(NEVER)
        member.session.close()


# --------------------------------------------------------------------------------------------- on fibers

LAUNCH = "(param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32)"


def data(at, text):
    return f'(data (i32.const {at}) "{"".join(f"{chr(92)}{byte:02x}" for byte in text)}")'


EMPTY = kernel("ret;", params=0).encode()
GUEST = bytes(
    wat2wasm(f"""(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_launch_async" (func $start {LAUNCH}))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_begin" (func $record (param i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_end" (func $recorded (param i64) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_launch" (func $replay (param i64 i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_sync" (func $sync (result i32)))
  (memory (export "memory") 1)
  {data(0, b"k")} {data(1024, EMPTY)}
  (func $kernel (result i64)
    (call $load (i32.const 1024) (i32.const {len(EMPTY)}) (i32.const 0) (i32.const 1)))
  (func $begin (param $kernel i64) (param $blocks i32) (param $threads i32) (result i32)
    (call $start (local.get $kernel) (local.get $blocks) (i32.const 1) (i32.const 1) (local.get $threads) (i32.const 1)
      (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0)))
  (func (export "flood") (param $blocks i32) (param $threads i32) (result i32) (local $kernel i64) (local $failed i32)
    (local.set $kernel (call $kernel))
    (loop $again
      (local.set $failed (call $begin (local.get $kernel) (local.get $blocks) (local.get $threads)))
      (br_if $again (i32.eqz (local.get $failed))))
    (local.get $failed))
  (func (export "replays") (param $launches i32) (result i32) (local $kernel i64) (local $graph i64) (local $failed i32)
    (local.set $kernel (call $kernel))
    (drop (call $record (i64.const 0)))
    (loop $more
      (drop (call $begin (local.get $kernel) (i32.const 1) (i32.const 1)))
      (local.set $launches (i32.sub (local.get $launches) (i32.const 1)))
      (br_if $more (local.get $launches)))
    (local.set $graph (call $recorded (i64.const 0)))
    (loop $again
      (local.set $failed (call $replay (local.get $graph) (i64.const 0)))
      (br_if $again (i32.eqz (local.get $failed))))
    (local.get $failed))
  (func (export "little") (result i32)
    (i32.or (call $begin (call $kernel) (i32.const 1) (i32.const 1)) (call $sync))))""")
)


@pytest.mark.parametrize("kind", ["launch", "replay", "blocks"])
def test_a_crowd_of_calls(device, kind):
    real = device.info.kind != "emulator"
    config = {"launch": ONE, "replay": ONE, "blocks": LARGE if real else FEW}[kind]
    name, args = ("replays", (GRAPH_LAUNCHES,)) if kind == "replay" else ("flood", (config.grid[0], config.block[0]))
    if not device.windows.available:
        pytest.skip("this device has no windows of addresses")
    wall_s = 1.5
    with Runtime(
        "cuda" if real else "emulator", isolation="guarded", limits=Limits(wall_s=wall_s), slots=2 * CROWD
    ) as runtime:
        crowd, neighbour = runtime.load(GUEST), runtime.load(GUEST)
        assert neighbour.submit("little", grants=("cuda",)).result(100).values == (0,)
        calls = [crowd.submit(name, args, grants=("cuda",)) for _ in range(CROWD)]
        due_ns, longest_ns = time.monotonic_ns() + int(wall_s * 1e9), 0
        while not all(call.done() for call in calls):
            began_ns = time.monotonic_ns()
            with suppress(InvokeTimeout):  # the emulator is slow
                assert neighbour.submit("little", grants=("cuda",)).result(100).values == (0,)
            longest_ns = max(longest_ns, time.monotonic_ns() - began_ns)
        late_s = (time.monotonic_ns() - due_ns) / 1e9
        for call in calls:
            with suppress(InvokeTimeout, CapacityExhausted):
                assert call.result(1).values[0] < 0
        assert neighbour.submit("little", grants=("cuda",)).result(100).values == (0,)
    if real:
        assert late_s < LATE_S
