"""One command line from its start to its exit code: errors become one line, never a traceback.

Plain command lines of `run`, `serve` and ``--version`` do without Typer, whose import takes longer than they do.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from tensorwasm.errors import MAX_NAME, Frame, GuestExit, GuestTrap, OutputClosed, Refused, TensorWasmError, plain
from tensorwasm.settings import current, package_version

MAX_FRAMES: Final = 32
"""Innermost functions of a guest's stack that are shown."""

_MAX_FILE: Final = 200


def execute(arguments: Sequence[str]) -> NoReturn:
    """Run one command line and end the process with its exit code."""
    _open_closed_streams()
    code = dispatch(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the reader has gone: the exit code still counts
            continue
    os._exit(code)  # not sys.exit: a kernel that never ends would hold the exit handlers of the driver for ever


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams, so that no other file gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - stays open as long as the process
            setattr(sys, name, stream)


def dispatch(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    try:
        outcome = _run(arguments)
    except TensorWasmError as error:
        return _report(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line instead of a traceback
        return _report_unexpected(error)
    return outcome if isinstance(outcome, int) else 0


def _run(arguments: Sequence[str]) -> object:
    if list(arguments) == ["--version"]:
        print(f"tensor-wasm {package_version()}")
        return 0
    if arguments[:1] == ["run"]:
        from tensorwasm.cli.local.run import run  # noqa: PLC0415 - only if it is asked for

        outcome = _run_plain(run, arguments[1:])
    elif arguments[:1] == ["serve"]:
        from tensorwasm.cli.local.serving import serve  # noqa: PLC0415 - the same

        gc.enable()
        outcome = _run_plain(serve, arguments[1:])
    else:
        outcome = None
    if outcome is not None:
        return outcome
    from tensorwasm.cli import app  # noqa: PLC0415 - Typer, and every command

    gc.enable()
    return app.run_line(arguments)


def _run_plain(command: Callable[..., int], words: Sequence[str]) -> int | None:
    """Run a command if its line can be read without Typer, and return its exit code; else None."""
    from tensorwasm.cli import options  # noqa: PLC0415 - only if it is asked for

    given = options.parse(command, words)
    return None if given is None else command(**given)


def _report(error: TensorWasmError) -> int:
    if isinstance(error, GuestExit):
        return error.code
    sys.stderr.write(f"error: {error.kind}: {error.message}\n")
    sys.stderr.writelines(f"    at {frame}\n" for frame in _stack_of(error))
    return error.exit_code


def _stack_of(error: TensorWasmError) -> Sequence[object]:
    """Return the stack of a guest that trapped, here or at a server, innermost function first."""
    if isinstance(error, GuestTrap):
        return error.backtrace
    found = error.left.get("backtrace") if isinstance(error, Refused) else None
    rows = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    return [
        Frame(
            row["function"],
            plain(str(row.get("name", "")), MAX_NAME),
            row["offset"],
            plain(str(row.get("file", "")), _MAX_FILE),
            row.get("line", 0),
        )
        for row in rows[:MAX_FRAMES]
        if all(isinstance(row.get(name, 0), int) for name in ("function", "offset", "line"))
        and {"function", "offset"} <= row.keys()
    ]


def _report_unexpected(error: Exception) -> int:
    if isinstance(error, OSError):  # from our own printing: files and guests' output raise errors of ours
        return _report(OutputClosed(f"the output cannot be written: {error.strerror}"))
    if show := getattr(error, "show", None):  # a usage error of Click's, which prints itself
        show()
        return int(getattr(error, "exit_code", 2))
    import traceback  # noqa: PLC0415 - an error of ours is rare, and this slow to import

    with contextlib.suppress(TensorWasmError):  # a setting that does not parse
        if current().traceback:
            traceback.print_exception(error)
    sys.stderr.write(f"error: internal: {type(error).__name__}: {error}\n")
    return 1
