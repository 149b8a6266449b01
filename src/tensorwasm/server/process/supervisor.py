"""The small parent of the server: starts its processes, forwards signals, and restarts what dies.

It imports nothing of the service, so that nothing of the service can crash it. It owns the sockets that listen, which
the server's processes inherit, and the table that they share. The kernel signals them when it dies.

Source: Linux man-pages, poll(2), signal(7), signal-safety(7).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from tensorwasm.server.process.address import ListenAddress, listen
from tensorwasm.server.process.fleet import Fleet, Role, rows_of, say
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.place import CONTROL, HTTP, Place
from tensorwasm.server.process.record import SupervisorFile
from tensorwasm.server.process.reloading import Reloader, ReloadState
from tensorwasm.server.process.server_process import FORKS, Template, adopting_orphans, bury_orphans
from tensorwasm.server.process.templates import Templates
from tensorwasm.server.process.worker_template import OnDemandTemplate
from tensorwasm.tenancy.shared_table import clear_row, create_table

LISTEN_S: Final = 2.0
"""How long an address may be taken: the processes of a supervisor that was killed close it when they hear of that."""

STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
HANDLED: Final = (*STOPS, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)


class Supervisor:
    """Keeps the processes of one server running.

    Args:
        address: where servers listen.
        environment: theirs.
        max_body_bytes: as in `ServeOptions`.
        workers: how many processes take requests.
        drain_s: how long running requests may take when one stops.
        folder: the data folder, in which it records itself for `tensor-wasm reload`; None for no record.
    """

    def __init__(
        self,
        address: ListenAddress,
        environment: Mapping[str, str],
        max_body_bytes: int | None = None,
        *,
        workers: int = 1,
        drain_s: float = 20.0,
        folder: Path | None = None,
    ) -> None:
        self._address, self._max_body_bytes = address, max_body_bytes
        self._environment = dict(environment)
        self._workers, self._drain_s, self._folder = workers, drain_s, folder

    def run(self) -> int:
        """Run the server until a signal stops it, and return its exit code. Blocks.

        Raises:
            InvalidArgs: as `listen` does, or another server has the data folder.
        """
        with ExitStack() as stack:
            signals = stack.enter_context(_signals())
            record = _open_record(self._folder)
            address, listening = listen(self._address, patience_s=LISTEN_S)
            stack.enter_context(listening)
            if address.path:
                stack.callback(Path(address.path).unlink, missing_ok=True)
            shared = stack.enter_context(_inherited(address, listening, self._max_body_bytes, self._workers))
            broker = not self._environment.get("TENSOR_WASM_BROKER")
            stack.enter_context(adopting_orphans())
            templates = Templates(partial(self._make_template, shared.descriptors), self._make_workers)
            stack.callback(templates.close)
            if broker and self._workers > 1:
                templates.begin_workers()  # beside the other template, on another processor
            fleet = Fleet(self._workers, shared, templates, self._drain_s, broker=broker)
            stack.callback(_close_all, fleet)
            return _keep(fleet, Reloader(fleet, self._drain_s, record), templates, signals)

    def _make_template(self, inherited: tuple[int, ...], asking: int) -> Template:
        return Template(self._environment, (*inherited, *([asking] if asking >= 0 else [])))

    def _make_workers(self) -> OnDemandTemplate | None:
        return OnDemandTemplate(self._environment) if FORKS else None


def _keep(fleet: Fleet, reloader: Reloader, templates: Templates, signals: int) -> int:
    """Run a fleet until all of it has ended, and return the exit code."""
    while True:
        now_s = time.monotonic()
        fleet.update(now_s)
        reloader.update(now_s)
        if fleet.outcome is not None:
            return fleet.outcome
        known = [each.process.pid for each in fleet.members]
        if None not in known:  # one without a number would be taken for an orphan
            bury_orphans([*filter(None, known), *templates.pids])
        for number in _wait(fleet, reloader, templates, signals):
            now_s = time.monotonic()
            if number in STOPS:
                fleet.stop(now_s)
            elif number == signal.SIGHUP:
                fleet.reopen()
            elif number == signal.SIGUSR2:
                reloader.request(now_s)


def _wait(fleet: Fleet, reloader: Reloader, templates: Templates, signals: int) -> bytes:
    """Wait for a signal, a report or what is due; return the signals' numbers."""
    poller = select.poll()
    poller.register(signals, select.POLLIN)
    for template in templates:
        poller.register(template, select.POLLIN)
    for member in fleet.members:
        if member.process.reports is not None:
            poller.register(member.process.reports, select.POLLIN)
    due = [each for each in (fleet.next_s(), reloader.next_s()) if each is not None]
    left_s = max(min(due) - time.monotonic(), 0.0) if due else None
    poller.poll(None if left_s is None else left_s * 1e3 + 1)
    try:
        return os.read(signals, 4096)
    except BlockingIOError:
        return b""


