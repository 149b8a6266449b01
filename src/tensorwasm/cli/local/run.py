"""`tensor-wasm run`: one module, one call, in this process, and a watchdog that ends the process past a deadline.

A guest that waits for its own standard input, or for a reader of its output, is inside a system call that neither a
deadline nor Python's handler of an interrupt reaches.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

from tensorwasm.cli.options import Args, Arguments, Env, Export, Module, Option, read_bytes, read_variables, write_bytes
from tensorwasm.errors import InvalidArgs, InvokeTimeout, ModuleTooLarge, OutputClosed
from tensorwasm.settings import current, give
from tensorwasm.settings.parsing import (
    checked_count,
    checked_memory_kind,
    checked_memory_mib,
    checked_offload,
    checked_offload_math,
    checked_seconds,
)
from tensorwasm.values import MIB, Deadline, DeviceInfo, Limits, OffloadMath, OffloadMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tensorwasm.guest.sandbox.wasi_io import Inherit
    from tensorwasm.runtime import Grants, Invocation, Runtime

GRACE_S: Final = 0.25
"""Time past its deadline in which a call may end by itself before the process is ended."""
DEVICE_GRACE_S: Final = 1.0
"""The same with a GPU, whose kernel may have to end first."""
INTERRUPT_GRACE_S: Final = 0.25
"""Time after an interrupt in which a command may end by itself."""

_MESSAGE_S: Final = 1.0
_WAKE_BYTES: Final = 64

ChosenDevice = Annotated[
    str | None, Option(help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE; default: auto]")
]
Timeout = Annotated[
    float | None,
    Option(metavar="SECONDS", help="For the guest, once it is compiled. [env: TENSOR_WASM_TIMEOUT; default: 30]"),
]
Memory = Annotated[
    int | None, Option(metavar="MIB", help="Linear memory at most. [env: TENSOR_WASM_MEMORY; default: 256]")
]
MemoryKind = Annotated[
    str | None,
    Option(
        metavar="KIND",
        help="How kernels reach it: auto, staged, pinned, managed or vmm. [env: TENSOR_WASM_GPU_MEMORY; default: auto]",
    ),
]
GpuQuota = Annotated[
    int | None,
    Option(metavar="MIB", help="Device memory at most. [env: TENSOR_WASM_GPU_QUOTA; default: what a process may hold]"),
]
MaxStack = Annotated[
    int | None, Option(metavar="KIB", help="Wasm stack at most. [env: TENSOR_WASM_STACK; default: 512]")
]
MaxModule = Annotated[int | None, Option(metavar="MIB", help="Longest module. [env: TENSOR_WASM_MODULE; default: 64]")]
MaxOutput = Annotated[
    int | None,
    Option(metavar="MIB", min=0, help="Standard output at most, and likewise standard error; by default any amount."),
]
CompileTimeout = Annotated[
    float | None,
    Option(metavar="SECONDS", help="For compiling the module. [env: TENSOR_WASM_COMPILE_TIMEOUT; default: 60]"),
]
CompileMemory = Annotated[
    int | None,
    Option(metavar="MIB", help="Address space of the compiler. [env: TENSOR_WASM_COMPILE_MEMORY; default: 4096]"),
]
Grant = Annotated[
    list[str] | None, Option(help="What the guest may use: cuda. Repeatable; nothing is granted by default.")
]
Directory = Annotated[
    list[str] | None,
    Option(
        flag="--dir",
        metavar="HOST[::GUEST][:ro]",
        help="A folder that the guest sees, by its own name or the one after ::, for reading only with :ro; or a "
        "single file, with :ro. Repeatable.",
    ),
]
MathOrder = Annotated[
    str,
    Option(
        metavar="exact|relaxed",
        help="Whether these loops add up and multiply floats in WebAssembly's order, or in another one.",
    ),
]
Offload = Annotated[
    str,
    Option(
        metavar="off|auto|cpu|gpu",
        help="Where loops run that can run in parallel: in the guest, on a GPU or else all cores, on all cores, or on "
        "the device.",
    ),
]
Checked = Annotated[
    bool,
    Option(
        help="Have kernels check each access to global and shared memory, and report the first that is outside of what "
        "they may use: for authors of kernels."
    ),
]
Verbose = Annotated[bool, Option(help="Report on standard error what was run, where and how long.")]


def run(
    file: Module,
    arguments: Arguments = None,
    *,
    export: Export = None,
    args: Args = "[]",
    device: ChosenDevice = None,
    timeout: Timeout = None,
    memory: Memory = None,
    memory_kind: MemoryKind = None,
    gpu_quota: GpuQuota = None,
    max_stack: MaxStack = None,
    max_module: MaxModule = None,
    max_output: MaxOutput = None,
    compile_timeout: CompileTimeout = None,
    compile_memory: CompileMemory = None,
    grant: Grant = None,
    directory: Directory = None,
    env: Env = None,
    offload: Offload = "off",
    offload_math: MathOrder = "exact",
    checked: Checked = False,
    verbose: Verbose = False,
) -> int:
    """Run a WebAssembly module in a sandbox of its own.

    The guest's standard input, output and error are this command's, while it runs, and its exit code is this
    command's. A function's results are printed: ok for none, a bare value for one, a JSON array for several.
    """
    from tensorwasm.runtime import Runtime  # noqa: PLC0415 - keeps --help quick

    gc.enable()
    give(
        {
            "TENSOR_WASM_STACK": max_stack,
            "TENSOR_WASM_MODULE": max_module,
            "TENSOR_WASM_COMPILE_TIMEOUT": compile_timeout,
            "TENSOR_WASM_COMPILE_MEMORY": compile_memory,
        }
    )
    limits = read_limits(timeout, memory, output_bytes=sys.maxsize if max_output is None else max_output * MIB)
    gpu_bytes = None if gpu_quota is None else checked_count("--gpu-quota", gpu_quota) * MIB
    call = _read_call(file, arguments, args, memory_kind, grant, directory, env)
    open_runtime = partial(Runtime, device or current().device, limits=limits, gpu_bytes=gpu_bytes, checked=checked)
    outcome = _run(file, export, call, limits, open_runtime, _read_loops(offload, offload_math))
    for name in outcome.truncated:
        sys.stderr.write(f"warning: the guest's {name} was cut after {max_output} MiB\n")
    if verbose:
        _report(file, outcome)
    return outcome.exit_code


def _report(file: Path, outcome: Invocation) -> None:
    """Report on standard error what was run, and how long."""
    sys.stderr.write(f"{outcome.export} of {file.name}: {outcome.elapsed_s * 1e3:.1f} ms\n")
    if outcome.offload is not None:
        use, declined = outcome.offload, sum(count for _, count in outcome.offload.declined)
        sys.stderr.write(f"loops: {use.taken} runs elsewhere in {use.seconds * 1e3:.1f} ms, {declined} declined\n")


def read_limits(timeout: float | None, memory: int | None, **others: int) -> Limits:
    """Return the limits of the settings, changed by options."""
    settings = current()
    wall_s = settings.timeout_s if timeout is None else checked_seconds("--timeout", timeout)
    memory_mib = settings.memory_mib if memory is None else checked_memory_mib("--memory", memory)
    return replace(settings.limits(), memory_bytes=memory_mib * MIB, wall_s=wall_s, **others)


def _read_call(
    file: Path,
    arguments: list[str] | None,
    args: str,
    memory_kind: str | None,
    grant: list[str] | None,
    directory: list[str] | None,
    env: list[str] | None,
) -> dict[str, Any]:
    """Return the arguments of `tensorwasm.runtime.Function.invoke` that the command line gives."""
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.guest.sandbox.wasi_io import INHERIT  # noqa: PLC0415 - the same

    kind = current().gpu_memory if memory_kind is None else checked_memory_kind("--memory-kind", memory_kind)
    return {
        "args": codec.parse(args),
        "argv": (file.name, *(arguments or ())),
        "env": read_variables(env or ()),
        "stdin": b"" if str(file) == "-" else INHERIT,
        "grants": _grants(grant or (), directory or ()),
        "memory_kind": kind,
    }


def _read_loops(offload: str, math: str) -> tuple[OffloadMode, OffloadMath]:
    """Return where loops run, and how they add up floats."""
    return checked_offload("--offload", offload), checked_offload_math("--offload-math", math)


def _run(
    file: Path,
    export: str | None,
    call: dict[str, Any],
    limits: Limits,
    open_runtime: Callable[[], Runtime],
    loops: tuple[OffloadMode, OffloadMath],
) -> Invocation:
    """Load the module, call it and print its results."""
    from tensorwasm.guest.sandbox.wasi_io import release_all  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime.invoke.deployed_module import check_export  # noqa: PLC0415 - the same

    limited = limits.output_bytes != sys.maxsize
    offload, math = loops
    on_device = call["grants"].cuda or offload in {"auto", "gpu"}
    watch = partial(watched, limits.wall_s, DEVICE_GRACE_S if on_device else GRACE_S, release_all)
    with _native_end(), open_runtime() as runtime:
        with watch():
            module = read_module(file, limits.module_bytes)
        check = partial(check_export, export=export)
        function = runtime.load(
            module, name=file.name, offload=offload, offload_math=math, offload_waits=True, check=check
        )
        with watch():
            outcome = function.invoke(
                export,
                **call,
                deadline=Deadline.after(limits.wall_s),
                stdout=_stream(sys.stdout, limited=limited),
                stderr=_stream(sys.stderr, limited=limited),
                on_device=_announce,
            )
            if outcome.export != "_start" and not outcome.exit_code:
                write_bytes(sys.stdout, f"{format_results(outcome)}{os.linesep}".encode())
    return outcome


def _announce(device: DeviceInfo, reason: str) -> None:
    sys.stderr.write(f"device: {device.name} ({reason})\n")


def format_results(outcome: Invocation) -> str:
    """Return a call's results as text: ok, a bare value or a JSON array."""
    array = outcome.to_json()
    return "ok" if not outcome.values else array[1:-1] if len(outcome.values) == 1 else array


