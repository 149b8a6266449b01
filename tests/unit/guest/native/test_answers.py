"""Compiled host functions called by their address, as wasmtime calls them: what is in the answer's place, and when."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fakes.argv import encode_argv
from fakes.pads import OWN_STREAM, CallbackDriver, HandPad, Started, kernel_of
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.native.layout import OfferRow, OutputRow, Scratch, SessionLayout
from tensorwasm.guest.imports.abi import Code, YieldVerdict
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.guest.native.structures import Environment
from tensorwasm.values import KernelParam, KernelSignature

numba = pytest.importorskip("numba")

from tensorwasm.guest.native import compiled  # noqa: E402 - it imports Numba

KERNEL, BUFFER, GRAPH, OFFERED = 65, 1, 3, 7
TEXT_AT, ENTRY_AT, TEXT, ENTRY = 1024, 2048, b".version 7.0", b"main"
FAULT = 700
WASI_IO = 29
FAILED = Code.INTERNAL
_u64, _i64, _at = ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p
_HOST = ctypes.CFUNCTYPE(_u64, _u64, _u64, _u64, _u64)


class Watched(CallbackDriver):
    """A driver that looks at the answer's place whenever it is called."""

    look: Callable[[], None] = staticmethod(lambda: None)

    def _answer(self, name: str, call: object) -> int:
        self.look()
        return super()._answer(name, call)

    def _stream_query(self, stream: int) -> int:
        self.look()
        return super()._stream_query(stream)

    def _context_current(self, into: int) -> int:
        self.look()
        return super()._context_current(into)


@dataclass
class Caller:
    """What wasmtime and the C library are to a compiled host function; each look at the answer is kept.

    Attributes:
        remember: called when the function asks where the guest's memory is.
        seen: what was in the answer's place whenever something was called.
        fallbacks: times that Python was asked for all of it.
    """

    remember: Callable[[], None] = lambda: None
    seen: list[int] = field(default_factory=list)
    fallbacks: int = 0

    def __post_init__(self) -> None:
        self.cells = (_i64 * 32)()
        self.scratch = Scratch()
        self.memory = ctypes.create_string_buffer(1 << 16)
        self.slot = ctypes.create_string_buffer(1)
        self.output = ctypes.create_string_buffer(4096)
        self.memory_at, self.memory_bytes = ctypes.addressof(self.memory), len(self.memory)
        self.layout = SessionLayout()
        self.driver = Watched()
        self.hand = HandPad(self.layout, self.driver)
        self.driver.look = self.look
        self.layout.scratch = ctypes.addressof(self.scratch)
        self.layout.memory[0] = 1
        self.layout.deadline_ns = 1 << 62
        self._kept = {
            "fallback": _HOST(self._fallback),
            "finish": _HOST(self._finish),
            "caller_context": ctypes.CFUNCTYPE(_u64, _u64)(self._returning(1)),
            "context_get_data": ctypes.CFUNCTYPE(_u64, _u64)(self._returning(ctypes.addressof(self.layout))),
            "memory_data": ctypes.CFUNCTYPE(_u64, _u64, _u64)(self._memory_data),
            "memory_data_size": ctypes.CFUNCTYPE(_u64, _u64, _u64)(lambda *_: self.memory_bytes),
            "clock_gettime": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _at)(self._clock),
            "sched_yield": ctypes.CFUNCTYPE(ctypes.c_int)(lambda: self.look() or 0),
            "compare": ctypes.CFUNCTYPE(ctypes.c_int, _u64, _u64, _u64)(self._compare),
        }
        addresses = {name: ctypes.cast(each, _at).value for name, each in self._kept.items()}
        self.environment = Environment(**addresses, spin_ns=1000)

    def call(self, address: int, *params: int) -> int:
        """Call a host function; return what it answers."""
        for index, value in enumerate(params):
            self.cells[2 * index] = value
        self.seen.clear()
        trap = _HOST(address)(ctypes.addressof(self.environment), 0, ctypes.addressof(self.cells), len(params))
        assert trap == 0
        return self.cells[0]

    def look(self) -> None:
        self.seen.append(self.cells[0])

    def reach(self) -> None:
        self.layout.reach_at, self.layout.reach_bytes = self.memory_at, self.memory_bytes

    def put_offer(self) -> None:
        ctypes.memmove(self.memory_at + TEXT_AT, TEXT, len(TEXT))
        ctypes.memmove(self.memory_at + ENTRY_AT, ENTRY, len(ENTRY))
        text, entry = self.memory_at + TEXT_AT, self.memory_at + ENTRY_AT
        self.layout.offers[0] = OfferRow(text, len(TEXT), entry, len(ENTRY), 0xBEEF)
        self.layout.next_kernel, self.layout.budget = OFFERED, 1

    def _returning(self, value: int) -> Callable[[int], int]:
        def answer(_argument: int) -> int:
            self.look()
            return value

        return answer

    def _memory_data(self, _context: int, _memory: int) -> int:
        self.look()
        self.remember()
        return self.memory_at

    def _clock(self, _clock: int, at: int) -> int:
        self.look()
        (_u64 * 2).from_address(at)[:] = [len(self.seen), 0]
        return 0

    def _compare(self, first: int, second: int, size_bytes: int) -> int:
        self.look()
        return int(ctypes.string_at(first, size_bytes) != ctypes.string_at(second, size_bytes))

    def _fallback(self, _env: int, _caller: int, _cells: int, _count: int) -> int:
        self.fallbacks += 1
        return 0

    def _finish(self, _env: int, _caller: int, _cells: int, _count: int) -> int:
        """Wait, and do not come to an answer."""
        return 0


