"""The protocol of a broker, and the front's side of it: connections to workers that another process has started.

A front connects to the broker's Unix socket, sends one line of JSON, and gets one; with the line that answers a request
for a worker comes the connection to it. Who may connect is who may write to the socket: the broker's own user.

Source: Linux man-pages, unix(7) SCM_RIGHTS.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeVar

import msgspec

from tensorwasm.errors import DeviceUnavailable
from tensorwasm.runtime.workers.frames import PROTOCOL, BrokenFrame, FailedFrame
from tensorwasm.runtime.workers.outcomes import rebuild_error
from tensorwasm.values import Isolation

MAX_LINE_BYTES: Final = 64 << 10
ANSWER_S: Final = 10.0
"""What either side waits for the other's line."""
_MOMENT_S: Final = 0.1
_LEAST_S: Final = 0.001

_Made = TypeVar("_Made")


class BrokerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a front asks: what there is, or the connection to a worker.

    Attributes:
        protocol: `tensorwasm.runtime.workers.frames.PROTOCOL` of the front, which speaks it with the worker.
        device: index of the worker's device in `BrokerReply.devices`; None to know what there is.
        long: whether it is the worker for tenants whose kernels run long.
    """

    protocol: int
    device: int | None = None
    long: bool = False


class BrokerReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What there is, or why there is no worker.

    Attributes:
        devices: those that the broker's workers have, ``emulator`` or ``cuda:N``.
        isolation: what keeps tenants apart in them.
        failure: why the request is refused; with None comes the connection, if one was asked for.
    """

    devices: tuple[str, ...] = ()
    isolation: Isolation = "stream"
    failure: FailedFrame | None = None


_replies: Final = msgspec.json.Decoder(BrokerReply)


def receive_part(link: socket.socket) -> tuple[bytes, list[int]]:
    """Return what came of a line, nothing at its end, and the descriptors with it, which no other program inherits."""
    data, descriptors, _, _ = socket.recv_fds(link, MAX_LINE_BYTES, 1)
    for each in descriptors:
        os.set_inheritable(each, False)  # `recv_fds` leaves its flags out, MSG_CMSG_CLOEXEC among them
    return data, descriptors


def read_line(link: socket.socket) -> tuple[bytes, list[int]]:
    """Return a line without its end, and the descriptors that came with it. It has `ANSWER_S` to come.

    Raises:
        OSError: the other side has gone, is late, or sends no line.
    """
    data, part = b"", b" "
    descriptors: list[int] = []
    ends_s = time.monotonic() + ANSWER_S
    try:
        while part and not data.endswith(b"\n") and len(data) <= MAX_LINE_BYTES:
            link.settimeout(max(_LEAST_S, ends_s - time.monotonic()))
            part, came = receive_part(link)
            data, descriptors = data + part, descriptors + came
    except OSError:
        close_all(descriptors)
        raise
    if not data.endswith(b"\n"):
        close_all(descriptors)
        raise OSError("no whole line")
    return data[:-1], descriptors


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors."""
    for each in descriptors:
        os.close(each)


@dataclass(slots=True)
class BrokeredWorker:
    """A connection to a worker process that a broker has started; see `tensorwasm.runtime.workers.process`.

    The one to the broker stays open, so that its end is known from that of a worker.
    """

    link: socket.socket
    broker: socket.socket
    errors: IO[bytes] | None = None
    pid: int | None = None
    orphan: bool = False

    def admit(self, link: socket.socket) -> None:
        """End a connection: a front hands over none."""
        link.close()

    def wait(self, limit_s: float) -> None:
        """Find out whether the broker has ended: its worker ends with it, and may be a moment earlier."""
        poll = select.poll()
        poll.register(self.broker, select.POLLIN)
        self.orphan = bool(poll.poll(min(limit_s, _MOMENT_S) * 1000))

    def end(self) -> None:
        """End the connection; the process goes on."""
        self.link.close()
        self.broker.close()


class BrokerClient:
    """Asks a broker for connections. Thread-safe; every method blocks for `ANSWER_S` at most.

    Args:
        path: of its socket.

    Raises:
        DeviceUnavailable: there is no broker, or none that answers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def describe(self) -> BrokerReply:
        """Return what devices there are, and what keeps tenants apart."""
        with self._dial() as broker:
            reply, descriptors = self._ask(broker, BrokerRequest(PROTOCOL))
        close_all(descriptors)
        return reply

    def connect(self, device: int, *, long: bool) -> BrokeredWorker:
        """Return a connection to a worker that tenants share, which may only start; raise what the broker refuses."""
        with ExitStack() as stack:
            broker = stack.enter_context(self._dial())
            _, descriptors = self._ask(broker, BrokerRequest(PROTOCOL, device, long))
            if len(descriptors) != 1:
                close_all(descriptors)
                raise DeviceUnavailable(f"the broker at {self._path} answers without a connection")
            stack.pop_all()
        link = socket.socket(fileno=descriptors[0])
        link.setblocking(False)
        return BrokeredWorker(link, broker)

    def _dial(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(ANSWER_S)
        try:
            link.connect(str(self._path))
        except OSError as error:
            link.close()
            raise self._explain(error) from None
        return link

    def _explain(self, error: OSError) -> DeviceUnavailable:
        return DeviceUnavailable(
            f"no broker answers at {self._path} ({error.strerror or error}); start one with `tensor-wasm broker`"
        )

    def _ask(self, broker: socket.socket, request: BrokerRequest) -> tuple[BrokerReply, list[int]]:
        try:
            broker.sendall(msgspec.json.encode(request) + b"\n")
            line, descriptors = read_line(broker)
        except OSError as error:
            raise self._explain(error) from None
        with suppress(msgspec.MsgspecError, UnicodeError, BrokenFrame):
            reply = _replies.decode(line)
            if reply.failure is None:
                return reply, descriptors
            refusal = rebuild_error(reply.failure)
            close_all(descriptors)
            raise refusal
        close_all(descriptors)
        raise DeviceUnavailable(f"what answers at {self._path} is no broker of this release")


def call_elsewhere(connector: Callable[[], _Made], done: Callable[[], object]) -> Future[_Made]:
    """Call a function on a thread of its own, and another one once the outcome is there."""
    outcome: Future[_Made] = Future()

    def call() -> None:
        try:
            outcome.set_result(connector())
        except Exception as error:  # noqa: BLE001 - for who takes the outcome
            outcome.set_exception(error)
        done()

    threading.Thread(target=call, name="tensorwasm-dial", daemon=True).start()
    return outcome
