import ctypes
import mmap
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from tensorwasm.errors import CapacityExhausted, GuestTrap, InvalidSnapshot
from tensorwasm.guest.engine import memory_creator
from tensorwasm.guest.engine.engine import GUARD_BYTES, MEMORY_RESERVATION_BYTES, Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.memory import images
from tensorwasm.guest.memory.images import Image, ImageWriter, make_image
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.saved import SavedRun
from tensorwasm.values import WASM_PAGE_BYTES, Limits

PAGE = mmap.PAGESIZE
GUEST = """
(module
  (memory (export "memory") 1 64)
  (func (export "load") (param i32) (result i32) (i32.load8_u (local.get 0)))
  (func (export "far") (param i32) (result i32) (i32.load8_u offset=0x1ffffff (local.get 0)))
  (func (export "store") (param i32 i32) (i32.store8 (local.get 0) (local.get 1)))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "size") (result i32) (memory.size)))
"""
LIMIT = 32 * WASM_PAGE_BYTES


@pytest.fixture(scope="module")
def prepared():
    engine = Engine.shared(EngineConfig(slots=8, images=True))
    return Linker(engine).prepare(compile_module(engine, bytes(wat2wasm(GUEST))))


def spawn(prepared, image: Image) -> Instance:
    with memory_creator.supplying(lambda _size, _capacity: image.map(), LIMIT, image.size_bytes):
        return Instance(prepared, limits=Limits(memory_bytes=LIMIT))


def contents(size_bytes: int, runs: list[SavedRun]) -> bytearray:
    data = bytearray(size_bytes)
    for run in runs:
        data[run.offset_bytes : run.offset_bytes + len(run.data)] = run.data
    return data


def mappings_within(address: int) -> int:
    """Count the mappings of a reservation."""
    end = address + MEMORY_RESERVATION_BYTES + GUARD_BYTES
    starts = [int(line.split("-")[0], 16) for line in Path("/proc/self/maps").read_text().splitlines()]
    return sum(address <= start < end for start in starts)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@st.composite
def runs_of(draw, size_bytes: int) -> list[SavedRun]:
    edges = draw(st.lists(st.integers(0, size_bytes), max_size=8, unique=True).map(sorted))
    pairs = zip(edges[::2], edges[1::2], strict=False)
    return [SavedRun(start, bytes([draw(st.integers(1, 255))]) * (end - start)) for start, end in pairs]


@given(pages=st.integers(1, 20), data=st.data())
@settings(max_examples=25)
def test_a_sandbox_has_what_the_image_holds_to_the_byte(prepared, pages, data):
    size = pages * WASM_PAGE_BYTES
    runs = data.draw(runs_of(size))
    image = make_image(size, runs)
    with spawn(prepared, image) as guest:
        assert guest.call("size") == [pages]
        assert guest.memory.read(0, size) == contents(size, runs)
        with pytest.raises(GuestTrap, match="memory_out_of_bounds"):
            guest.call("load", [size])
        with pytest.raises(GuestTrap, match="memory_out_of_bounds"):
            guest.call("far", [0xFFFF_FFFF])
    image.close()


@given(writes=st.lists(st.tuples(st.integers(0, 2 * WASM_PAGE_BYTES - 1), st.integers(1, 255)), max_size=20))
@settings(max_examples=20)
def test_writes_of_one_sandbox_are_seen_by_no_other(prepared, writes):
    size = 2 * WASM_PAGE_BYTES
    image = make_image(size, [SavedRun(100, b"seed"), SavedRun(70_000, b"\xab" * 5000)])
    before = contents(size, [SavedRun(100, b"seed"), SavedRun(70_000, b"\xab" * 5000)])
    with spawn(prepared, image) as bystander:
        with spawn(prepared, image) as guest:
            address = guest.memory.address
            for where, value in writes:
                guest.call("store", [where, value])
            assert bystander.memory.read(0, size) == before
        with spawn(prepared, image) as later:
            assert later.memory.address == address
            assert later.memory.read(0, size) == before
    image.close()


def test_memory_grows_to_the_limit_with_zeros_and_then_not(prepared):
    image = make_image(WASM_PAGE_BYTES, [SavedRun(0, b"x" * WASM_PAGE_BYTES)])
    for _ in range(2):
        with spawn(prepared, image) as guest:
            assert guest.call("grow", [2]) == [1]
            assert guest.memory.read(WASM_PAGE_BYTES, 2 * WASM_PAGE_BYTES) == bytes(2 * WASM_PAGE_BYTES)
            guest.call("store", [2 * WASM_PAGE_BYTES, 7])
            assert guest.call("grow", [1]) == [3]
            assert guest.call("load", [2 * WASM_PAGE_BYTES]) == [7]
            assert guest.call("grow", [28]) == [4]
            assert guest.call("grow", [1]) == [-1]
            with pytest.raises(GuestTrap, match="memory_out_of_bounds"):
                guest.call("load", [LIMIT])
    image.close()