@contextmanager
def _signals() -> Iterator[int]:
    """Within the context, yield a pipe from which the numbers of signals are read."""

    def ignore(_number: int, _frame: FrameType | None) -> None:
        """Do nothing: the number is in the pipe."""

    read, write = os.pipe()
    for each in (read, write):
        os.set_blocking(each, False)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, ignore) for number in HANDLED}
    try:
        yield read
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def _open_record(folder: Path | None) -> Callable[[ReloadState], None]:
    """Return what records reloads in the data folder; without a folder that can be written it records nothing."""
    try:
        if folder is not None:
            return SupervisorFile(folder).write
    except OSError as error:  # the service says what is wrong with its folder; a full disk may have room later
        say(f"warning: `tensor-wasm reload` will not find this server: {error.strerror}; signal it by SIGUSR2")
    return lambda _state: None


def _close_all(fleet: Fleet) -> None:
    for member in list(fleet.members):
        fleet.drop(member)


@dataclass(frozen=True, slots=True)
class _Inherited:
    """What the server's processes inherit.

    Attributes:
        address, max_body_bytes: of the options of each.
        table: descriptor of the shared table; -1 for one process alone, as the two sockets.
        folder: of the private sockets.
    """

    address: ListenAddress
    listening: int
    max_body_bytes: int | None
    rows: int = 0
    table: int = -1
    folder: str = ""
    http: int = -1
    control: int = -1

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors that processes inherit."""
        return tuple(each for each in (self.listening, self.table, self.http, self.control) if each >= 0)

    def options(self, role: Role, row: int, fronts: tuple[int, ...], *, announce: bool) -> ServeOptions:
        """Return the options of a process."""
        if role == "alone":
            return ServeOptions(self.address, self.listening, self.max_body_bytes, announce)
        place = Place(role, row, self.table, self.rows, self.folder)
        if role == "broker":
            return ServeOptions(self.address, -1, announce=announce, place=Place(role, row, -1, 0, self.folder))
        if role == "front":
            return ServeOptions(self.address, self.listening, self.max_body_bytes, announce, place)
        place = Place("primary", row, self.table, self.rows, self.folder, self.http, self.control, fronts)
        return ServeOptions(self.address, -1, self.max_body_bytes, announce, place)

    def clear_row(self, row: int) -> None:
        """Clear the row of the shared table of a process that has ended."""
        clear_row(self.table, row)


@contextmanager
def _inherited(
    address: ListenAddress,
    listening: socket.socket,
    max_body_bytes: int | None,
    workers: int,
) -> Iterator[_Inherited]:
    """Within the context, yield what processes inherit; several of them have a table and two sockets besides."""
    if workers == 1:
        yield _Inherited(address, listening.fileno(), max_body_bytes)
        return
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="tensor-wasm-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        http, control = (
            stack.enter_context(listen(ListenAddress(path=f"{folder}/{name}"))[1]) for name in (HTTP, CONTROL)
        )
        rows = rows_of(workers)
        table = create_table(rows)
        stack.callback(os.close, table)
        private = (rows, table, folder, http.fileno(), control.fileno())
        yield _Inherited(address, listening.fileno(), max_body_bytes, *private)
