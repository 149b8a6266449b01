"""The names of WASI preview 1, and the two functions that replace wasmtime's.

wasmtime's ``poll_oneoff`` sleeps past deadlines; ours wakes at the deadline and on cancellation. Its ``proc_exit``
refuses codes from 126 up; ours takes all.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Generator
from typing import Final

from tensorwasm.errors import GuestExit, InvalidPointer
from tensorwasm.guest.imports.host_function import HostCall, HostFunction
from tensorwasm.guest.imports.suspension import Sleep
from tensorwasm.guest.sandbox.state import GuestState

MODULE: Final = "wasi_snapshot_preview1"
_NAMES: Final = """
args_get args_sizes_get clock_res_get clock_time_get environ_get environ_sizes_get fd_advise fd_allocate fd_close
fd_datasync fd_fdstat_get fd_fdstat_set_flags fd_fdstat_set_rights fd_filestat_get fd_filestat_set_size
fd_filestat_set_times fd_pread fd_prestat_dir_name fd_prestat_get fd_pwrite fd_read fd_readdir fd_renumber fd_seek
fd_sync fd_tell fd_write path_create_directory path_filestat_get path_filestat_set_times path_link path_open
path_readlink path_remove_directory path_rename path_symlink path_unlink_file poll_oneoff proc_exit proc_raise
random_get sched_yield sock_accept sock_recv sock_send sock_shutdown
"""
FUNCTIONS: Final = frozenset(_NAMES.split())

# Error codes, subscriptions of 48 bytes, events of 32.
_SUCCESS: Final = 0
_FAULT: Final = 21
_INVAL: Final = 28
_NOTSUP: Final = 58
_CLOCK: Final = 0
_FD_WRITE: Final = 2
_REALTIME: Final = 0
_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_MAX_SUBSCRIPTIONS: Final = 1024
_SUBSCRIPTION: Final = struct.Struct("<QB7xI4xQQH6x")
_EVENT: Final = struct.Struct("<QHB5xQH6x")
_COUNT: Final = struct.Struct("<I")


def poll_oneoff(state: GuestState, subscriptions: int, events: int, count: int, stored: int) -> int:
    """Wait until a clock fires, but never past the deadline; files are always ready. Returns 0 or the WASI error code.

    Raises what `GuestState.sleep` raises. Source: WASI preview 1, ``poll_oneoff``.
    """
    steps = poll_in_steps(state, subscriptions, events, count, stored)
    while True:
        try:
            state.sleep(next(steps).seconds)
        except StopIteration as ended:
            answer: int = ended.value
            return answer


def poll_in_steps(
    call: HostCall, subscriptions: int, events: int, count: int, stored: int
) -> Generator[Sleep, None, int]:
    """Do the same as `poll_oneoff`; the caller does the waiting."""
    subscriptions, events, stored = subscriptions & 0xFFFFFFFF, events & 0xFFFFFFFF, stored & 0xFFFFFFFF
    if not 0 < count <= _MAX_SUBSCRIPTIONS:
        return _INVAL
    try:
        asked = call.memory.read(subscriptions, _SUBSCRIPTION.size * count)
        call.memory.view(events, _EVENT.size * count)
        call.memory.view(stored, _COUNT.size)
        waits = [_due(call, fields) for fields in _SUBSCRIPTION.iter_unpack(asked)]
        soonest_ns = max(0, min(wait_ns for wait_ns, _ in waits))
        if soonest_ns:
            yield Sleep(soonest_ns / 1e9)
        happened = b"".join(event for wait_ns, event in waits if wait_ns <= soonest_ns)
        call.memory.write(events, happened)
        call.memory.write(stored, _COUNT.pack(len(happened) // _EVENT.size))
    except InvalidPointer:
        return _FAULT
    return _SUCCESS


def _due(call: HostCall, fields: tuple[int, ...]) -> tuple[int, bytes]:
    """Return in how many nanoseconds a subscription fires, and the event that it then makes."""
    userdata, kind, clock, timeout_ns, _, flags = fields
    if kind != _CLOCK:
        error = _SUCCESS if kind <= _FD_WRITE else _INVAL
        return 0, _EVENT.pack(userdata, error, kind, 1, 0)
    if clock not in (_REALTIME, _MONOTONIC):
        return 0, _EVENT.pack(userdata, _NOTSUP, kind, 0, 0)
    if flags & _ABSOLUTE:
        origin_ns = call.wasi.clock_origin_ns if call.wasi is not None else 0
        now_ns = time.time_ns() if clock == _REALTIME else time.monotonic_ns() - origin_ns
        timeout_ns = max(0, timeout_ns - now_ns)
    return timeout_ns, _EVENT.pack(userdata, _SUCCESS, kind, 0, 0)


def proc_exit(_state: GuestState, code: int) -> None:
    """Raise `GuestExit`; `Instance.call` turns code 0 into a normal end. Codes over 255 become 255.

    Source: WASI preview 1, ``proc_exit``.
    """
    raise GuestExit(min(code & 0xFFFFFFFF, 255))


REPLACED: Final = (
    HostFunction(
        MODULE, "poll_oneoff", ("i32", "i32", "i32", "i32"), ("i32",), poll_oneoff, waits=True, steps=poll_in_steps
    ),
    HostFunction(MODULE, "proc_exit", ("i32",), (), proc_exit),
)