def test_an_image_cannot_be_written_to(prepared):
    image = make_image(WASM_PAGE_BYTES, [SavedRun(0, b"seed")])
    with pytest.raises(PermissionError):
        os.pwrite(image._descriptor, b"other", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(image._descriptor, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(image._descriptor, WASM_PAGE_BYTES)
    image.close()


def test_zeros_between_runs_take_no_memory_and_few_mappings():
    step = 2 * images.GAP_BYTES
    runs = [SavedRun(index * step + 5, b"\x01") for index in range(40)]
    image = make_image(40 * step, runs)
    assert len(image.extents) == images.MAX_EXTENTS
    memory = image.map()
    assert mappings_within(memory.address) <= 2 * images.MAX_EXTENTS + 2
    for run in runs:
        assert ctypes.string_at(memory.address + run.offset_bytes, 1) == b"\x01"
    memory.close()
    image.close()
    near = make_image(4 * step, [SavedRun(0, b"a"), SavedRun(3 * step, b"b" * 9000)])
    assert near.extents == ((0, PAGE), (3 * step, 3 * PAGE))
    assert near.held_bytes == 4 * PAGE
    near.close()


@given(st.integers(0, 3 * WASM_PAGE_BYTES), st.integers(0, 3 * WASM_PAGE_BYTES), st.integers(1, 9), st.integers(1, 9))
def test_runs_that_overlap_or_reach_past_the_end_are_refused(first, second, first_length, second_length):
    size = 2 * WASM_PAGE_BYTES
    fits = first + first_length <= second and second + second_length <= size
    runs = [SavedRun(first, b"a" * first_length), SavedRun(second, b"b" * second_length)]
    if fits:
        make_image(size, runs).close()
    else:
        with pytest.raises(InvalidSnapshot):
            make_image(size, runs)


@pytest.mark.parametrize("size", [-WASM_PAGE_BYTES, 1, WASM_PAGE_BYTES - 1, (1 << 32) + WASM_PAGE_BYTES, 1 << 63])
def test_a_size_that_no_memory_has_is_refused_before_anything_is_allocated(size):
    with pytest.raises(InvalidSnapshot):
        ImageWriter(size)


def test_an_image_that_is_closed_makes_no_more_sandboxes_and_keeps_nothing(prepared):
    image = make_image(WASM_PAGE_BYTES, [SavedRun(0, b"seed")])
    held = open_files()
    with spawn(prepared, image) as guest:
        address = guest.memory.address
        image.close()
        assert guest.call("load", [0]) == [ord("s")]
    assert mappings_within(address) == 0
    assert open_files() == held - 1
    with pytest.raises(CapacityExhausted, match="closed"):
        spawn(prepared, image)


def test_a_writer_that_is_left_alone_keeps_no_descriptor():
    held = open_files()
    with ImageWriter(WASM_PAGE_BYTES) as writer:
        writer.write(0, b"seed")
    assert open_files() == held


def test_threads_share_an_image_and_none_sees_anothers_writes(prepared):
    image = make_image(WASM_PAGE_BYTES, [SavedRun(0, b"s")])
    wrong: list[object] = []

    def work(mark: int) -> None:
        try:
            for _ in range(50):
                with spawn(prepared, image) as guest:
                    seen = guest.call("load", [0]), guest.call("load", [9])
                    guest.call("store", [9, mark])
                    guest.call("store", [0, mark])
                    if seen != ([ord("s")], [0]) or guest.call("load", [9]) != [mark]:
                        wrong.append(seen)
        except Exception as error:  # noqa: BLE001 - told to the test's own thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    image.close()


def test_no_more_is_kept_than_all_images_may_keep_together(monkeypatch):
    places: list[None] = [None] * 3
    monkeypatch.setattr(images, "_kept_left", places)
    made = [make_image(WASM_PAGE_BYTES, [SavedRun(0, b"s")]) for _ in range(3)]
    for image in made:
        for memory in [image.map() for _ in range(2)]:
            memory.close()
    assert places == []
    assert [sum(len(idle) for idle in image._idle.values()) for image in made] == [2, 1, 0]
    made[0].map().close()
    for image in made:
        image.close()
    assert places == [None] * 3


def test_memory_that_cannot_be_rewound_is_not_kept(monkeypatch):
    image = make_image(WASM_PAGE_BYTES, [SavedRun(0, b"s")])
    places = len(images._kept_left)
    monkeypatch.setattr(images.mappings, "rewind", lambda *_: False)
    memory = image.map()
    memory.close()
    assert not any(image._idle.values())
    assert mappings_within(memory.address) == 0
    assert len(images._kept_left) == places
    image.close()


def test_a_file_that_cannot_have_its_size_is_not_left_open(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "ftruncate", refuse)
    held = open_files()
    with pytest.raises(CapacityExhausted):
        ImageWriter(WASM_PAGE_BYTES)
    assert open_files() == held
