"""`tensor-wasm run`: one module, one call, in this process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from tensorwasm.errors import InvalidArgs, InvokeTimeout, OutputClosed
from tensorwasm.settings import current
from tensorwasm.settings.parsing import checked_count, checked_memory_kind, checked_memory_mib, checked_seconds
from tensorwasm.values import MIB, Deadline, DeviceInfo, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensorwasm.runtime import Invocation

MAX_STDIN_BYTES = 64 * MIB
GRACE_S = 1.0
"""What a call gets past its deadline to end by itself before the process is ended around it."""


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The module, a .wasm file; - reads standard input.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARG", help="After --: arguments that the guest sees as its argv.")
    ] = None,
    *,
    export: Annotated[
        str | None, typer.Option(help="Function to call; without it _start, and where there is none, main.")
    ] = None,
    args: Annotated[
        str, typer.Option(metavar="JSON", help='Its arguments, a JSON array: [1, 2.5, "NaN", 9007199254740993].')
    ] = "[]",
    device: Annotated[
        str | None, typer.Option(help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE; default: auto]")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="For the whole run. [env: TENSOR_WASM_TIMEOUT; default: 30]"),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(metavar="MIB", help="Linear memory at most. [env: TENSOR_WASM_MEMORY; default: 256]"),
    ] = None,
    memory_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="How kernels reach it: auto, staged, pinned, managed or vmm. "
            "[env: TENSOR_WASM_GPU_MEMORY; default: auto]",
        ),
    ] = None,
    gpu_quota: Annotated[
        int | None,
        typer.Option(
            metavar="MIB", help="Device memory at most. [env: TENSOR_WASM_GPU_QUOTA; default: what a process may hold]"
        ),
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(help="What the guest may use: cuda; read:DIR; write:DIR. Repeatable; nothing is granted unasked."),
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable the guest sees.")] = None,
    verbose: Annotated[bool, typer.Option(help="Say on standard error what was run, where and how long.")] = False,
) -> int:
    """Run a WebAssembly module in a sandbox of its own.

    The guest's output is this command's output and its exit code this command's. A function's results are printed:
    ok for none, a bare value for one, a JSON array for several.
    """
    from tensorwasm.guest import codec  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime import Runtime, parse_grants  # noqa: PLC0415 - keeps --help quick

    settings = current()
    wall_s = settings.timeout_s if timeout is None else checked_seconds("--timeout", timeout)
    memory_mib = settings.memory_mib if memory is None else checked_memory_mib("--memory", memory)
    limits = Limits(memory_bytes=memory_mib * MIB, wall_s=wall_s)
    kind = settings.gpu_memory if memory_kind is None else checked_memory_kind("--memory-kind", memory_kind)
    gpu_bytes = None if gpu_quota is None else checked_count("--gpu-quota", gpu_quota) * MIB
    deadline = Deadline.after(wall_s)
    values, grants, variables = codec.parse(args), parse_grants(grant or ()), read_variables(env or ())
    with _watched(wall_s), Runtime(device or settings.device, limits=limits, gpu_bytes=gpu_bytes) as runtime:
        function = runtime.load(read_module(file), name=file.name)
        outcome = function.invoke(
            export,
            values,
            argv=(file.name, *(arguments or ())),
            env=variables,
            stdin=_standard_input(file, function.imports),
            grants=grants,
            memory_kind=kind,
            deadline=deadline,
            stdout=_writer(sys.stdout),
            stderr=_writer(sys.stderr),
            on_device=_announce,
        )
    if outcome.export != "_start" and not outcome.exit_code:
        print(format_results(outcome))
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


def _standard_input(file: Path, imports: Iterable[tuple[str, str]]) -> bytes:
    """Read standard input for a guest that can read it; at a terminal, until its end is typed."""
    if str(file) == "-" or not any(name == "fd_read" for _, name in imports):
        return b""
    return sys.stdin.buffer.read(MAX_STDIN_BYTES)


@contextlib.contextmanager
def _watched(wall_s: float) -> Iterator[None]:
    """End the process if what is inside does not end by itself, a moment after it should have."""
    watchdog = threading.Timer(wall_s + GRACE_S, _end_process, (wall_s,))
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def _end_process(wall_s: float) -> None:
    """End the process, come what may: a reader that has stopped reading, or gone, must not keep it alive."""
    speaker = threading.Thread(target=_say_stopped, args=(wall_s,), daemon=True)
    speaker.start()
    speaker.join(GRACE_S)
    os._exit(InvokeTimeout.exit_code)


def _say_stopped(wall_s: float) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: {InvokeTimeout.kind}: nothing ended within {wall_s:g} s; the process is stopped\n")
        sys.stderr.flush()


def read_module(file: Path) -> bytes | Path:
    """Return what the runtime is to load: the file, or standard input up to the byte that shows it is too much."""
    return sys.stdin.buffer.read(Limits().module_bytes + 1) if str(file) == "-" else file


def read_binary(file: Path) -> bytes:
    """Return a module's bytes, from the file or standard input, up to the byte that shows it is too much.

    Raises:
        InvalidArgs: the file cannot be read.
    """
    from tensorwasm.runtime import admission  # noqa: PLC0415 - keeps --help quick

    given = read_module(file)
    return given if isinstance(given, bytes) else admission.read_module(given, Limits().module_bytes)


def _writer(text: TextIO) -> Callable[[bytes], None]:
    """Return a sink that passes a guest's bytes on at once, in order with our own text."""

    def write(data: bytes) -> None:
        try:
            text.flush()
            text.buffer.write(data)
            text.buffer.flush()
        except OSError as error:
            raise OutputClosed(f"the guest's output cannot be written: {error.strerror}") from None

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
