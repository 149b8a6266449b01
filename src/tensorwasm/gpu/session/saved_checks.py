"""Checks of a saved session, which comes from elsewhere, and the numbers that a session gives out next.

Quotas are charged, and texts are parsed, later: as if the guest itself had asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tensorwasm.errors import InvalidSnapshot
from tensorwasm.gpu.native.layout import STREAM_ROWS
from tensorwasm.gpu.session.core import SessionCore
from tensorwasm.gpu.state.numbered import OWN
from tensorwasm.saved import PAGE_BYTES, SavedBuffer, SavedKernel, SavedRun, SavedSession
from tensorwasm.values import MEMORY_KINDS

NAMES: Final = ("handle", "kernel", "stream", "event", "graph")
"""What has numbers, as `tensorwasm.saved.SavedSession.next_numbers` calls it."""
MAX_NUMBER: Final = (1 << 63) - (1 << 16)
"""Largest number that may be given next: those after it are left for what a session makes in its life."""
MAX_SIZE_BYTES: Final = (1 << 63) - 1


def next_numbers(core: SessionCore) -> dict[str, int]:
    """Return the numbers that a session gives out next, by `NAMES`; that of kernels is 0 while none was ever loaded."""
    return {
        "handle": core.table.buffers.next_number,
        "kernel": core.layout.next_kernel,
        "stream": core.work.streams.next_number,
        "event": core.events.next_number,
        "graph": core.graphs.next_number,
    }


def set_numbers(core: SessionCore, numbers: Mapping[str, int]) -> None:
    """Change the next numbers that are named; none of them is taken, nor any after it."""
    now = {**next_numbers(core), **numbers}
    core.table.buffers.next_number, core.layout.next_kernel = now["handle"], now["kernel"]
    core.work.streams.next_number, core.events.next_number = now["stream"], now["event"]
    core.graphs.next_number = now["graph"]


def check_session(saved: SavedSession) -> dict[str, int]:
    """Check a saved session and return its next numbers, a missing one being the first that is free.

    That of kernels is left out if none was ever loaded: theirs may begin anywhere.

    Raises:
        InvalidSnapshot: it contradicts itself; the message says where.
    """
    _require(isinstance(saved, SavedSession), "the session")
    check_buffers(saved.buffers)
    _check_all(saved.kernels, SavedKernel, "kernel")
    _check_numbers([kernel.kernel_id for kernel in saved.kernels], "kernel")
    texts = all(isinstance(kernel.text, bytes) and isinstance(kernel.entry, str) for kernel in saved.kernels)
    _require(texts, "a kernel")
    for what, numbers in (("stream", saved.streams), ("event", saved.events)):
        _check_all(numbers, int, what)
        _check_numbers(sorted(numbers), what)
    rows = [number % STREAM_ROWS for number in saved.streams]
    _require(OWN not in rows and len(set(rows)) == len(rows), "two streams in one place")
    _require(saved.memory_kind in MEMORY_KINDS, "the kind of memory")
    return _next_numbers(saved)


def check_buffers(buffers: Sequence[SavedBuffer]) -> None:
    """Check the buffers of a saved session; as `check_session`."""
    _check_all(buffers, SavedBuffer, "buffer")
    _check_numbers([buffer.handle for buffer in buffers], "buffer")
    for buffer in buffers:
        what = f"buffer {buffer.handle}"
        _check_integer(buffer.size_bytes, 1, MAX_SIZE_BYTES, f"the size of {what}")
        _check_runs(buffer.runs, buffer.size_bytes, what)


def _check_runs(runs: Sequence[SavedRun], size_bytes: int, what: str) -> None:
    _check_all(runs, SavedRun, f"run of {what}")
    end = 0
    for run in runs:
        _require(isinstance(run.data, (bytes, memoryview)), f"the bytes of {what}")
        if isinstance(run.data, memoryview):
            _require(run.data.contiguous and run.data.format == "B" and run.data.ndim == 1, f"the bytes of {what}")
        _check_integer(run.offset_bytes, end, size_bytes - 1, f"the place of bytes of {what}")
        end = run.offset_bytes + len(run.data)
        whole = not run.offset_bytes % PAGE_BYTES and (not end % PAGE_BYTES or end == size_bytes)
        _require(whole and run.offset_bytes < end <= size_bytes, f"the length of bytes of {what}")


def _next_numbers(saved: SavedSession) -> dict[str, int]:
    taken: dict[str, Iterable[int]] = {
        "handle": (buffer.handle for buffer in saved.buffers),
        "kernel": (kernel.kernel_id for kernel in saved.kernels),
        "stream": saved.streams,
        "event": saved.events,
        "graph": (),
    }
    free = {name: max(numbers, default=0) + 1 for name, numbers in taken.items()}
    if not saved.kernels:
        free["kernel"] = 0
    pairs = saved.next_numbers
    _check_all(pairs, tuple, "next number")
    _require(all(len(pair) == 2 and pair[0] in NAMES for pair in pairs), "the next numbers")
    _require(len({name for name, _ in pairs}) == len(pairs), "the next numbers")
    for name, number in pairs:
        _check_integer(number, free[name], MAX_NUMBER, f"the next {name}")
    return {name: number for name, number in {**free, **dict(pairs)}.items() if number}


def _check_all(items: Sequence[object], kind: type, what: str) -> None:
    _require(isinstance(items, tuple) and all(isinstance(item, kind) for item in items), f"a {what}")


def _check_numbers(numbers: Iterable[int], what: str) -> None:
    """Check that numbers ascend, and leave room for those after them."""
    before = 0
    for number in numbers:
        _check_integer(number, before + 1, MAX_NUMBER - 1, f"the number of a {what}")
        before = number


def _check_integer(value: object, least: int, most: int, what: str) -> None:
    _require(type(value) is int and least <= value <= most, what)


def _require(holds: bool, what: str) -> None:  # noqa: FBT001 - the condition is what it is about
    if not holds:
        raise InvalidSnapshot(f"the saved GPU session makes no sense: {what}")
