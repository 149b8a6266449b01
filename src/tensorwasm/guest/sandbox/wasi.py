"""WASI preview 1: wasmtime's implementation, with our own output, sleeping and exit.

The guest inherits nothing by default. Arguments, environment and standard input are values; output is captured or
passed to a callable; directories are visible only when granted. Clocks and random numbers are the host's. There are no
sockets.

Nothing here waits: standard input is bytes, output goes to memory, and sleeping is ours
(`tensorwasm.guest.sandbox.preview1`). Two exceptions ignore deadlines: the process's own standard input, given as
`INHERIT`, and opening a named pipe or a device of a granted directory.
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InternalError, InvalidArgs
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.engine.yielding import yield_gil_on_foreign_thread
from tensorwasm.guest.sandbox.state import STATES, GuestState, as_raised
from tensorwasm.guest.sandbox.wasi_io import INHERIT, Directory, GuestOutput, Inherit, Mounts, Sink, WasiState


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
    """Give the store of a sandbox its WASI context; each output stream may have ``output_bytes``.

    Raises `InvalidArgs` if an argument, variable or path holds a NUL, or a folder or file cannot be given.
    """
    mounts = Mounts(config.directories) if config.directories else None
    try:
        _set_context(state, config, mounts)
    except BaseException:
        if mounts is not None:
            mounts.close()
        raise
    out, err = GuestOutput(output_bytes, config.stdout), GuestOutput(output_bytes, config.stderr)
    return WasiState(out, err, time.monotonic_ns(), mounts)


def _set_context(state: GuestState, config: WasiConfig, mounts: Mounts | None) -> None:
    address = KEEPING.wasi_config_new()
    try:
        _configure(address, state.token, config)
        for host_path, guest_path, writable in mounts.preopened if mounts is not None else ():
            host, guest = _strings((host_path,)), _strings((guest_path,))
            opened = RELEASING.wasi_config_preopen_dir(address, host[0], guest[0], writable)
            _require(opened, f"the folder {host_path!r} cannot be opened")
    except BaseException:
        KEEPING.wasi_config_delete(address)
        raise
    error = KEEPING.wasmtime_context_set_wasi(state.context, address)
    if error:
        raise InternalError(f"wasmtime refused a WASI context: {traps.explain(error)}")


def renew(state: GuestState, config: WasiConfig, output_bytes: int) -> WasiState:
    """Replace the WASI context of a sandbox's store, and write the output so far to the new streams.

    Raises what `attach` raises, what a sink raised, or `InternalError` if a sink failed.
    """
    before, after = state.wasi, attach(state, config, output_bytes)
    if before is not None:
        for stream in ("stdout", "stderr"):
            old: GuestOutput = getattr(before, stream)
            new: GuestOutput = getattr(after, stream)
            try:
                new.take(old.captured)
            except BaseException as error:  # noqa: BLE001 - as if the guest wrote it now, in the call
                raise as_raised(error, f"the {stream} sink") from error.__cause__
            new.truncated = old.truncated
    return after


def _configure(address: int, token: int, config: WasiConfig) -> None:
    if config.args:
        _require(
            KEEPING.wasi_config_set_argv(address, len(config.args), _strings(config.args)), "the arguments are not text"
        )
    if config.env:
        names, values = zip(*config.env, strict=True)
        fits = KEEPING.wasi_config_set_env(address, len(config.env), _strings(names), _strings(values))
        _require(fits, "the environment is not text")
    if config.stdin is INHERIT:
        KEEPING.wasi_config_inherit_stdin(address)
    elif config.stdin:
        vector = (ctypes.c_size_t * 2)()
        KEEPING.wasm_byte_vec_new(vector, len(config.stdin), config.stdin)
        KEEPING.wasi_config_set_stdin_bytes(address, vector)
    if config.stdout is INHERIT:
        KEEPING.wasi_config_inherit_stdout(address)
    else:
        KEEPING.wasi_config_set_stdout_custom(address, _ON_STDOUT, token, None)
    if config.stderr is INHERIT:
        KEEPING.wasi_config_inherit_stderr(address)
    else:
        KEEPING.wasi_config_set_stderr_custom(address, _ON_STDERR, token, None)


def _require(fits: bool, message: str) -> None:  # noqa: FBT001 - the answer of a C function
    if not fits:
        raise InvalidArgs(message)


def _strings(texts: tuple[str, ...]) -> ctypes.Array[ctypes.c_char_p]:
    for text in texts:
        if "\0" in text:
            raise InvalidArgs(f"text for a guest holds a NUL character: {text[:40]!r}")
    try:
        return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
    except UnicodeEncodeError:
        raise InvalidArgs("text for a guest is not Unicode") from None


def _make_writer(stream: str) -> Callable[[int, int, int], int]:
    def write(token: int, data: int, length: int) -> int:
        state = None
        try:
            state = STATES[token]
            output: GuestOutput = getattr(state.wasi, stream)
            yield_gil_on_foreign_thread()  # this is a thread of wasmtime's, never an event loop's
            return length if output.take(ctypes.string_at(data, length)) else -errno.ENOSPC
        except BaseException as error:  # noqa: BLE001 - nothing may escape into C; it is raised when the call returns
            if state is not None:
                state.error = as_raised(error, f"the {stream} sink")
            return -errno.EIO

    return write


_stdout_callback: Final = capi.OUTPUT_CALLBACK(_make_writer("stdout"))
_stderr_callback: Final = capi.OUTPUT_CALLBACK(_make_writer("stderr"))
_ON_STDOUT: Final = ctypes.cast(_stdout_callback, ctypes.c_void_p)
_ON_STDERR: Final = ctypes.cast(_stderr_callback, ctypes.c_void_p)
