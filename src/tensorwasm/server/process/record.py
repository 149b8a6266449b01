"""The file ``supervisor`` in the data folder: which process supervises its server, and how its reload goes.

The supervisor holds a lock on it: a file without one is of a supervisor that has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs, ReloadFailed, ServerUnreachable
from tensorwasm.server.process.reloading import ReloadState

NAME: Final = "supervisor"
POLL_S: Final = 0.05

TRIES: Final = 10
"""Attempts to lock a file, or to read a record that may be being written."""

_BYTES: Final = 1024
"""Length of the file. A record replaces another of the same length by one write, also where the disk is full."""

_MAX_TEXT: Final = 300


class SupervisorFile:
    """The file of this process: it is locked as long as this process lives.

    Raises:
        InvalidArgs: another supervisor has it.
        OSError: it cannot be made, locked or written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._lock(folder)
            self.write(ReloadState())
        except BaseException:
            os.close(self._handle)
            raise

    def _lock(self, folder: Path) -> None:
        for tries_left in reversed(range(TRIES)):
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not tries_left:
                    raise InvalidArgs(f"another server has the data folder {folder}: stop it, or use another") from None
                time.sleep(POLL_S)  # one that asks for a reload has it for a moment, to see whether it is free
            else:
                return

    def write(self, state: ReloadState) -> None:
        """Record how reloads go."""
        shown = asdict(state) | {"pid": os.getpid(), "failed": state.failed[:_MAX_TEXT]}
        os.pwrite(self._handle, json.dumps(shown).encode().ljust(_BYTES), 0)


@dataclass(frozen=True, slots=True)
class _Found:
    pid: int
    state: ReloadState


def request_reload(folder: Path, tell: Callable[[str], None]) -> None:
    """Let the supervisor of a data folder replace its processes, and wait until it has. Blocks.

    Args:
        folder: the data folder.
        tell: called with each step, for people.

    Raises:
        ServerUnreachable: no supervisor has the folder, or it ended meanwhile, or may not be signalled.
        ReloadFailed: the reload was given up.
    """
    found = _read(folder)
    mine = found.state.begun + 1  # one that runs already may have begun before the new release was complete
    try:
        os.kill(found.pid, signal.SIGUSR2)
    except OSError as error:
        raise ServerUnreachable(
            f"the server's process {found.pid} cannot be signalled: {error.strerror}; run this as the server's user"
        ) from None
    told = found.state.progress
    while found.state.ended < mine:
        time.sleep(POLL_S)
        found = _read(folder)
        if found.state.progress not in {"", told}:
            tell(found.state.progress)
        told = found.state.progress
    if found.state.failed:
        raise ReloadFailed(f"the reload was given up: {found.state.failed}; the server's standard error says more")


def _read(folder: Path) -> _Found:
    """Read the record of a supervisor that lives.

    Raises:
        ServerUnreachable: there is none, or it is another user's.
    """
    path = folder / NAME
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _nobody(folder) from None
    except OSError as error:
        raise ServerUnreachable(f"{path} cannot be read: {error.strerror}; run this as the server's user") from None
    try:
        for _ in range(TRIES):
            if _is_free(handle):
                break
            with suppress(ValueError, KeyError, TypeError):
                found = json.loads(os.pread(handle, _BYTES, 0))
                return _Found(int(found.pop("pid")), ReloadState(**found))
            time.sleep(POLL_S)
        else:
            raise ServerUnreachable(f"{path} is not a record of this release's servers")
    finally:
        os.close(handle)
    raise _nobody(folder)


def _is_free(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _nobody(folder: Path) -> ServerUnreachable:
    return ServerUnreachable(
        f"no server runs with the data folder {folder}: start it by `tensor-wasm serve`, or name its folder by --data"
    )
