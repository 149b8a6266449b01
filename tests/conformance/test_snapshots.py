"""Live instances with a GPU: stopped anywhere, saved, restored in another runtime, and compared to the bit."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from conformance.rig import PTX
from conformance.work import u64
from fakes.argv import encode_argv
from strategies.kernels import NAP
from tensorwasm.artifacts.keys import HmacKey, KeyRing
from tensorwasm.errors import GuestTrap, InvokeTimeout, NotCapturable, QuotaExceeded
from tensorwasm.gpu.device.arguments import BufferOffset as Buffer
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.saved import SavedInstance
from tensorwasm.values import MIB, Deadline, Limits

CUDA = "wasi:cuda/host@0.3.0"
ARGV_AT, PTX_AT, WORDS_AT = 1024, 4096, 32_768
ENTRY_AT = PTX_AT + len(PTX)
NAP_AT = ENTRY_AT + 8
FUNCTIONS = {
    "wasi_cuda_load_ptx": ("i32 i32 i32 i32", "i64"),
    "wasi_cuda_unload": ("i64", "i32"),
    "wasi_cuda_launch": ("i64 i32 i32 i32 i32 i32 i32 i32 i32 i32", "i32"),
    "wasi_cuda_launch_async": ("i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64", "i32"),
    "wasi_cuda_sync": ("", "i32"),
    "wasi_cuda_alloc": ("i32 i32", "i64"),
    "wasi_cuda_free": ("i32 i32", "i32"),
    "wasi_cuda_memcpy_h2d": ("i32 i32 i32 i32", "i32"),
    "wasi_cuda_memcpy_d2h": ("i32 i32 i32 i32", "i32"),
    "wasi_cuda_stream_create": ("", "i64"),
    "wasi_cuda_stream_destroy": ("i64", "i32"),
}


def guest() -> bytes:
    """A guest that passes calls on to the host, and has some state of its own."""
    imports, wrappers = [], []
    for name, (params, result) in FUNCTIONS.items():
        given = f"(param {params})" if params else ""
        gets = " ".join(f"(local.get {index})" for index in range(len(params.split())))
        imports.append(f'(import "{CUDA}" "{name}" (func ${name} {given} (result {result})))')
        wrappers.append(f'(func (export "{name}") {given} (result {result}) (call ${name} {gets}))')
    text = (PTX.encode() + b"mixawait" + NAP).hex()
    escaped = "".join(f"\\{text[at : at + 2]}" for at in range(0, len(text), 2))
    return bytes(
        wat2wasm(f"""(module {" ".join(imports)}
          (memory (export "memory") 2 8)
          (global $count (mut i64) (i64.const 0))
          (data (i32.const {PTX_AT}) "{escaped}")
          {" ".join(wrappers)}
          (func (export "store") (param i32 i64) (i64.store (local.get 0) (local.get 1)))
          (func (export "load") (param i32) (result i64)
            (global.set $count (i64.add (global.get $count) (i64.const 1)))
            (i64.xor (global.get $count) (i64.load (local.get 0))))
          (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))""")
    )


GUEST = guest()
RING = KeyRing.of(HmacKey(b"k" * 32))
LIMITS = Limits(memory_bytes=4 * MIB)


@pytest.fixture(scope="module")
def runtime(device):
    with Runtime(device=device.info.kind, limits=LIMITS, gpu_bytes=16 * MIB) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def elsewhere(device):
    with Runtime(device=device.info.kind, limits=LIMITS, gpu_bytes=16 * MIB) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def function(runtime):
    return runtime.load(GUEST, "gpu")


@pytest.fixture(scope="module")
def twin(elsewhere):
    return elsewhere.load(GUEST, "gpu")


handles = st.integers(1, 5)
words = st.integers(0, 15).map(lambda word: 4 * word)
places = st.integers(0, 40).map(lambda word: WORDS_AT + 4 * word)
pointers = st.one_of(st.builds(Buffer, handles, words), st.builds(WindowArg, places, st.just(4)))
factors = st.integers(0, (1 << 32) - 1)
steps = st.one_of(
    st.tuples(st.just("load_ptx")),
    st.tuples(st.just("unload"), st.integers(0, 2)),
    st.tuples(st.just("alloc"), st.sampled_from([64, 4096, 10_000, 300_000])),
    st.tuples(st.just("free"), handles),
    st.tuples(st.just("h2d"), handles, places, st.sampled_from([4, 64, 300])),
    st.tuples(st.just("d2h"), places, handles, st.sampled_from([4, 64, 300])),
    st.tuples(st.just("launch"), st.integers(0, 2), pointers, pointers, factors),
    st.tuples(st.just("launch_async"), st.integers(0, 2), pointers, pointers, factors, st.integers(0, 3)),
    st.tuples(st.just("stream_create")),
    st.tuples(st.just("stream_destroy"), st.integers(1, 3)),
    st.tuples(st.just("store"), places, st.integers(0, (1 << 64) - 1)),
    st.tuples(st.just("load"), places),
    st.tuples(st.just("grow"), st.integers(0, 2)),
)


class Player:
    """Makes the same calls to an instance as to its twin; kernels have the ids that they were given."""

    def __init__(self, live: LiveInstance, kernels: tuple[int, ...] = ()) -> None:
        self.live = live
        self.kernels = list(kernels)

    def play(self, name: str, *args: object) -> object:
        try:
            return getattr(self, name)(*args)
        except GuestTrap as trap:
            return trap.trap

    def call(self, name: str, *args: object) -> int | float | None:
        values = self.live.call(name, args).values
        return values[0] if values else None

    def kernel(self, index: int) -> int:
        return self.kernels[index] if index < len(self.kernels) else 12345

    def load_ptx(self) -> object:
        answer = self.call("wasi_cuda_load_ptx", PTX_AT, len(PTX), ENTRY_AT, 3)
        self.kernels.append(answer)
        return answer > 0

    def unload(self, index: int) -> object:
        return self.call("wasi_cuda_unload", self.kernel(index))

    def alloc(self, size: int) -> object:
        return self.call("wasi_cuda_alloc", size, 0)

    def free(self, handle: int) -> object:
        return self.call("wasi_cuda_free", handle, 0)

    def h2d(self, handle: int, source: int, length: int) -> object:
        return self.call("wasi_cuda_memcpy_h2d", handle, 0, source, length)

    def d2h(self, to: int, handle: int, length: int) -> object:
        return self.call("wasi_cuda_memcpy_d2h", to, handle, 0, length)

    def put(self, *args: object) -> int:
        argv = encode_argv(args)
        for at in range(0, len(argv), 8):
            self.call("store", ARGV_AT + at, int.from_bytes(argv[at : at + 8].ljust(8, b"\0"), "little"))
        return len(argv)

    def launch(self, index: int, to: object, source: object, factor: int) -> object:
        size = self.put(to, source, NumberArg("u32", struct.pack("<I", factor)))
        return self.call("wasi_cuda_launch", self.kernel(index), 1, 1, 1, 1, 1, 1, 0, ARGV_AT, size)

    def launch_async(self, index: int, to: object, source: object, factor: int, stream: int) -> object:
        size = self.put(to, source, NumberArg("u32", struct.pack("<I", factor)))
        return self.call("wasi_cuda_launch_async", self.kernel(index), 1, 1, 1, 1, 1, 1, 0, ARGV_AT, size, stream)

    def stream_create(self) -> object:
        return self.call("wasi_cuda_stream_create")

    def stream_destroy(self, stream: int) -> object:
        return self.call("wasi_cuda_stream_destroy", stream)

    def store(self, place: int, bits: int) -> object:
        return self.call("store", place, bits)

    def load(self, place: int) -> object:
        return self.call("load", place)

    def grow(self, pages: int) -> object:
        return self.call("grow", pages)


def plain(saved: SavedInstance) -> object:
    """Return what is saved, in bytes of their own."""
    memory = bytearray(saved.memories[0].size_bytes)
    for run in saved.memories[0].runs:
        memory[run.offset_bytes : run.offset_bytes + len(run.data)] = run.data
    session = saved.session
    buffers = []
    for buffer in session.buffers:
        data = bytearray(buffer.size_bytes)
        for run in buffer.runs:
            data[run.offset_bytes : run.offset_bytes + len(run.data)] = run.data
        buffers.append((buffer.handle, bytes(data)))
    numbers = session.kernels, session.streams, session.events, session.next_numbers
    return bytes(memory), saved.globals, buffers, numbers


def state(live: LiveInstance) -> object:
    with live.captured() as saved:
        return plain(saved)


@pytest.mark.rule("7-handles")
@settings(max_examples=25, deadline=None)
@given(before=st.lists(steps, max_size=25), after=st.lists(steps, max_size=12))
def test_an_instance_goes_on_in_another_runtime(runtime, elsewhere, function, twin, tmp_path_factory, before, after):
    path = tmp_path_factory.mktemp("snapshots") / "gpu.tws"
    with function.open(grants=["cuda"]) as live:
        player = Player(live)
        for name, *args in [("load_ptx",), ("alloc", 64), *before]:
            player.play(name, *args)
        runtime.snapshot(live, path, keys=RING)
        with elsewhere.restore(path, twin, grants=["cuda"], keys=RING) as restored:
            assert state(restored) == state(live)
            other = Player(restored, tuple(player.kernels))
            for name, *args in after:
                assert other.play(name, *args) == player.play(name, *args), name
            assert state(restored) == state(live)
            assert restored.statistics().gpu.device_bytes == live.statistics().gpu.device_bytes
    assert {each.device_bytes for each in runtime.accounts.statistics()} == {0}
    assert {each.device_bytes for each in elsewhere.accounts.statistics()} == {0}


def random_step(source: random.Random) -> tuple[object, ...]:
    """One step, without Hypothesis: a program of a thousand is too long to shrink."""

    def pointer() -> object:
        if source.random() < 0.6:
            return Buffer(source.randint(1, 5), 4 * source.randint(0, 15))
        return WindowArg(WORDS_AT + 4 * source.randint(0, 40), 4)

    place = WORDS_AT + 4 * source.randint(0, 40)
    return source.choice(
        [
            ("load_ptx",),
            ("alloc", source.choice([64, 4096, 10_000])),
            ("free", source.randint(1, 200)),
            ("h2d", source.randint(1, 200), place, 64),
            ("d2h", place, source.randint(1, 200), 64),
            ("launch", source.randint(0, 3), pointer(), pointer(), source.getrandbits(32)),
            ("launch_async", source.randint(0, 3), pointer(), pointer(), source.getrandbits(32), 0),
            ("store", place, source.getrandbits(64)),
            ("load", place),
        ]
    )


def test_a_program_of_a_thousand_calls_stopped_every_fifty(runtime, elsewhere, function, twin):
    source = random.Random(20261121)
    program = [("load_ptx",), ("alloc", 64), *(random_step(source) for _ in range(1000))]
    with function.open(grants=["cuda"]) as live:
        player, mover = Player(live), Player(function.open(grants=["cuda"]))
        for number, (name, *args) in enumerate(program):
            assert mover.play(name, *args) == player.play(name, *args), (number, name)
            if number % 50 == 49:
                host, module = (elsewhere, twin) if number % 100 == 49 else (runtime, function)
                with runtime.snapshot(mover.live) as snapshot:
                    mover.live.close()
                    mover.live = host.restore(snapshot, module, grants=["cuda"])
        # Of two sessions only the ids of kernels differ: they are chosen at random.
        assert state(mover.live)[:3] == state(live)[:3]
        mover.live.close()


@pytest.mark.parametrize("memory_kind", ["staged", "pinned", "managed", "vmm"])
def test_memory_of_every_kind_comes_back_in_every_other(runtime, function, memory_kind, device):
    if memory_kind == "managed" and not device.info.concurrent_managed_access:
        pytest.skip("the device has no managed memory that a CPU may touch meanwhile")
    for other in ("auto", memory_kind):
        with function.open(grants=["cuda"], memory_kind=memory_kind) as live:
            player = Player(live)
            for name, *args in [("load_ptx",), ("alloc", 64), ("grow", 1), ("store", 190_000, 77)]:
                player.play(name, *args)
            with (
                runtime.snapshot(live) as snapshot,
                runtime.restore(snapshot, function, grants=["cuda"], memory_kind=other) as restored,
            ):
                twin = Player(restored, tuple(player.kernels))
                for step in [("launch", 0, WindowArg(190_000, 4), Buffer(1, 0), 3), ("load", 190_000), ("grow", 1)]:
                    assert twin.play(*step) == player.play(*step)
                assert state(restored)[:3] == state(live)[:3]


@pytest.mark.rule("7-charged", "7-grants", "7-tenant")
def test_restored_memory_is_charged_to_the_tenant_that_restores(runtime, function):
    runtime.accounts.register("poor", 100_000)
    with function.open(grants=["cuda"]) as live:
        Player(live).alloc(300_000)
        with runtime.snapshot(live) as snapshot:
            with pytest.raises(QuotaExceeded):
                runtime.restore(snapshot, function, grants=["cuda"], tenant="poor")
            with runtime.restore(snapshot, function) as without:
                assert without.statistics().gpu is None
                assert Player(without).alloc(64) == -1
            held = {each.tenant: each.device_bytes for each in runtime.accounts.statistics()}
            assert held["poor"] == 0


def test_work_that_goes_on_past_its_deadline_is_neither_waited_for_nor_saved(runtime, function):
    with function.open(grants=["cuda"]) as live:
        player = Player(live)
        kernel = player.call("wasi_cuda_load_ptx", NAP_AT, len(NAP), NAP_AT + NAP.index(b"nap"), 3)
        size = player.put(u64(700_000_000))  # longer than its deadline, and over before the GPU is given up for it
        with pytest.raises(InvokeTimeout):
            live.call(
                "wasi_cuda_launch_async", (kernel, 1, 1, 1, 1, 1, 1, 0, ARGV_AT, size, 0), deadline=Deadline.after(0.2)
            )
        with pytest.raises(NotCapturable, match="over"):
            runtime.snapshot(live)


CHILD = """
import sys
from pathlib import Path
from conformance.test_snapshots import GUEST, LIMITS, RING, Player
from tensorwasm.artifacts.keys import KeyRing
from tensorwasm.runtime import Runtime
with Runtime(device=sys.argv[1], limits=LIMITS) as runtime:
    function = runtime.load(GUEST, "gpu")
    with runtime.restore(Path(sys.argv[2]), function, grants=["cuda"], keys=RING) as live:
        player = Player(live, (int(sys.argv[3]),))
        from conformance.test_snapshots import Buffer, WindowArg
        print([player.launch(0, Buffer(1, 4), WindowArg(33000, 4), 7), player.d2h(33000, 1, 64), player.load(33004)])
"""


def test_an_instance_goes_on_in_another_process(runtime, function, device, tmp_path):
    path = tmp_path / "gpu.tws"
    with function.open(grants=["cuda"]) as live:
        player = Player(live)
        for step in [("load_ptx",), ("alloc", 64), ("store", 33_000, 987_654), ("h2d", 1, 33_000, 64)]:
            player.play(*step)
        runtime.snapshot(live, path, keys=RING)
        answer = subprocess.run(
            [sys.executable, "-c", CHILD, device.info.kind, str(path), str(player.kernels[0])],
            cwd=Path(__file__).resolve().parents[1],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        expected = [
            player.launch(0, Buffer(1, 4), WindowArg(33_000, 4), 7),
            player.d2h(33_000, 1, 64),
            player.load(33_004),
        ]
        assert answer.stdout.strip() == str(expected), answer.stderr