@pytest.fixture(scope="module")
def addresses() -> dict[str, int]:
    folder = compiled.open_cache()
    return {
        name: compiled.compile_function(source.function, folder).address for name, source in compiled.SOURCES.items()
    }


def put_kernel(caller: Caller, params: int = 0) -> None:
    signature = KernelSignature("k", (KernelParam("n", 8, 8),) * params)
    caller.hand.put_kernel(KERNEL, signature, kernel_of())


def put_busy(caller: Caller) -> None:
    caller.hand.put_stream(0, OWN_STREAM, pending=1)


def put_buffer(caller: Caller) -> None:
    caller.hand.put_buffer(BUFFER, 1 << 40, 64)
    caller.reach()


def put_output(caller: Caller, offset: int = 1024, length: int = 8, room_bytes: int = 64) -> None:
    ctypes.memmove(caller.memory_at, struct.pack("<II", offset, length), 8)
    caller.layout.output[0] = OutputRow(ctypes.addressof(caller.output), 0, room_bytes)


ONES = (1,) * 6
CALLS = {
    "wasi_cuda_load_ptx": (Caller.put_offer, (TEXT_AT, len(TEXT), ENTRY_AT, len(ENTRY)), OFFERED),
    "wasi_cuda_launch": (put_kernel, (KERNEL, *ONES, 0, 0, 0), 0),
    "wasi_cuda_launch_async": (put_kernel, (KERNEL, *ONES, 0, 0, 0, 0), 0),
    "wasi_cuda_graph_launch": (lambda caller: caller.hand.put_graph(GRAPH, 0x6A, 1), (GRAPH, 0), 0),
    "wasi_cuda_sync": (put_busy, (), 0),
    "wasi_cuda_stream_sync": (put_busy, (0,), 0),
    "wasi_cuda_memcpy_h2d": (put_buffer, (BUFFER, 0, 8, 8), 0),
    "wasi_cuda_memcpy_d2h": (put_buffer, (8, BUFFER, 0, 8), 0),
    "yield": (lambda _: None, (), YieldVerdict.CONTINUE),
    "deadline-remaining-ms": (lambda _: None, (), (1 << 32) - 2),
    "fd_write": (put_output, (1, 0, 1, 8), 0),
}
"""How each function comes to a good answer: what it needs, with what it is called, and the answer."""
PRESET = {"yield": YieldVerdict.STOP, "deadline-remaining-ms": 0, "fd_write": WASI_IO}
"""What says to a guest that nothing was done, or that there is no time left."""