@contextlib.contextmanager
def _native_end() -> Iterator[None]:
    """End the process by SIGPIPE, as native programs do, when the reader of its output has gone."""
    try:
        yield
    except OutputClosed as error:
        if isinstance(error.__cause__, BrokenPipeError) and hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)
        raise


def _grants(words: Sequence[str], folders: Sequence[str]) -> Grants:
    """Return the grants of the options, or raise InvalidArgs."""
    from tensorwasm.runtime import Grants, parse_directory, parse_grants  # noqa: PLC0415 - keeps --help quick

    granted = parse_grants(words)
    if granted.directories:
        raise InvalidArgs("a folder is given with --dir HOST[::GUEST][:ro]")
    return Grants(granted.cuda, tuple(parse_directory(each) for each in folders))


def read_module(file: Path, limit_bytes: int) -> bytes | Path:
    """Return a module as the runtime loads it: the path of the file, or the bytes of standard input."""
    if str(file) != "-":
        return file
    too_long = ModuleTooLarge(f"the module has more than {limit_bytes} bytes; the limit is {limit_bytes}")
    return read_bytes(file, limit_bytes, too_long, stdin=True)


def _stream(text: TextIO, *, limited: bool) -> Callable[[bytes], None] | Inherit:
    """Return a sink for a guest's output. A terminal is inherited, so that the guest writes to it line by line."""
    from tensorwasm.guest.sandbox.wasi_io import INHERIT  # noqa: PLC0415 - keeps --help quick

    text.flush()
    return INHERIT if text.isatty() and not limited else partial(write_bytes, text)


