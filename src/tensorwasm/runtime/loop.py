"""Invocations that begin on the thread that asks for them, which an event loop runs on.

Most guests end within microseconds, and would pay more for a thread than for all else. So an event loop's thread runs a
guest itself, for one slice. Whoever has not ended by then, or waits, goes on with the runtime's reactor and its crew.

What a loop loses to guests that run long is bounded. A slice is half a millisecond; after one that was used up the loop
begins no further guest for nine times as long, which is a tenth of its time at most; and of a function whose last guest
ran long the next one is not begun here at all. Those begin elsewhere, as all do that are submitted.

No timer ends a single instruction or host call that goes over much memory: filling 256 MiB that nobody has touched took
400 ms. Nor does it end code that goes straight on, without a loop or a call, over as many pages as it has instructions:
130 ms for 65,000. So of modules that import anything, have such instructions, or a function of more than 16 KiB, only
those begin here whose memory cannot have more than 2 MiB, by what they declare or by their limits.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from tensorwasm.errors import GuestTrap
from tensorwasm.guest.reactor.preemption_timer import SLICE_NS, run_first_slice
from tensorwasm.values import MIB, WASM_PAGE_BYTES
from tensorwasm.wasm.preamble import longest_body

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from tensorwasm.guest.reactor.task import Sandbox
    from tensorwasm.wasm.preamble import Preamble

REST: Final = 9
"""How much longer than a slice that was used up a loop begins no guest."""

LITTLE_NS: Final = SLICE_NS // 2
"""Time in which no guest has had too much."""

SMALL_BYTES: Final = 2 * MIB
"""Most memory that one instruction or host call may go over on an event loop's thread."""

STRAIGHT_BYTES: Final = 16 << 10
"""Longest function of a module with more memory than that: some 2,000 stores, each to a page of its own."""

# Prefix and first byte of the number, which may be padded. What only looks like one costs a thread, nothing else.
# Source: Wasm core 5.4.6, 5.4.7, memory and table instructions.
_BULK: Final = re.compile(rb"\xfc[\x08-\x11\x88-\x91]")

_Value = TypeVar("_Value")
_of_thread: Final = threading.local()


class Place:
    """Where guests begin on one thread.

    Args:
        now_ns: the monotonic clock.
        spent_ns: what the thread has had of a processor. A slice is measured with it: while others have the processor a
            guest holds nobody up, and would do so no less elsewhere.
    """

    def __init__(
        self, now_ns: Callable[[], int] = time.monotonic_ns, spent_ns: Callable[[], int] = time.thread_time_ns
    ) -> None:
        self._now_ns = now_ns
        self._spent_ns = spent_ns
        self._free_ns = 0

    @property
    def free(self) -> bool:
        """Whether a guest may begin here now."""
        return self._now_ns() >= self._free_ns

    def run(self, fiber: Sandbox) -> bool:
        """Run a guest for a slice, with the GIL kept; return whether its call has ended.

        Raises:
            TensorWasmError: how the call ended, if not well.
        """
        fiber.state.check()
        slice_ns = self._stopwatch()
        try:
            return run_first_slice(fiber, briefly=True, clock_ns=slice_ns)
        finally:
            if fiber.long:
                self._free_ns = self._now_ns() + REST * slice_ns()

    def _stopwatch(self) -> Callable[[], int]:
        """Return what says how long the thread has had a processor since now, and is asked no less often than it costs.

        A thread has had a processor for no longer than has passed; so what has passed is said, while that is little.
        """
        now_ns, spent_ns = self._now_ns, self._spent_ns
        began_ns, before_ns = now_ns(), spent_ns()

        def read_ns() -> int:
            passed_ns = now_ns() - began_ns
            return passed_ns if passed_ns < LITTLE_NS else spent_ns() - before_ns

        return read_ns


def is_interruptible(wasm: bytes, declared: Preamble, memory_bytes: int) -> bool:
    """Return whether everything that a module's guest can do is short, but for what a timer ends.

    Args:
        wasm: the binary.
        declared: what it declares.
        memory_bytes: the limit of its memory.
    """
    most_pages = sum(memory.maximum if memory.maximum is not None else 1 << 16 for memory in declared.memories)
    if min(most_pages * WASM_PAGE_BYTES, memory_bytes) <= SMALL_BYTES and not declared.tables:
        return True
    return not declared.imports and not _BULK.search(wasm) and longest_body(wasm) <= STRAIGHT_BYTES


def place() -> Place:
    """Return the calling thread's."""
    try:
        found: Place = _of_thread.place
    except AttributeError:
        found = _of_thread.place = Place()
    return found


async def answered(future: Future[_Value]) -> _Value:
    """Wait for an outcome in an event loop. When the caller's task is cancelled, or goes with its loop, so does it."""
    import asyncio  # noqa: PLC0415 - half of what importing this package costs, for those who have it already

    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Value] = loop.create_future()
    future.add_done_callback(partial(_tell, loop, answer))
    try:
        return await answer
    finally:
        future.cancel()


async def locate(error: BaseException | None) -> None:
    """Look up the source lines of a trap elsewhere than on the event loop's thread, unless that was done."""
    import asyncio  # noqa: PLC0415 - as above

    if isinstance(error, GuestTrap) and error.find_lines is not None:
        await asyncio.to_thread(getattr, error, "backtrace")


def _tell(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[_Value], done: Future[_Value]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_take, answer, done)


def _take(answer: asyncio.Future[_Value], done: Future[_Value]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