@pytest.mark.parametrize("name", compiled.SOURCES)
@pytest.mark.rule("1-preset")
def test_until_all_is_done_the_answer_is_a_failure(addresses, name):
    put, params, answer = CALLS[name]
    caller = Caller()
    put(caller)
    assert caller.call(addresses[name], *params) % (1 << 32) == answer
    assert caller.fallbacks == 0
    low = {seen % (1 << 32) for seen in caller.seen}
    assert low == {PRESET.get(name, FAILED) % (1 << 32)}


@pytest.mark.parametrize("name", [name for name, source in compiled.SOURCES.items() if source.starts])
@pytest.mark.rule("1-preset")
def test_a_started_call_that_ends_without_an_answer_is_a_failure(addresses, name):
    put, params, _ = CALLS[name]
    caller = Caller()
    put(caller)
    caller.driver.results["stream_query"] = FAULT
    assert caller.call(addresses[name], *params) % (1 << 32) == FAILED % (1 << 32)
    assert (caller.fallbacks, len(caller.driver.calls)) == (0, 1)


END, LENGTH = 8192, 16
"""Of the guest's memory, behind which there is more that can be read; and of what lies at it."""
NUMBERS = encode_argv([NumberArg("u64", bytes(8))])


def put_records(caller: Caller, end: int) -> tuple[int, ...]:
    put_kernel(caller, params=1)
    ctypes.memmove(caller.memory_at + end - len(NUMBERS), NUMBERS, len(NUMBERS))
    return KERNEL, *ONES, 0, end - len(NUMBERS), len(NUMBERS), 0


def put_window(caller: Caller, end: int) -> tuple[int, ...]:
    caller.hand.put_kernel(KERNEL, KernelSignature("k", (KernelParam("p", 8, 8, pointer=True),)), kernel_of())
    argv = encode_argv([WindowArg(end - LENGTH, LENGTH)])
    ctypes.memmove(caller.memory_at, argv, len(argv))
    caller.reach()
    return KERNEL, *ONES, 0, 0, len(argv), 0