@contextlib.contextmanager
def watched(wall_s: float, grace_s: float, release: Callable[[], object]) -> Iterator[None]:
    """End the process, after calling `release`, if the body runs longer than both times. For the main thread."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    # Python runs its handler between two bytecodes, so not while a guest waits; this byte is written at once.
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    arguments = (ours, time.monotonic() + wall_s + grace_s, wall_s, release)
    threading.Thread(target=_watch, args=arguments, name="tensorwasm-watchdog", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()


def _watch(wake: socket.socket, ends_at_s: float, wall_s: float, release: Callable[[], object]) -> None:
    """Wait until the other end is closed; end the process at the deadline, or shortly after an interrupt."""
    with wake:
        interrupted = False
        while True:
            left_s = INTERRUPT_GRACE_S if interrupted else ends_at_s - time.monotonic()
            wake.settimeout(min(max(left_s, 0.001), threading.TIMEOUT_MAX))
            try:
                numbers = wake.recv(_WAKE_BYTES)
            except TimeoutError:
                break
            if not numbers:
                return
            interrupted = interrupted or signal.SIGINT in numbers
    release()
    if interrupted:
        os._exit(128 + signal.SIGINT)
    # The process ends even if the reader of the message has stopped reading.
    printer = threading.Thread(target=_print_stopped, args=(wall_s,), daemon=True)
    printer.start()
    printer.join(_MESSAGE_S)
    os._exit(InvokeTimeout.exit_code)


def _print_stopped(wall_s: float) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: {InvokeTimeout.kind}: nothing ended within {wall_s:g} s; the process is stopped\n")
        sys.stderr.flush()
