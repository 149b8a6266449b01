"""The compiler's process: ``python -I -S compiler_process.py LIBRARY PARENT MEMORY_BYTES CPU_S NAME:KIND=VALUE ...``.

It runs as a file in a bare interpreter and uses only the standard library and wasmtime's, so it starts within 20 ms.
It reads the module from standard input, to its end, and writes one byte, `CODE` or `REFUSED`, then precompiled code or
the reason. The parent ignores the answer of a process that did not exit with 0.

Cranelift gets untrusted bytes, so before it reads any the process limits its address space, its processor time, core
files and file sizes. It ends with the thread that started it. It gets a tenth of a processor that others want.

Source: Linux man-pages, prctl(2) PR_SET_PDEATHSIG, setrlimit(2), getpriority(2), sched(7) on autogroups.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import sys
import time

TYPE_CHECKING = False  # the module `typing`, and what it imports, would be a third of this process's start
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, BinaryIO, Final

CODE: Final = b"+"
REFUSED: Final = b"-"

PROTOTYPES: Final[dict[str, tuple[str, str]]] = {
    "wasm_byte_vec_delete": ("v", "p"),
    "wasm_config_new": ("p", ""),
    "wasm_engine_new_with_config": ("p", "p"),
    "wasmtime_error_message": ("v", "pp"),
    "wasmtime_module_new": ("p", "ppzp"),
    "wasmtime_module_serialize": ("p", "pp"),
}
"""What is called, as in `tensorwasm.guest.engine.capi`, which has compared it with the installed library."""

_KINDS: Final[dict[str, Any]] = {
    "p": ctypes.c_void_p,
    "z": ctypes.c_size_t,
    "b": ctypes.c_bool,
    "B": ctypes.c_uint8,
    "L": ctypes.c_uint64,
    "v": None,
}
_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9  # to import the module of signals takes as long as all others

UNLIMITED: Final = -1
"""Of a limit that there is not to be."""

NICE: Final = 10
"""How far it steps back: its weight is 110, where others have 1024."""

_NICEST: Final = 19

_AUTOGROUP: Final = "/proc/self/autogroup"
_AUTOGROUP_TRIES: Final = 50
_AUTOGROUP_PAUSE_S: Final = 0.05


def _call(library: ctypes.CDLL, name: str, *arguments: object, prototype: tuple[str, str] | None = None) -> Any:
    result, kinds = prototype or PROTOTYPES[name]
    function = library[name]
    function.restype = _KINDS[result]
    function.argtypes = [_KINDS[kind] for kind in kinds]
    return function(*arguments)


def main(arguments: list[str], source: BinaryIO, sink: BinaryIO) -> None:
    """Compile one module."""
    path, parent, memory_bytes, cpu_s, *settings = arguments
    confine(int(parent), int(memory_bytes), int(cpu_s))
    step_back()
    library = ctypes.CDLL(path)
    engine = _call(library, "wasm_engine_new_with_config", _configure(library, settings))
    wasm = source.read()
    module, answer = ctypes.c_void_p(), (ctypes.c_size_t * 2)()
    error = _call(library, "wasmtime_module_new", engine, wasm, len(wasm), ctypes.byref(module))
    error = error or _call(library, "wasmtime_module_serialize", module, answer)
    if error:
        _call(library, "wasmtime_error_message", error, answer)
    sink.write(REFUSED if error else CODE)
    sink.write((ctypes.c_char * answer[0]).from_address(answer[1]))
    sink.flush()


def confine(parent: int, memory_bytes: int, cpu_s: int, file_bytes: int = 0) -> None:
    """Limit what this process may use, and let it end with the thread that started it, whose process is ``parent``."""
    import resource  # noqa: PLC0415 - so that this can be imported where there is no such module

    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: file_bytes, resource.RLIMIT_CPU: cpu_s}
    if sys.platform == "linux":  # elsewhere address space is no measure of memory
        limits[resource.RLIMIT_AS] = memory_bytes
    for limit, value in limits.items():
        if value != UNLIMITED:
            # At the hard limit of CPU time Linux sends SIGKILL, like a crash; SIGXCPU comes a second before.
            resource.setrlimit(limit, (value, value + (limit == resource.RLIMIT_CPU)))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it had gone before the signal was asked for


def step_back() -> None:
    """Lower the priority, and that of the scheduler's group: a session can be one, and then only its value counts."""
    started_by = os.getpriority(os.PRIO_PROCESS, os.getppid())  # its first thread; the one that did may be lowered
    lowered = min(started_by + NICE, _NICEST)
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), lowered))
    if not _set_group():
        _thread.start_new_thread(_keep_setting, ())


def _keep_setting() -> None:
    for _ in range(_AUTOGROUP_TRIES):
        time.sleep(_AUTOGROUP_PAUSE_S)
        if _set_group():
            return


def _set_group() -> bool:
    """Lower the group's priority; return False if the system must be asked again: it takes one request in 0.1 s."""
    try:
        with open(_AUTOGROUP, "wb", buffering=0) as file:  # noqa: PTH123 - pathlib takes long to import
            file.write(b"%d" % NICE)
    except OSError as error:
        return error.errno not in {errno.EAGAIN, errno.EINTR}
    return True


def _configure(library: ctypes.CDLL, settings: Iterable[str]) -> int:
    """Return the address of a configuration; a setting is ``name:kind=value``."""
    config: int = _call(library, "wasm_config_new")
    for setting in settings:
        name, _, rest = setting.partition(":")
        kind, _, value = rest.partition("=")
        _call(library, f"wasmtime_config_{name}_set", config, int(value), prototype=("v", "p" + kind))
    return config


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # the rest of an interpreter's end is a waste of time
