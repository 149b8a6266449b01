"""What compiled code has to know of a session, as plain C structures.

A session writes its layout (`tensorwasm.gpu.native.layout_writer`); compiled host functions (`tensorwasm.guest.native`)
read it while the guest runs, without Python and without a lock. Only the thread that runs the guest, or holds it while
it is suspended, touches a layout. What it does not hold, or what needs a decision, goes to Python, which asks the
session; a layout that is not `armed` sends everything there.

The ``_fields_`` of each structure are the one table of its fields: the writer's words and the offsets that compiled
code uses are derived from them. Every number is a little-endian uint64 unless it says otherwise. Handle 0 means an
empty row. The tables of buffers, kernels, streams and graphs are direct-mapped by the low bits of the handle: a miss
goes to Python, and the newest wins.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Final

from tensorwasm.gpu.device import limits
from tensorwasm.gpu.device.protocols import NativeKernel, NativeTable
from tensorwasm.values import Dim3, KernelSignature

if TYPE_CHECKING:
    from tensorwasm.gpu.device.guarded_kernel import GuardedKernel

KERNEL_ROWS: Final = 64
BUFFER_ROWS: Final = 256
STREAM_ROWS: Final = 32
GRAPH_ROWS: Final = 32
MAX_ARGS: Final = 128
MAX_ARGV_BYTES: Final = 4096
WAIT_PARAMS: Final = 16
LAUNCH_WORDS: Final = 8
"""Of the last parameter of a wide guarded kernel (`tensorwasm.ptx.guarded`); a narrow one reads 7 of them."""
OFFER_ROWS: Final = 8
LOAD_ROWS: Final = 16
OUTPUT_ROWS: Final = 2
OUTPUT_ROOM_BYTES: Final = 4096
"""Of each row; libraries of languages write 1 KiB at a time."""
CLEAR_ROWS: Final = 4
CLEARING_STARTED: Final = 1
CLEARING_REFUSED: Final = 2
"""Values of `SessionLayout.clearing`."""
NO_DEADLINE_NS: Final = (1 << 64) - 1
UNBOUNDED: Final = 1 << 62
"""More than can ever be pending."""
WORD_BYTES: Final = 8
_REGISTER_GRAIN: Final = 8
_WARP_LANES: Final = 32
_BLOCK_SHARED_BYTES: Final = 1 << 10
"""Shared memory of each block that the system has for itself."""
_SHARES: Final = limits.MULTIPROCESSOR_SHARES

_u64 = ctypes.c_uint64


def word_offsets(structure: type[ctypes.Structure]) -> dict[str, int]:
    """Return where each field of a structure begins, in words."""
    return {field[0]: int(getattr(structure, field[0]).offset) // WORD_BYTES for field in structure._fields_}


class DriverTable(ctypes.Structure):
    """`tensorwasm.gpu.device.protocols.NativeTable`, in its order."""

    _fields_ = tuple((name, _u64) for name in NativeTable.__dataclass_fields__)


class ParamRow(ctypes.Structure):
    """One parameter of a kernel: its bytes (4 or 8), whether it is used as a pointer, and the alignment that needs."""

    _fields_ = (("size_bytes", _u64), ("pointer", _u64), ("align_bytes", _u64))


class KernelHead(ctypes.Structure):
    """A kernel, followed in memory by ``param_count`` rows of `ParamRow`. Never changes once made.

    ``passable`` is 0 if a parameter cannot be passed as a record: Python then says which. ``required`` is the block
    that the kernel demands, zeros if none. ``max_shared_bytes`` bounds dynamic shared memory. ``guarded`` is 1 for a
    guarded kernel, which takes one parameter more, ``dynamic`` if the launch says how much shared memory there is; that
    and the fields behind it are of `tensorwasm.gpu.device.guarded_kernel.SharedNeeds`. ``whole_rows`` and
    ``whole_warps`` are those of `tensorwasm.ptx.verifier.Verified`. ``thread_registers``, ``static_bytes`` and
    ``piece_shares``, which is 0 for a kernel whose launch is one piece of work, are for `KernelImage.pieces`.
    """

    _fields_ = (
        ("function", _u64),
        ("passable", _u64),
        ("param_count", _u64),
        ("max_threads", _u64),
        ("max_shared_bytes", _u64),
        ("max_grid", _u64 * 3),
        ("max_block", _u64 * 3),
        ("required", _u64 * 3),
        ("guarded", _u64),
        ("dynamic", _u64),
        ("program_bytes", _u64),
        ("reserve_bytes", _u64),
        ("least_bytes", _u64),
        ("whole_rows", _u64),
        ("whole_warps", _u64),
        ("thread_registers", _u64),
        ("static_bytes", _u64),
        ("piece_shares", _u64),
    )


class KernelRow(ctypes.Structure):
    """A kernel id, the address of its `KernelHead`, and that of the session's copy of its module's variables."""

    _fields_ = (("id", _u64), ("head", _u64), ("data", _u64))


class BufferRow(ctypes.Structure):
    """A device buffer."""

    _fields_ = (("handle", _u64), ("address", _u64), ("size_bytes", _u64))


class StreamRow(ctypes.Structure):
    """A stream by the number that guests use (0 is the instance's own), the driver's handle, and work since its drain.

    A row is valid if ``stream`` is not 0. ``recording`` says that it captures a graph.
    """

    _fields_ = (("number", _u64), ("stream", _u64), ("pending", _u64), ("recording", _u64))


class GraphRow(ctypes.Structure):
    """A graph that may be replayed now, its number of launches, and how many pieces of work it is."""

    _fields_ = (("handle", _u64), ("graph", _u64), ("launches", _u64), ("pieces", _u64))


class WindowRow(ctypes.Structure):
    """A merged window of a staged launch: where in linear memory, how long, and where in the staging slot."""

    _fields_ = (("offset", _u64), ("length_bytes", _u64), ("place", _u64))


class ClearRow(ctypes.Structure):
    """A part of a session's window that compiled code clears for the next guest, as the device reaches it."""

    _fields_ = (("address", _u64), ("size_bytes", _u64))


class OfferRow(ctypes.Structure):
    """A kernel for a guest that brings this very text and entry: both as bytes, and its head."""

    _fields_ = (("text", _u64), ("text_bytes", _u64), ("entry", _u64), ("entry_bytes", _u64), ("head", _u64))


class OutputRow(ctypes.Structure):
    """What a guest has written to a stream, how much that is, and how much more fits; that is 0 to ask Python."""

    _fields_ = (("address", _u64), ("held_bytes", _u64), ("left_bytes", _u64))


class Wait(ctypes.Structure):
    """What a suspended guest waits for, read by `tensorwasm.guest.reactor.reactor` while the guest does not run.

    Attributes:
        kind: what the guest waits for, a `tensorwasm.guest.imports.suspension.SuspensionKind`.
        function: number of the host function that it called, in its linker.
        cells: that function's parameters, 16 bytes apart, as compiled host functions take them.
        done: 1 once the answer has been written and the guest may go on.
        results_at, trap_at: where wasmtime wants the answer.
        memory_at, memory_bytes: the guest's exported memory as it is during the wait; zeros if it has none.
        next, queue: links the layout into the list of the reactor at the address ``queue`` once it was notified.
        item: room for one export.
    """

    _fields_ = (
        ("kind", _u64),
        ("function", _u64),
        ("cells", _u64 * (2 * WAIT_PARAMS)),
        ("done", _u64),
        ("results_at", _u64),
        ("trap_at", _u64),
        ("memory_at", _u64),
        ("memory_bytes", _u64),
        ("next", _u64),
        ("queue", _u64),
        ("item", _u64 * 4),
    )


class Scratch(ctypes.Structure):
    """Memory for one host call at a time: of the thread that runs guests, not of a guest."""

    _fields_ = (
        ("argv", ctypes.c_ubyte * (MAX_ARGV_BYTES + 8)),
        ("values", _u64 * MAX_ARGS),
        ("pointers", _u64 * (MAX_ARGS + 1)),
        ("launch", _u64 * LAUNCH_WORDS),
        ("windows", _u64 * (4 * MAX_ARGS)),
    )


class SessionLayout(ctypes.Structure):
    """The layout of one session.

    Attributes:
        armed: 1 when compiled code may act: granted, healthy and bound.
        deadline_ns: of the guest's current call, on the monotonic clock; `NO_DEADLINE_NS` for none.
        memory: the ``wasmtime_memory_t`` of the guest's exported memory; zeros until known.
        reach_at, reach_bytes: part of linear memory that the device reaches in place, by the host's addresses; 0 for
            none.
        reach_displacement: what is added to an address there for the device's, modulo 2**64.
        placed: 1 while the session holds a permit at the gate. The gate may take it back while nothing is pending.
        pending: launches, copies and events given to any stream since all were last seen drained; of a replayed graph
            all that it holds.
        most_pending: how many may be; `UNBOUNDED` for a guest that has a thread of its own to wait in the driver.
        launched, replayed, copied_bytes, refusals: counters that only grow; Python reads them.
        waited_ns: how long the guest of the current call has waited for the device.
        driver: address of a `DriverTable`.
        scratch: address of the `Scratch` of the thread that runs the guest now.
        stage_at, stage_bytes: the staging slot, as the device reaches it; 0 for none.
        stage_view: where the host reaches it.
        stage_used: high-water mark in it: what has to be cleared.
        staged: windows of the staged launch that is in flight, to be copied back.
        stage_left: bytes of the slot that launches may still use, all together, before Python decides whether the
            guest's memory is registered instead.
        next_kernel: id of the kernel that is loaded next; 0 before the first.
        budget: how many offered kernels compiled code may still load; it is within every limit of the session then.
        loads, loaded_bytes: kernels that compiled code has loaded and Python has not adopted yet, and the bytes of
            their texts. They have the ids before ``next_kernel``.
        loaded: the rows of their offers.
        output: the guest's standard output and standard error.
        visited: 1 while compiled code has made the guest's sandbox and will end it.
        window_at: the session's window, 0 without a guard.
        window_mask: of it (`tensorwasm.gpu.device.address_windows.window_mask`).
        flag_at, status_at: the session's stop word (`tensorwasm.gpu.resources.stop_words`).
        timer_offset: of the device (`Device.timer_offset_ns`), modulo 2**64.
        clearing: after compiled code has told the device, on stream 0, to clear the rows of ``clear``, until it was
            seen to have done it: `CLEARING_STARTED`, or `CLEARING_REFUSED` if it did not take all of that.
        clear: all of the window that its kernels can have written to; empty if Python has to clear it.
    """

    _fields_ = (
        ("armed", _u64),
        ("deadline_ns", _u64),
        ("memory", _u64 * 3),
        ("reach_at", _u64),
        ("reach_bytes", _u64),
        ("reach_displacement", _u64),
        ("placed", _u64),
        ("pending", _u64),
        ("most_pending", _u64),
        ("launched", _u64),
        ("replayed", _u64),
        ("copied_bytes", _u64),
        ("refusals", _u64),
        ("waited_ns", _u64),
        ("driver", _u64),
        ("scratch", _u64),
        ("stage_at", _u64),
        ("stage_bytes", _u64),
        ("stage_view", _u64),
        ("stage_used", _u64),
        ("staged", _u64),
        ("stage_left", _u64),
        ("wait", Wait),
        ("next_kernel", _u64),
        ("budget", _u64),
        ("loads", _u64),
        ("loaded_bytes", _u64),
        ("loaded", _u64 * LOAD_ROWS),
        ("output", OutputRow * OUTPUT_ROWS),
        ("visited", _u64),
        ("window_at", _u64),
        ("window_mask", _u64),
        ("flag_at", _u64),
        ("status_at", _u64),
        ("timer_offset", _u64),
        ("clearing", _u64),
        ("clear", ClearRow * CLEAR_ROWS),
        ("offers", OfferRow * OFFER_ROWS),
        ("streams", StreamRow * STREAM_ROWS),
        ("kernels", KernelRow * KERNEL_ROWS),
        ("graphs", GraphRow * GRAPH_ROWS),
        ("buffers", BufferRow * BUFFER_ROWS),
        ("windows", WindowRow * MAX_ARGS),
    )


class KernelImage:
    """A kernel in the form that layouts point to. Immutable; its owner keeps it alive while a layout has its address.

    Args:
        signature: what launches give.
        native: the device's kernel.
        guarded: what a guarded kernel needs.
        multiprocessors: of the device.

    Attributes:
        address: of its `KernelHead`.
    """

    __slots__ = ("_head", "_memory", "address")

    def __init__(
        self, signature: KernelSignature, native: NativeKernel, guarded: GuardedKernel | None, multiprocessors: int
    ) -> None:
        rows = [ParamRow(param.size_bytes, int(param.pointer), param.access_align_bytes) for param in signature.params]
        passable = len(rows) <= MAX_ARGS and all(
            param.scalar and param.size_bytes in (4, 8) and (not param.pointer or param.size_bytes == 8)
            for param in signature.params
        )
        head = KernelHead(
            function=native.handle,
            passable=int(passable),
            param_count=len(rows),
            max_threads=min(native.max_threads, signature.max_threads),
            max_shared_bytes=native.max_dynamic_shared_bytes,
            max_grid=native.max_grid,
            max_block=native.max_block,
            required=signature.required_block or (0, 0, 0),
        )
        if guarded is not None:
            _put_guarded(head, guarded, native.registers, multiprocessors)
        self._head = head
        data = bytes(head) + b"".join(map(bytes, rows))
        self._memory = (_u64 * (len(data) // 8)).from_buffer_copy(data)
        self.address = ctypes.addressof(self._memory)

    def pieces(self, grid: Dim3, block: Dim3, shared_bytes: int) -> int:
        """Return how many pieces of work a launch with so much dynamic shared memory is.

        A launch that is to stop is gone once all its blocks have begun. How many begin at a time is what its
        multiprocessors have room for.
        """
        head = self._head
        if not head.piece_shares:
            return 1
        threads = math.prod(block) + -math.prod(block) % _WARP_LANES
        of_registers: int = -(-threads * head.thread_registers * _SHARES // limits.MULTIPROCESSOR_REGISTERS)
        all_bytes = head.static_bytes + head.max_shared_bytes
        of_shared: int = -(-(head.static_bytes + shared_bytes) * _SHARES // all_bytes)
        return 1 + math.prod(grid) * min(max(of_registers, of_shared), _SHARES) // int(head.piece_shares)


def _put_guarded(head: KernelHead, guarded: GuardedKernel, registers: int, multiprocessors: int) -> None:
    head.guarded = 1
    head.dynamic, head.program_bytes = int(guarded.shared.dynamic), guarded.shared.program_bytes
    head.reserve_bytes, head.least_bytes = guarded.shared.reserve_bytes, guarded.shared.least_bytes
    head.whole_rows, head.whole_warps = int(guarded.verified.whole_rows), int(guarded.verified.whole_warps)
    least = limits.MULTIPROCESSOR_REGISTERS // limits.MULTIPROCESSOR_THREADS
    head.thread_registers = max(registers + -registers % _REGISTER_GRAIN, least)
    arrays = guarded.verified.arrays
    head.static_bytes = arrays.shared_bytes + _BLOCK_SHARED_BYTES
    head.piece_shares = limits.GUARDED_PIECE_SHARES * multiprocessors // (1 + bool(arrays.local_bytes))


def driver_table(table: NativeTable) -> DriverTable:
    """Return a table of addresses in the form that layouts point to; the caller keeps it alive."""
    return DriverTable(*(getattr(table, name) for name in NativeTable.__dataclass_fields__))
