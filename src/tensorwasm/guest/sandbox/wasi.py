"""WASI preview 1: wasmtime's implementation, with our own output, ``poll_oneoff`` and ``proc_exit``.

wasmtime's ``poll_oneoff`` sleeps past deadlines; ours wakes at the deadline and on cancellation. Its ``proc_exit``
refuses codes from 126 up; ours takes all.

The guest inherits nothing by default. Arguments, environment and standard input are values; output is captured or
passed to a callable; directories are visible only when granted. Clocks and random numbers are the host's. There are no
sockets.

Nothing else waits: standard input is bytes, output goes to memory. Two exceptions ignore deadlines: the process's own
standard input, given as `INHERIT`, and opening a named pipe or a device of a granted directory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tensorwasm.errors import GuestExit, InternalError, InvalidArgs, InvalidPointer
from tensorwasm.gpu.native.layout import OutputRow
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.imports.host_function import HostCall, HostFunction
from tensorwasm.guest.imports.suspension import Sleep
from tensorwasm.guest.sandbox.state import STATES, GuestState, as_raised
from tensorwasm.guest.sandbox.wasi_io import INHERIT, Directory, GuestOutput, Inherit, Mounts, Sink, WasiState
from tensorwasm.yielding import yield_gil_on_foreign_thread

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


@dataclass(frozen=True, slots=True)
class WasiConfig:
    """What a guest gets through WASI: arguments, environment, all of standard input, directories.

    Output goes to ``stdout`` and ``stderr``, which get each chunk that the guest writes, on the guest's thread; None
    captures. What they raise reaches the guest as a failed write and soon ends the call. `INHERIT` has no limit.
    """

    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    stdin: bytes | Inherit = b""
    stdout: Sink | Inherit | None = None
    stderr: Sink | Inherit | None = None
    directories: tuple[Directory, ...] = ()


NO_WASI: Final = WasiConfig()
"""Nothing."""


def attach(state: GuestState, config: WasiConfig, output_bytes: int) -> WasiState:
    """Give the store of a sandbox its WASI context; otherwise as `prepare`."""
    made, address = prepare(state.token, config, output_bytes)
    error = KEEPING.wasmtime_context_set_wasi(state.context, address)
    if error:
        made.close()
        raise InternalError(f"wasmtime refused a WASI context: {traps.explain(error)}")
    return made


def prepare(token: int, config: WasiConfig, output_bytes: int, rows: Sequence[OutputRow] = ()) -> tuple[WasiState, int]:
    """Return the host's side of a WASI context, and the ``wasi_config_t`` that becomes a store's.

    Args:
        token: of the sandbox.
        config: what its guest gets.
        output_bytes: most that each output stream takes.
        rows: of the session layout, if output goes to the host without wasmtime
            (`tensorwasm.guest.sandbox.wasi_stdio`).

    Raises:
        InvalidArgs: an argument, variable or path holds a NUL, or a folder or file cannot be given.
    """
    mounts = Mounts(config.directories) if config.directories else None
    address = KEEPING.wasi_config_new()
    try:
        _configure(address, token, config, stdio=bool(rows))
        for host_path, guest_path, writable in mounts.preopened if mounts is not None else ():
            host, guest = _strings((host_path, guest_path))
            opened = RELEASING.wasi_config_preopen_dir(address, host, guest, writable)
            _require(opened, f"the folder {host_path!r} cannot be opened")
    except BaseException:
        KEEPING.wasi_config_delete(address)
        if mounts is not None:
            mounts.close()
        raise
    out_row, err_row = rows or (None, None)
    out, err = _output(config.stdout, output_bytes, 1, out_row), _output(config.stderr, output_bytes, 2, err_row)
    streams = {0: None, 1: out, 2: err} if rows else {}
    return WasiState(out, err, time.monotonic_ns(), mounts, streams), address


def _output(sink: Sink | Inherit | None, output_bytes: int, descriptor: int, row: OutputRow | None) -> GuestOutput:
    """Return where an output stream goes; for `INHERIT` what comes here goes to the process's own, without a limit."""
    if sink is INHERIT:
        return GuestOutput(sys.maxsize, partial(_write_all, descriptor), row)
    return GuestOutput(output_bytes, sink, row)


