"""The limits of a launch and of a session; the ABI's documents are generated from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.values import MIB

MOST_MOVES: Final = 4
"""Parts of memory that are moved ahead of one launch: each takes room in the driver's queues, as a launch does."""

GIB: Final = 1024 * MIB

MAX_BLOCK_THREADS_PER_AXIS: Final = 1024
MAX_BLOCK_THREADS: Final = 1024
MAX_GRID_BLOCKS_PER_AXIS: Final = (1 << 31) - 1
MAX_DYNAMIC_SHARED_BYTES: Final = 228 << 10
GUARDED_PIECES: Final = 4096
"""Most pieces of work of one launch, graph or copy of guarded kernels. Once it is to stop, each of them is gone in some
10 us, measured on an H200: a launch, `GUARDED_PIECE_SHARES` of a multiprocessor that its blocks take, or a copy of
`GUARDED_PIECE_BYTES`, which goes on."""
GUARDED_PIECE_SHARES: Final = 64
"""For each multiprocessor: twice as many blocks as it can hold, since a block begins and stops in 2 us, and in up to 5
if threads have local memory: then they count twice."""
MULTIPROCESSOR_SHARES: Final = 32
"""A block takes as many of them as its part of the threads, the registers or the shared memory, of an H200, is."""
MULTIPROCESSOR_THREADS: Final = 2048
MULTIPROCESSOR_REGISTERS: Final = 65536
GUARDED_PIECE_BYTES: Final = 512 << 10

MAX_GUARDED_REGISTERS: Final = 255
"""Registers of a thread of a guarded kernel: what instructions can name. A larger number was misread."""
MAX_GUARDED_LOCAL_BYTES: Final = 40 << 10
"""Local memory of a thread of a guarded kernel: 32 KiB for the guard's array, and what ptxas spills besides.
The driver reserves it for every thread that the GPU can hold, outside of every account: 8 KiB are 2.1 GiB of an H200,
which holds 132 * 2048. ptxas itself stops at no number that helps (600 KB passed). The most of the corpus is 1 KiB."""
MAX_GUARDED_SHARED_BYTES: Final = 48 << 10
"""Static shared memory of a block of a guarded kernel, what every GPU has: ptxas must not add to the guard's array."""
MAX_GUARDED_IMAGE_BYTES: Final = 4 * MIB
"""A guarded kernel compiled, which lies in memory of the device outside of every account. The most of the corpus is
46 KiB; unrolled loops make much of a short text."""

MAX_PROCESS_DEVICE_BYTES: Final = 64 * GIB
MAX_PROCESS_ALLOCATIONS: Final = 16384
MAX_CONCURRENT_OPERATIONS: Final = 256
DEADLINE_NEAR_S: Final = 0.050
GUARDED_UNLOOKED_NS: Final = 10_000_000
"""How long after a launch is submitted its blocks begin without a look whether they are to stop."""

STAGE_SLOTS: Final = 64
STAGE_SLOT_BYTES: Final = 256 << 10
PIN_PRICE_BYTES: Final = 5 * MIB // 2
"""What registering a guest's memory costs besides half its size, in bytes that could have been staged for it.

Measured on an H200: registering costs 250 us and 0.04 ns a byte of the memory, staging 0.09 ns a byte of the windows.
Once these and half as many bytes as the memory has are staged, registering would have cost no more; registering then
costs at most twice the optimum, whatever the guest does next.

Source: Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy caching", Algorithmica 3, 1988.
"""
PIN_COPY_BYTES: Final = 64 << 10
"""Bytes from which a copy that waits registers the guest's memory first."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session may hold.

    Attributes:
        total_ptx_bytes: all PTX texts together.
        allocation_bytes: one device buffer, or the variables of one PTX module.
        device_bytes: live device buffers and module variables together.
        streams: live streams, the instance's own not counted.
        graphs: live graphs, those being recorded included.
        graph_launches: launches and copies recorded in one graph.
    """

    ptx_bytes: int = 8 * MIB
    total_ptx_bytes: int = 512 * MIB
    kernels: int = 256
    allocation_bytes: int = 256 * MIB
    allocations: int = 4096
    device_bytes: int = 4 * GIB
    streams: int = 16
    events: int = 256
    graphs: int = 32
    graph_launches: int = 4096
