"""Arrays of a guest are copied from registered pages where that pays, and as they are elsewhere."""

from __future__ import annotations

import ctypes
import mmap
from types import SimpleNamespace

import pytest

from fakes.device import FakeDevice
from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.guest.imports.offload.guest_pages import GuestPages
from tensorwasm.offload.program import Array
from tensorwasm.values import NEVER

PAGE = mmap.PAGESIZE
MEMORY_BYTES = 64 * PAGE


class World:
    """A guest's memory, and a session that may register some pages of it."""

    def __init__(self, pinned_bytes: int = MEMORY_BYTES) -> None:
        self.accounts = Accounts(MemoryLedger())
        self.accounts.register("tenant", 1 << 20, pinned_bytes)
        shared = SharedDevice(FakeDevice(effects=True), self.accounts, Gate(4))
        self.session = shared.open_session("tenant", memory_kind="pinned")
        self.pages = GuestPages(self.session)
        self.bytes = mmap.mmap(-1, MEMORY_BYTES)
        view = memoryview(self.bytes)
        self.memory = SimpleNamespace(
            address=ctypes.addressof(ctypes.c_char.from_buffer(self.bytes)),
            size_bytes=MEMORY_BYTES,
            view=lambda first, size: view[first : first + size],
        )
        self.call = SimpleNamespace(memory=self.memory, deadline=NEVER)

    @property
    def registered(self) -> int:
        return self.session.statistics().pinned_bytes // PAGE

    def move(self, *arrays: Array) -> bool:
        """Copy arrays there and, doubled, back; return whether the memory holds that."""
        self.pages.reach(arrays, self.memory, NEVER)
        same = True
        for array in arrays:
            there = bytes(number % 120 + 1 for number in range(array.size_bytes))
            self.memory.view(array.first, array.size_bytes)[:] = there
            handle = self.session.buffers.allocate(array.size_bytes)
            self.pages.copy_in(handle, array, self.call)
            self.pages.finish(NEVER)
            found = bytearray(array.size_bytes)
            self.session.buffers.read(handle, memoryview(found), NEVER)
            self.session.buffers.write(handle, bytes(2 * byte for byte in found), NEVER)
            self.pages.copy_out(handle, array, self.call)
            self.pages.finish(NEVER)
            same &= bytes(self.memory.view(array.first, array.size_bytes)) == bytes(2 * byte for byte in there)
        return same


def array(first: int, size_bytes: int) -> Array:
    return Array(0, first, size_bytes, 8, read=True, written=True)


def test_pages_from_the_first_array_to_the_last_are_registered():
    world = World()
    assert world.move(array(2 * PAGE + 8, 3 * PAGE), array(6 * PAGE, 2 * PAGE))
    assert world.registered == 6


def test_all_of_a_memory_that_is_mostly_arrays_is_registered():
    world = World()
    assert world.move(array(8, MEMORY_BYTES // 2))
    assert world.registered == 64


def test_arrays_far_apart_are_copied_as_they_are():
    world = World()
    assert world.move(array(0, 100), array(40 * PAGE, 100))
    assert world.registered == 0


def test_registered_pages_grow_with_what_is_copied():
    world = World()
    assert world.move(array(4 * PAGE, PAGE))
    assert world.move(array(4 * PAGE, 100))
    assert world.registered == 1
    assert world.move(array(PAGE, 100), array(9 * PAGE, 100))
    assert world.registered == 9


def test_memory_that_may_not_be_registered_is_copied_as_it_is():
    world = World(pinned_bytes=4 * PAGE)
    assert world.move(array(0, 8 * PAGE))
    assert world.move(array(0, PAGE))
    assert world.registered == 0


def test_more_pages_than_may_be_registered_are_refused_behind_others():
    world = World(pinned_bytes=4 * PAGE)
    assert world.move(array(0, 2 * PAGE))
    with pytest.raises(QuotaExceeded):
        world.pages.reach([array(3 * PAGE, 5 * PAGE)], world.memory, NEVER)
    assert world.move(array(0, PAGE))
    assert world.registered == 2


def test_nothing_is_registered_once_the_session_has_ended():
    world = World()
    assert world.move(array(0, 8 * PAGE))
    world.session.close()
    assert not world.session.abandoned
    assert not world.accounts.account("tenant").charged
