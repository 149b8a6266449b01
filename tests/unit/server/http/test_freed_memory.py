"""Memory that was freed is given back to the system."""

import asyncio
import ctypes
import sys
import threading
from pathlib import Path

import pytest

from tensorwasm.server.http import long_work

PAGE_BYTES = 4096
pytestmark = pytest.mark.skipif(long_work._library() is None, reason="the C library is not glibc")


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def test_small_blocks_below_a_later_one_are_returned_when_it_is_quiet(monkeypatch):
    monkeypatch.setattr(long_work, "QUIET_S", 0.01)

    async def run():
        long_work._library().malloc_trim(0)  # what other tests have freed would be used again, and not counted
        before = resident_bytes()
        blocks = [b"x" * (100_000 + at) for at in range(1500)]
        kept = blocks[::50]
        assert resident_bytes() - before > 100 << 20
        blocks.clear()
        for _ in range(3):
            long_work.return_rest_soon()
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

    monkeypatch.setattr(long_work, "QUIET_S", 0.01)
    monkeypatch.setattr(long_work, "_library", Library)

    async def run():
        for _ in range(5):
            long_work.return_rest_soon()
            await asyncio.sleep(0)
        assert await asyncio.to_thread(called.wait, 10)

    asyncio.run(run())
    assert calls == [0]


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(long_work, "_library", lambda: None)
    long_work.return_large_blocks()
    long_work._return_rest(None)


def test_glibc_is_found(monkeypatch):
    long_work._library.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert long_work._library() is None
    long_work._library.cache_clear()
    monkeypatch.undo()
    assert hasattr(ctypes.CDLL(None), "malloc_trim") == (long_work._library() is not None)
