"""`tensor-wasm run`: one module, one call, in this process."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from tensorwasm.cli.options import Argument, Option
from tensorwasm.errors import InvalidArgs, ModuleTooLarge, OutputClosed
from tensorwasm.settings import current, give
from tensorwasm.settings.parsing import checked_count, checked_memory_kind, checked_memory_mib, checked_seconds
from tensorwasm.values import MIB, Deadline, DeviceInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tensorwasm.guest.sandbox.output import Inherit
    from tensorwasm.runtime import Grants, Invocation

GRACE_S = 0.25
"""What a call gets past its deadline to end by itself before the process is ended around it."""
DEVICE_GRACE_S = 1.0
"""The same with a GPU, whose kernel may be what has to end first."""


def run(
    file: Annotated[Path, Argument(metavar="FILE", help="The module, a .wasm file; - reads standard input.")],
    arguments: Annotated[
        list[str] | None, Argument(metavar="ARG", help="After --: arguments that the guest sees as its argv.")
    ] = None,
    *,
    export: Annotated[
        str | None, Option(help="Function to call; without it _start, and where there is none, main.")
    ] = None,
    args: Annotated[
        str, Option(metavar="JSON", help='Its arguments, a JSON array: [1, 2.5, "NaN", 9007199254740993].')
    ] = "[]",
    device: Annotated[
        str | None, Option(help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE; default: auto]")
    ] = None,
    timeout: Annotated[
        float | None,
        Option(metavar="SECONDS", help="For the guest, once it is compiled. [env: TENSOR_WASM_TIMEOUT; default: 30]"),
    ] = None,
    memory: Annotated[
        int | None,
        Option(metavar="MIB", help="Linear memory at most. [env: TENSOR_WASM_MEMORY; default: 256]"),
    ] = None,
    memory_kind: Annotated[
        str | None,
        Option(
            metavar="KIND",
            help="How kernels reach it: auto, staged, pinned, managed or vmm. "
            "[env: TENSOR_WASM_GPU_MEMORY; default: auto]",
        ),
    ] = None,
    gpu_quota: Annotated[
        int | None,
        Option(
            metavar="MIB", help="Device memory at most. [env: TENSOR_WASM_GPU_QUOTA; default: what a process may hold]"
        ),
    ] = None,
    max_stack: Annotated[
        int | None, Option(metavar="KIB", help="Wasm stack at most. [env: TENSOR_WASM_STACK; default: 512]")
    ] = None,
    max_module: Annotated[
        int | None, Option(metavar="MIB", help="Longest module. [env: TENSOR_WASM_MODULE; default: 64]")
    ] = None,
    max_output: Annotated[
        int | None,
        Option(metavar="MIB", min=0, help="Standard output at most, and likewise standard error; usually any amount."),
    ] = None,
    compile_timeout: Annotated[
        float | None,
        Option(metavar="SECONDS", help="For compiling the module. [env: TENSOR_WASM_COMPILE_TIMEOUT; default: 60]"),
    ] = None,
    compile_memory: Annotated[
        int | None,
        Option(metavar="MIB", help="Address space of the compiler. [env: TENSOR_WASM_COMPILE_MEMORY; default: 4096]"),
    ] = None,
    grant: Annotated[
        list[str] | None, Option(help="What the guest may use: cuda. Repeatable; nothing is granted unasked.")
    ] = None,
    directory: Annotated[
        list[str] | None,
        Option(
            flag="--dir",
            metavar="HOST[::GUEST][:ro]",
            help="A folder that the guest sees, by its own name or the one after ::, for reading only with :ro; or a "
            "single file, with :ro. Repeatable.",
        ),
    ] = None,
    env: Annotated[list[str] | None, Option(metavar="NAME=VALUE", help="A variable the guest sees.")] = None,
    verbose: Annotated[bool, Option(help="Say on standard error what was run, where and how long.")] = False,
) -> int:
    """Run a WebAssembly module in a sandbox of its own.

    The guest's standard input, output and error are this command's, while it runs, and its exit code is this
    command's. A function's results are printed: ok for none, a bare value for one, a JSON array for several.
    """
    from tensorwasm.cli.watchdog import watched  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.guest.sandbox.mounts import release_all  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.guest.sandbox.output import INHERIT  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime import Runtime  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime.invoke.loaded_module import check_export  # noqa: PLC0415 - likewise

    gc.enable()
    settings = give(
        {
            "TENSOR_WASM_STACK": max_stack,
            "TENSOR_WASM_MODULE": max_module,
            "TENSOR_WASM_COMPILE_TIMEOUT": compile_timeout,
            "TENSOR_WASM_COMPILE_MEMORY": compile_memory,
        }
    )
    wall_s = settings.timeout_s if timeout is None else checked_seconds("--timeout", timeout)
    memory_mib = settings.memory_mib if memory is None else checked_memory_mib("--memory", memory)
    output_bytes = sys.maxsize if max_output is None else max_output * MIB
    limits = replace(settings.limits(), memory_bytes=memory_mib * MIB, wall_s=wall_s, output_bytes=output_bytes)
    kind = settings.gpu_memory if memory_kind is None else checked_memory_kind("--memory-kind", memory_kind)
    gpu_bytes = None if gpu_quota is None else checked_count("--gpu-quota", gpu_quota) * MIB
    values, grants, variables = codec.parse(args), _grants(grant or (), directory or ()), read_variables(env or ())
    grace_s = DEVICE_GRACE_S if grants.cuda else GRACE_S
    with _native_end(), Runtime(device or settings.device, limits=limits, gpu_bytes=gpu_bytes) as runtime:
        with watched(wall_s, grace_s, release_all):
            module = read_module(file, limits.module_bytes)
        function = runtime.load(module, name=file.name, check=partial(check_export, export=export))
        with watched(wall_s, grace_s, release_all):
            outcome = function.invoke(
                export,
                values,
                argv=(file.name, *(arguments or ())),
                env=variables,
                stdin=b"" if str(file) == "-" else INHERIT,
                grants=grants,
                memory_kind=kind,
                deadline=Deadline.after(wall_s),
                stdout=_stream(sys.stdout, limited=max_output is not None),
                stderr=_stream(sys.stderr, limited=max_output is not None),
                on_device=_announce,
            )
            if outcome.export != "_start" and not outcome.exit_code:
                _writer(sys.stdout)(f"{format_results(outcome)}{os.linesep}".encode())
    for name in outcome.truncated:
        sys.stderr.write(f"warning: the guest's {name} was cut after {max_output} MiB\n")
    if verbose:
        sys.stderr.write(f"{outcome.export} of {file.name}: {outcome.elapsed_s * 1e3:.1f} ms\n")
    return outcome.exit_code


def _announce(device: DeviceInfo, reason: str) -> None:
    sys.stderr.write(f"device: {device.name} ({reason})\n")


def format_results(outcome: Invocation) -> str:
    """Return a call's results for people: ok, a bare value or a JSON array."""
    array = outcome.to_json()
    if not outcome.values:
        return "ok"
    return array[1:-1] if len(outcome.values) == 1 else array


