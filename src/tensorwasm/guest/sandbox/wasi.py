"""WASI preview 1: wasmtime's implementation, with our own output, sleeping and exit.

Nothing of the host is inherited unasked. Arguments, environment and standard input are given as values; standard output
and error are captured or handed to a callable; directories are visible only when granted. Clocks and random numbers are
the host's. There are no sockets.

Nothing here waits: standard input is bytes, so reading it never blocks, output goes to memory, and sleeping is ours
(`tensorwasm.guest.sandbox.preview1`). Two things do wait, where no deadline reaches: the process's own standard input,
given as
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
from tensorwasm.guest.engine.yielding import give_way_from_now_on
from tensorwasm.guest.sandbox.mounts import Directory, Mounts
from tensorwasm.guest.sandbox.output import INHERIT, GuestOutput, Inherit, Sink, WasiState
from tensorwasm.guest.sandbox.state import STATES, GuestState, as_raised

_config_new: Final = capi.bind("wasi_config_new")
_config_delete: Final = capi.bind("wasi_config_delete")
_set_argv: Final = capi.bind("wasi_config_set_argv")
_set_env: Final = capi.bind("wasi_config_set_env")
_inherit_stdin: Final = capi.bind("wasi_config_inherit_stdin")
_inherit_stdout: Final = capi.bind("wasi_config_inherit_stdout")
_inherit_stderr: Final = capi.bind("wasi_config_inherit_stderr")
_set_stdin_bytes: Final = capi.bind("wasi_config_set_stdin_bytes")
_set_stdout: Final = capi.bind("wasi_config_set_stdout_custom")
_set_stderr: Final = capi.bind("wasi_config_set_stderr_custom")
_preopen_dir: Final = capi.bind_releasing("wasi_config_preopen_dir")
_byte_vec_new: Final = capi.bind("wasm_byte_vec_new")
_set_wasi: Final = capi.bind("wasmtime_context_set_wasi")


@dataclass(frozen=True, slots=True)
class WasiConfig:
    """What a guest gets through WASI.

    Attributes:
        args: command-line arguments, the program's name first.
        env: environment, as pairs.
        stdin: all of standard input, or `INHERIT`.
        stdout: called with each chunk as the guest writes it, on the guest's thread; None captures. What it raises
            reaches the guest as a failed write and soon ends the call. `INHERIT` passes no chunk and has no limit.
        stderr: the same for standard error.
        directories: what the guest may see of the file system.
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
    """Give a sandbox's store its WASI context.

    Args:
        state: a sandbox with an open store.
        config: what the guest gets.
        output_bytes: limit of each output stream.

    Raises:
        InvalidArgs: an argument, variable or path holds a NUL, or a folder or file cannot be given.
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
    address = _config_new()
    try:
        _configure(address, state.token, config)
        for host_path, guest_path, writable in mounts.preopened if mounts is not None else ():
            host, guest = _strings((host_path,)), _strings((guest_path,))
            opened = _preopen_dir(address, host[0], guest[0], writable)
            _require(opened, f"the folder {host_path!r} cannot be opened")
    except BaseException:
        _config_delete(address)
        raise
    error = _set_wasi(state.context, address)
    if error:
        raise InternalError(f"wasmtime refused a WASI context: {traps.explain(error)}")


def renew(state: GuestState, config: WasiConfig, output_bytes: int) -> WasiState:
    """Give a sandbox's store another WASI context, and write there what the guest has written to the one before.

    Args:
        state: a sandbox that has a context.
        config: what the guest gets.
        output_bytes: limit of each output stream.

    Raises:
        InvalidArgs: as in `attach`.
        InternalError: a sink failed.
        TensorWasmError: what a sink raised.
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
        _require(_set_argv(address, len(config.args), _strings(config.args)), "the arguments are not text")
    if config.env:
        names, values = zip(*config.env, strict=True)
        fits = _set_env(address, len(config.env), _strings(names), _strings(values))
        _require(fits, "the environment is not text")
    if config.stdin is INHERIT:
        _inherit_stdin(address)
    elif config.stdin:
        vector = (ctypes.c_size_t * 2)()
        _byte_vec_new(vector, len(config.stdin), config.stdin)
        _set_stdin_bytes(address, vector)
    if config.stdout is INHERIT:
        _inherit_stdout(address)
    else:
        _set_stdout(address, _ON_STDOUT, token, None)
    if config.stderr is INHERIT:
        _inherit_stderr(address)
    else:
        _set_stderr(address, _ON_STDERR, token, None)


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
            give_way_from_now_on()  # this is a thread of wasmtime's, never an event loop's
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