def put_staged_window(caller: Caller, end: int) -> tuple[int, ...]:
    params = put_window(caller, end)
    caller.slot = ctypes.create_string_buffer(1 << 13)
    first = -(-ctypes.addressof(caller.slot) // 256) * 256
    caller.layout.stage_at, caller.layout.stage_bytes = first + caller.memory_at % 256, 4096
    caller.layout.stage_view = caller.layout.stage_at
    caller.layout.reach_at = caller.layout.reach_bytes = 0
    return params


def put_text(caller: Caller, end: int) -> tuple[int, ...]:
    caller.put_offer()
    ctypes.memmove(caller.memory_at + end - len(TEXT), TEXT, len(TEXT))
    return end - len(TEXT), len(TEXT), ENTRY_AT, len(ENTRY)


def put_entry(caller: Caller, end: int) -> tuple[int, ...]:
    caller.put_offer()
    ctypes.memmove(caller.memory_at + end - len(ENTRY), ENTRY, len(ENTRY))
    return TEXT_AT, len(TEXT), end - len(ENTRY), len(ENTRY)


def put_source(caller: Caller, end: int) -> tuple[int, ...]:
    put_buffer(caller)
    return BUFFER, 0, end - LENGTH, LENGTH


def put_target(caller: Caller, end: int) -> tuple[int, ...]:
    put_buffer(caller)
    return end - LENGTH, BUFFER, 0, LENGTH


def put_long(caller: Caller, end: int) -> tuple[int, ...]:
    caller.hand.put_buffer(BUFFER, 1 << 40, LENGTH)
    caller.reach()
    return BUFFER, 0, 0, LENGTH + end - END


def put_place(caller: Caller, end: int) -> tuple[int, ...]:
    caller.hand.put_kernel(KERNEL, KernelSignature("k", (KernelParam("p", 8, 8, pointer=True),)), kernel_of())
    caller.hand.put_buffer(BUFFER, 1 << 40, LENGTH)
    argv = encode_argv([BufferOffset(BUFFER, LENGTH - 1 + end - END)])
    ctypes.memmove(caller.memory_at, argv, len(argv))
    return KERNEL, *ONES, 0, 0, len(argv), 0


def put_table(caller: Caller, end: int) -> tuple[int, ...]:
    put_output(caller)
    ctypes.memmove(caller.memory_at + end - 8, struct.pack("<II", 1024, 8), 8)
    return 1, end - 8, 1, 8


def put_piece(caller: Caller, end: int) -> tuple[int, ...]:
    put_output(caller, end - LENGTH, LENGTH)
    return 1, 0, 1, 8


def put_count(caller: Caller, end: int) -> tuple[int, ...]:
    put_output(caller)
    return 1, 0, 1, end - 4


def put_room(caller: Caller, end: int) -> tuple[int, ...]:
    put_output(caller, 1024, LENGTH + end - END, LENGTH)
    return 1, 0, 1, 8


ENDS = {
    "records": ("wasi_cuda_launch", put_records),
    "records, and nobody waits": ("wasi_cuda_launch_async", put_records),
    "window": ("wasi_cuda_launch", put_window),
    "window, and nobody waits": ("wasi_cuda_launch_async", put_window),
    "window in the slot": ("wasi_cuda_launch", put_staged_window),
    "text": ("wasi_cuda_load_ptx", put_text),
    "entry": ("wasi_cuda_load_ptx", put_entry),
    "source": ("wasi_cuda_memcpy_h2d", put_source),
    "target": ("wasi_cuda_memcpy_d2h", put_target),
    "buffer": ("wasi_cuda_memcpy_h2d", put_long),
    "place in a buffer": ("wasi_cuda_launch", put_place),
    "table of pieces": ("fd_write", put_table),
    "piece": ("fd_write", put_piece),
    "count of bytes": ("fd_write", put_count),
    "room for output": ("fd_write", put_room),
}
"""What ends with the guest's memory, or with its buffer or row, and the function that it is for."""


@pytest.mark.rule("1-regions", "1-twin")
@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize("beyond", [0, 1, 8])
def test_a_range_that_ends_with_the_memory_is_taken_and_a_longer_one_left_to_python(addresses, what, beyond):
    name, put = ENDS[what]
    caller = Caller()
    params = put(caller, END + beyond)
    caller.memory_bytes = END
    caller.call(addresses[name], *params)
    assert caller.fallbacks == (beyond > 0)
    assert not (beyond and caller.driver.calls)


@pytest.mark.parametrize("name", ["wasi_cuda_launch", "wasi_cuda_launch_async"])
@pytest.mark.rule("2-argv")
def test_memory_that_changes_after_the_records_were_copied_changes_nothing(addresses, name):
    """The guest's memory lies where the function itself writes the values: whatever it reads there again is another."""
    caller, numbers = Caller(), [struct.pack("<Q", 0x0101_0101_0101_0101 * (index + 3)) for index in range(16)]
    put_kernel(caller, params=len(numbers))
    argv = encode_argv([NumberArg("u64", number) for number in numbers])
    ahead = len(argv) // len(numbers)
    caller.memory_at, caller.memory_bytes = ctypes.addressof(caller.scratch.values) - ahead, len(argv)
    caller.remember = lambda: ctypes.memmove(caller.memory_at, argv, len(argv))
    assert caller.call(addresses[name], KERNEL, *ONES, 0, 0, len(argv), 0) == 0
    assert ctypes.string_at(caller.memory_at, len(argv)) != argv
    (started,) = caller.driver.calls
    assert isinstance(started, Started)
    assert started.values == tuple(numbers)


@pytest.mark.rule("2-argv")
def test_a_table_that_changes_after_it_was_copied_changes_nothing(addresses):
    """The guest's memory lies where the function itself puts the first piece: the table there is another then."""
    caller, pieces, far = Caller(), struct.pack("<4I", 32, 16, 48, 8), struct.pack("<2I", 1 << 31, 1 << 31)
    caller.memory_bytes = 64
    caller.memory_at = ctypes.addressof(caller.output)
    ctypes.memmove(caller.memory_at, pieces + bytes(16) + far * 2 + b"behind..", 56)
    caller.layout.output[0] = OutputRow(caller.memory_at, 0, 64)
    assert caller.call(addresses["fd_write"], 1, 0, 2, 60) == 0
    assert (caller.fallbacks, caller.layout.output[0].held_bytes) == (0, 24)
    assert ctypes.string_at(caller.memory_at, 24) == far * 2 + b"behind.."
