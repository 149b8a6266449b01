"""`WorkerBroker`: lets other processes of this user share the workers of an executor."""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import msgspec

from tensorwasm.errors import InvalidArgs, TensorWasmError
from tensorwasm.runtime.workers.broker_client import ANSWER_S, MAX_LINE_BYTES, BrokerReply, BrokerRequest, close_all
from tensorwasm.runtime.workers.frames import PROTOCOL
from tensorwasm.runtime.workers.outcomes import describe_error
from tensorwasm.runtime.workers.pool import WorkerExecutor

_CALLERS: Final = 64
"""Processes that are listened to at a time; for one more, the first of them is dropped."""
_CREDENTIALS: Final = struct.Struct("3i")

_RETRY_S: Final = 0.1
_requests: Final = msgspec.json.Decoder(BrokerRequest)
_log: Final = logging.getLogger(__name__)


class WorkerBroker:
    """Hands out connections to the workers of an executor, on a Unix socket that this user alone can reach.

    The workers are the executor's: it compiles their kernels, gives turns on their GPUs to the tenants of all fronts,
    and replaces processes that end. Fronts come and go (`WorkerExecutor(broker=...)`). Close it before the executor, or
    use it as a context manager.

    Args:
        executor: whose workers tenants share.
        path: of the socket; its folder is made if it does not exist.

    Fronts of an executor whose tenants share no workers learn that from it, and start their own.

    Raises:
        InvalidArgs: the path is too long, or another broker listens there.
    """

    def __init__(self, executor: WorkerExecutor, path: Path) -> None:
        self._executor = executor
        self._path = path
        held = _lock(path)
        try:
            self._listener = _listen(path)
        except InvalidArgs:
            os.close(held)
            raise
        self._held: int | None = held  # None once the path is another broker's to take
        self._gone: Callable[[], object] | None = None  # set by `leave`; called when the thread ends
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._callers: dict[socket.socket, _Caller] = {}  # the first that came first
        self._fronts: set[socket.socket] = set()  # they have connections to workers, and learn of the broker's end
        self._thread = threading.Thread(target=self._keep, name="tensorwasm-broker", daemon=True)
        self._thread.start()

    def leave(self, gone: Callable[[], object]) -> None:
        """Leave the path to the next broker, and call a function once no front has a connection any more."""
        self._gone = gone
        with suppress(OSError):  # this is closed
            self._waker.send(b"\0")

    def close(self) -> None:
        """Hand out no more connections; those that fronts have go on while the executor's workers do. Idempotent."""
        self._waker.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self) -> None:
        """Answer callers until closed. Never blocks on a single caller."""
        try:
            self._selector.register(self._woken, selectors.EVENT_READ)
            self._selector.register(self._listener, selectors.EVENT_READ)
            while self._turn() and (self._held is not None or self._callers or self._fronts):
                pass
        finally:
            if self._held is not None:
                self._give_path(self._held)
            for link in (*self._callers, *self._fronts, self._woken):
                link.close()
            self._selector.close()
            if self._gone is not None:
                self._gone()

    def _give_path(self, held: int) -> None:
        """Listen no more, and leave nothing at the path."""
        with suppress(OSError):
            self._path.unlink()
        with suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()
        os.close(held)
        self._held = None

    def _turn(self) -> bool:
        """Do what is to be done next; return whether to go on."""
        ends_s = next((caller.ends_s for caller in self._callers.values()), math.inf)
        wait_s = None if ends_s == math.inf else max(0.0, ends_s - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._woken:
                if not self._woken.recv(1):
                    return False
                if self._held is not None:
                    self._give_path(self._held)
            elif key.fileobj is self._listener and self._held is not None:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj is not self._listener:
                self._listen_to(key.fileobj)
        now_s = time.monotonic()
        for link in [link for link, caller in self._callers.items() if caller.ends_s <= now_s]:
            self._drop(link)
        return True

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError as error:  # it has gone again, or there are no descriptors left
            _log.warning("a front cannot connect: %s", error)
            if self._callers:
                self._drop(next(iter(self._callers)))
            time.sleep(_RETRY_S)  # it is asked again and again until that works
            return
        link.setblocking(False)
        if not _is_ours(link):
            link.close()
            return
        if len(self._callers) >= _CALLERS:
            self._drop(next(iter(self._callers)))
        self._callers[link] = _Caller(time.monotonic() + ANSWER_S)
        self._selector.register(link, selectors.EVENT_READ)

    def _drop(self, link: socket.socket) -> None:
        if self._callers.pop(link, None) is not None or link in self._fronts:
            self._fronts.discard(link)
            self._selector.unregister(link)
            link.close()

    def _listen_to(self, link: socket.socket) -> None:
        """Take more of a caller's line; answer it once it is whole. Once answered, it ends, or says what it may not."""
        caller = self._callers.get(link)
        if caller is None:
            self._drop(link)  # unless it was in this turn
            return
        try:
            part = link.recv(MAX_LINE_BYTES)
            caller.line += part
            if caller.line.endswith(b"\n"):
                if self._answer(link, bytes(caller.line[:-1])):
                    del self._callers[link]
                    self._fronts.add(link)
                    return
            elif part and len(caller.line) <= MAX_LINE_BYTES:
                return
        except OSError as error:
            _log.info("a front has gone before it was answered: %s", error)
        except Exception:  # noqa: BLE001 - a bug, which costs one front one connection
            _log.exception("a front was not answered")
        self._drop(link)

    def _answer(self, link: socket.socket, line: bytes) -> bool:
        """Answer a caller; return whether it has a connection to a worker now."""
        theirs: list[int] = []
        reply = BrokerReply(self._executor.devices, self._executor.isolation)
        try:
            request = _read(line)
            if request.device is not None:
                ours, front = socket.socketpair()
                theirs = [front.detach()]
                self._executor.connect(ours, request.device, long=request.long)
        except TensorWasmError as error:
            reply = BrokerReply(failure=describe_error(1, error))
        try:
            given = theirs if reply.failure is None else []
            socket.send_fds(link, [msgspec.json.encode(reply) + b"\n"], given)
            return bool(given)
        finally:
            close_all(theirs)


@dataclass(slots=True)
class _Caller:
    """A process that has connected to the broker: until when its line has to be whole, and what has come of it."""

    ends_s: float
    line: bytearray = field(default_factory=bytearray)


def _read(line: bytes) -> BrokerRequest:
    try:
        request = _requests.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidArgs(f"a broker is asked something else: {error}") from None
    if request.protocol != PROTOCOL:
        raise InvalidArgs("the broker is of another release: start it again")
    return request


def _lock(path: Path) -> int:
    """Return a descriptor that holds the path for one broker: what another one has left there may be replaced then."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidArgs(f"no broker can listen at {path}: {error.strerror}") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise InvalidArgs(f"another broker listens at {path}") from None
    return held


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path, in place of a stale one."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not _answers(path):  # anything else stays, and is an error
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens, connecting fails
        listener.listen()
    except OSError as error:
        listener.close()
        raise InvalidArgs(f"no broker can listen at {path}: {error.strerror or error}") from None
    listener.setblocking(False)  # a front may have gone again before it is accepted
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(str(path))
        return code in {0, errno.EAGAIN}  # EAGAIN: too many wait to be accepted


def _is_ours(link: socket.socket) -> bool:
    """Return whether a process of this user is at the other end; the socket's mode keeps others out, too."""
    if sys.platform != "linux":
        return True
    _, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())
