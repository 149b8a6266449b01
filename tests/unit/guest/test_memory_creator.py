import ctypes
import mmap
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from fakes.unified import DIRT, FakeMemory
from tensorwasm.errors import GuestTrap, InternalError, QuotaExceeded, TensorWasmError
from tensorwasm.gpu.memory import UnifiedBuffer
from tensorwasm.guest.engine import memory_creator
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.values import WASM_PAGE_BYTES, Limits

GUEST = """
(module
  (memory (export "memory") 1 64)
  (data (i32.const 100) "seed")
  (func (export "load") (param i32) (result i32) (i32.load8_u (local.get 0)))
  (func (export "store") (param i32 i32) (i32.store8 (local.get 0) (local.get 1)))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))
"""
LIMIT = 32 * WASM_PAGE_BYTES


@dataclass
class Backings:
    """Makes anonymous memory and keeps books; refuses what a test tells it to."""

    refuse: TensorWasmError | Exception | None = None
    refuse_growth: Exception | None = None
    open: list["Backing"] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, size_bytes: int, capacity_bytes: int) -> "Backing":
        self.asked.append((size_bytes, capacity_bytes))
        if self.refuse is not None:
            raise self.refuse
        self.open.append(Backing(self, size_bytes, capacity_bytes))
        return self.open[-1]


class Backing:
    def __init__(self, owner: Backings, size_bytes: int, capacity_bytes: int) -> None:
        from ctypes import addressof, c_char  # noqa: PLC0415 - what the fake alone needs

        self.owner, self.size_bytes = owner, size_bytes
        self._pages = mmap.mmap(-1, capacity_bytes + mmap.PAGESIZE)
        self._view = (c_char * len(self._pages)).from_buffer(self._pages)
        self.address = addressof(self._view)

    def try_grow_in_place(self, size_bytes: int) -> None:
        if self.owner.refuse_growth is not None:
            raise self.owner.refuse_growth
        self.size_bytes = size_bytes

    def close(self) -> None:
        self.owner.open.remove(self)


@pytest.fixture(scope="module")
def prepared():
    engine = Engine.shared(EngineConfig(slots=8, host_memory=True))
    return Linker(engine).prepare(compile_module(engine, bytes(wat2wasm(GUEST))))


def spawn(prepared, backings: Backings | None) -> Instance:
    with memory_creator.supplying(backings, LIMIT):
        return Instance(prepared, limits=Limits(memory_bytes=LIMIT))


def test_the_provider_is_asked_for_the_declared_size_and_the_sandboxes_limit(prepared):
    backings = Backings()
    with spawn(prepared, backings) as guest:
        assert backings.asked == [(WASM_PAGE_BYTES, LIMIT)]
        assert guest.memory.address == backings.open[0].address
        assert guest.call("load", [101]) == [ord("e")]
    assert backings.open == []
    assert memory_creator.live() == 0


@given(pages=st.lists(st.integers(0, 40), max_size=5), where=st.integers(-3, 3))
@settings(max_examples=30)
def test_a_guest_traps_at_the_exact_byte_and_finds_zeros_where_it_grew(prepared, pages, where):
    with spawn(prepared, Backings()) as guest:
        size = 1
        for more in pages:
            fits = size + more <= LIMIT // WASM_PAGE_BYTES
            assert guest.call("grow", [more]) == [size if fits else -1]
            size += more if fits else 0
        edge = size * WASM_PAGE_BYTES + where
        if where < 0:
            assert guest.call("load", [edge]) == [0]
            guest.call("store", [edge, 7])
        else:
            with pytest.raises(GuestTrap, match="memory_out_of_bounds"):
                guest.call("load", [edge])
            with pytest.raises(GuestTrap, match="memory_out_of_bounds"):
                guest.call("store", [edge, 7])


@pytest.mark.rule("4-memory")
def test_writes_of_one_guest_are_gone_for_the_next(prepared):
    backings = Backings()
    for _ in range(3):
        with spawn(prepared, backings) as guest:
            assert guest.call("load", [5000]) == [0]
            guest.call("store", [5000, 255])


@given(pages=st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=20)
def test_a_guest_sees_zeros_although_the_drivers_memory_is_dirty(prepared, pages):
    device = FakeMemory()

    def provide(size_bytes: int, capacity_bytes: int) -> UnifiedBuffer:
        return UnifiedBuffer.allocate(device, size_bytes, "managed", capacity_bytes=capacity_bytes)

    expected = bytearray(WASM_PAGE_BYTES)
    expected[100:104] = b"seed"
    with memory_creator.supplying(provide, LIMIT), Instance(prepared, limits=Limits(memory_bytes=LIMIT)) as guest:
        for more in (0, *pages):
            if guest.call("grow", [more]) != [-1]:
                expected += bytes(more * WASM_PAGE_BYTES)
            assert guest.memory.read(0, guest.memory.size_bytes) == expected
            guest.memory.write(0, b"\xee" * len(expected))
            expected = bytearray(b"\xee" * len(expected))
        beyond = ctypes.string_at(guest.memory.address + len(expected), LIMIT - len(expected))
        assert beyond == bytes([DIRT]) * len(beyond)
    assert device.broken == []
    assert device.empty()


def test_growth_that_the_provider_refuses_answers_minus_one_and_changes_nothing(prepared, caplog):
    for refusal in (QuotaExceeded("no"), RuntimeError("a bug")):
        backings = Backings(refuse_growth=refusal)
        with spawn(prepared, backings) as guest:
            assert guest.call("grow", [1]) == [-1]
            assert guest.memory.size_bytes == WASM_PAGE_BYTES
            assert guest.call("load", [101]) == [ord("e")]
    assert "could not grow" in caplog.text


def test_a_provider_that_refuses_is_what_the_caller_sees(prepared):
    free = prepared.module.engine.free_slots
    with pytest.raises(QuotaExceeded, match="the tenant has no more"):
        spawn(prepared, Backings(refuse=QuotaExceeded("the tenant has no more")))
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        spawn(prepared, Backings(refuse=ZeroDivisionError()))
    with pytest.raises(InternalError, match="provider"):
        spawn(prepared, None)
    assert prepared.module.engine.free_slots == free
    assert memory_creator.live() == 0


@pytest.mark.rule("3-shared")
def test_memory_stays_while_a_device_may_still_reach_it(prepared):
    backings = Backings()
    with memory_creator.supplying(backings, LIMIT):
        guest = Instance(prepared, limits=Limits(memory_bytes=LIMIT), drain=lambda: False)
    guest.close()
    assert len(backings.open) == 1


def test_memory_that_is_longer_than_the_module_allows_is_refused(prepared):
    backings = Backings()
    with (
        pytest.raises(InternalError, match="longer than its module"),
        memory_creator.supplying(backings, LIMIT, 65 * WASM_PAGE_BYTES),
    ):
        Instance(prepared, limits=Limits(memory_bytes=128 * WASM_PAGE_BYTES))
    assert backings.open == []
