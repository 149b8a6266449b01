"""Memory that was freed is given back to the system."""

import asyncio
import ctypes
import sys
import threading
from pathlib import Path

import pytest

from tensorwasm.server.process import memory

PAGE_BYTES = 4096
pytestmark = pytest.mark.skipif(memory._library() is None, reason="the C library is not glibc")


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def test_small_blocks_below_a_later_one_are_returned_when_it_is_quiet(monkeypatch):
    monkeypatch.setattr(memory, "QUIET_S", 0.01)

    async def run():
        before = resident_bytes()
        blocks = [b"x" * (100_000 + at) for at in range(1500)]
        kept = blocks[::50]
        assert resident_bytes() - before > 100 << 20
        blocks.clear()
        for _ in range(3):
            memory.return_rest_soon()
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if resident_bytes() - before < 40 << 20:
                break
        assert resident_bytes() - before < 40 << 20
        return len(kept)

    assert asyncio.run(run()) == 30


def test_only_the_last_call_starts_the_timer(monkeypatch):
    calls, called = [], threading.Event()

    class Library:
        @staticmethod
        def malloc_trim(pad):
            calls.append(pad)
            called.set()

    monkeypatch.setattr(memory, "QUIET_S", 0.01)
    monkeypatch.setattr(memory, "_library", Library)

    async def run():
        for _ in range(5):
            memory.return_rest_soon()
            await asyncio.sleep(0)
        assert await asyncio.to_thread(called.wait, 10)

    asyncio.run(run())
    assert calls == [0]


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(memory, "_library", lambda: None)
    memory.return_large_blocks()
    memory._return_rest(None)


def test_glibc_is_found(monkeypatch):
    memory._library.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory._library() is None
    memory._library.cache_clear()
    monkeypatch.undo()
    assert hasattr(ctypes.CDLL(None), "malloc_trim") == (memory._library() is not None)