def _write_all(descriptor: int, chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


def renew(state: GuestState, config: WasiConfig, output_bytes: int) -> WasiState:
    """Replace the WASI context of a sandbox's store, and write the output so far to the new streams.

    Raises what `attach` raises, what a sink raised, or `InternalError` if a sink failed.
    """
    before, after = state.wasi, attach(state, config, output_bytes)
    if before is not None:
        for stream, old, new in (("stdout", before.stdout, after.stdout), ("stderr", before.stderr, after.stderr)):
            try:
                new.take(old.captured)
            except BaseException as error:  # noqa: BLE001 - as if the guest wrote it now, in the call
                raise as_raised(error, f"the {stream} sink") from error.__cause__
            new.truncated = old.truncated
    return after


def _configure(address: int, token: int, config: WasiConfig, *, stdio: bool) -> None:
    args = config.args
    if args and not KEEPING.wasi_config_set_argv(address, len(args), _strings(args)):
        raise InvalidArgs("the arguments are not text")
    if config.env:
        names, values = zip(*config.env, strict=True)
        environment = len(config.env), _strings(names), _strings(values)
        _require(KEEPING.wasi_config_set_env(address, *environment), "the environment is not text")
    if config.stdin is INHERIT:
        KEEPING.wasi_config_inherit_stdin(address)
    elif config.stdin:
        vector = (ctypes.c_size_t * 2)()
        KEEPING.wasm_byte_vec_new(vector, len(config.stdin), config.stdin)
        KEEPING.wasi_config_set_stdin_bytes(address, vector)
    if config.stdout is INHERIT:
        KEEPING.wasi_config_inherit_stdout(address)
    elif not stdio:
        KEEPING.wasi_config_set_stdout_custom(address, _ON_STDOUT, token, None)
    if config.stderr is INHERIT:
        KEEPING.wasi_config_inherit_stderr(address)
    elif not stdio:
        KEEPING.wasi_config_set_stderr_custom(address, _ON_STDERR, token, None)


def _require(fits: bool, message: str) -> None:  # noqa: FBT001 - the answer of a C function
    if not fits:
        raise InvalidArgs(message)


def _strings(texts: tuple[str, ...]) -> ctypes.Array[ctypes.c_char_p]:
    if "\0" in "".join(texts):
        text = next(text for text in texts if "\0" in text)
        raise InvalidArgs(f"text for a guest holds a NUL character: {text[:40]!r}")
    try:
        return (ctypes.c_char_p * len(texts))(*map(str.encode, texts))
    except UnicodeEncodeError:
        raise InvalidArgs("text for a guest is not Unicode") from None


def _make_writer(stream: str) -> Callable[[int, int, int], int]:
    def write(token: int, data: int, length: int) -> int:
        state = None
        try:
            state = STATES[token]
            yield_gil_on_foreign_thread()  # this is a thread of wasmtime's, never an event loop's
            return length if getattr(state.wasi, stream).take(ctypes.string_at(data, length)) else -errno.ENOSPC
        except BaseException as error:  # noqa: BLE001 - nothing may escape into C; it is raised when the call returns
            if state is not None:
                state.error = as_raised(error, f"the {stream} sink")
            return -errno.EIO

    return write


_stdout_callback: Final = capi.OUTPUT_CALLBACK(_make_writer("stdout"))
_stderr_callback: Final = capi.OUTPUT_CALLBACK(_make_writer("stderr"))
_ON_STDOUT: Final = ctypes.cast(_stdout_callback, ctypes.c_void_p)
_ON_STDERR: Final = ctypes.cast(_stderr_callback, ctypes.c_void_p)


# ------------------------------------------------------------------------------------- functions that are ours


def poll_oneoff(state: GuestState, subscriptions: int, events: int, count: int, stored: int) -> int:
    """Wait until a clock fires, but never past the deadline; files are always ready. Returns 0 or the WASI error code.

    Raises what `GuestState.sleep` raises. Source: WASI preview 1, ``poll_oneoff``.
    """
    steps = poll_in_steps(state, subscriptions, events, count, stored)
    while True:
        try:
            state.sleep(next(steps).seconds)
        except StopIteration as ended:
            return int(ended.value)


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