@contextlib.contextmanager
def _native_end() -> Iterator[None]:
    """End as any program does when the reader of its output has gone: by the signal, without a word."""
    try:
        yield
    except OutputClosed as error:
        if isinstance(error.__cause__, BrokenPipeError) and hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)
        raise


def _grants(words: Sequence[str], folders: Sequence[str]) -> Grants:
    """Return what the guest may use.

    Raises:
        InvalidArgs: a word is no grant, or a folder cannot be read.
    """
    from tensorwasm.runtime import Grants, parse_directory, parse_grants  # noqa: PLC0415 - keeps --help quick

    granted = parse_grants(words)
    if granted.directories:
        raise InvalidArgs("a folder is given with --dir HOST[::GUEST][:ro]")
    return Grants(granted.cuda, tuple(parse_directory(each) for each in folders))


def read_module(file: Path, limit_bytes: int) -> bytes | Path:
    """Return what the runtime is to load: the file, or all of standard input.

    Raises:
        ModuleTooLarge: standard input has more bytes than a module may have.
    """
    if str(file) != "-":
        return file
    data = sys.stdin.buffer.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ModuleTooLarge(f"the module has more than {limit_bytes} bytes; the limit is {limit_bytes}")
    return data


def read_binary(file: Path) -> bytes:
    """Return a module's bytes, from the file or standard input.

    Raises:
        InvalidArgs: the file cannot be read.
        ModuleTooLarge: it has more bytes than a module may have.
    """
    from tensorwasm.runtime.api import checks  # noqa: PLC0415 - keeps --help quick

    limit_bytes = current().limits().module_bytes
    given = read_module(file, limit_bytes)
    return given if isinstance(given, bytes) else checks.read_module(given, limit_bytes)


def _stream(text: TextIO, *, limited: bool) -> Callable[[bytes], None] | Inherit:
    """Return where a guest's output goes: a terminal is the guest's own, so that it knows to write line by line."""
    from tensorwasm.guest.sandbox.output import INHERIT  # noqa: PLC0415 - keeps --help quick

    text.flush()
    return INHERIT if text.isatty() and not limited else _writer(text)


def _writer(text: TextIO) -> Callable[[bytes], None]:
    """Return a sink that passes a guest's bytes on at once, in order with our own text."""

    def write(data: bytes) -> None:
        try:
            text.flush()
            text.buffer.write(data)
            text.buffer.flush()
        except OSError as error:
            raise OutputClosed(f"the output cannot be written: {error.strerror}") from error

    return write


def read_variables(pairs: Sequence[str]) -> dict[str, str]:
    """Return variables by name.

    Raises:
        InvalidArgs: one is not NAME=VALUE.
    """
    split = [pair.partition("=") for pair in pairs]
    if bad := [name for name, equals, _ in split if not (name and equals)]:
        raise InvalidArgs(f"--env takes NAME=VALUE, not {bad[0][:64]!r}")
    return {name: value for name, _, value in split}
