"""`WorkerBroker`: lets other processes of this user share the workers of an executor."""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from tensorwasm.errors import InvalidArgs, TensorWasmError
from tensorwasm.runtime.workers.broker_client import ANSWER_S, BrokerReply, BrokerRequest, close_all, read_line
from tensorwasm.runtime.workers.frames import PROTOCOL
from tensorwasm.runtime.workers.outcomes import describe_error
from tensorwasm.runtime.workers.pool import WorkerExecutor

_THREADS: Final = 4
_END_S: Final = 1.0
_CREDENTIALS: Final = struct.Struct("3i")

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

    Raises:
        InvalidArgs: the executor's tenants share no workers, the path is too long, or another broker listens there.
    """

    def __init__(self, executor: WorkerExecutor, path: Path) -> None:
        if executor.isolation == "process":
            raise InvalidArgs("a broker's workers are shared by tenants: isolation is guarded or stream, not process")
        self._executor = executor
        self._path = path
        self._listener = _listen(path)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tensorwasm-broker")
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="tensorwasm-broker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand out no more connections; those that fronts have go on while the executor's workers do. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends `accept` on Linux
        self._thread.join(_END_S)
        self._listener.close()
        self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                link, _ = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    _log.error("no front can connect any more: %s", error)
                return
            self._threads.submit(self._serve, link)

    def _serve(self, link: socket.socket) -> None:
        with link:
            link.settimeout(ANSWER_S)
            try:
                if _is_ours(link):
                    self._answer(link)
            except OSError as error:
                _log.info("a front has gone before it was answered: %s", error)
            except Exception:  # noqa: BLE001 - a bug, which costs one front one connection
                _log.exception("a front was not answered")

    def _answer(self, link: socket.socket) -> None:
        line, descriptors = read_line(link)
        close_all(descriptors)
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
            socket.send_fds(link, [msgspec.json.encode(reply) + b"\n"], theirs if reply.failure is None else [])
        finally:
            close_all(theirs)


def _read(line: bytes) -> BrokerRequest:
    try:
        request = _requests.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidArgs(f"a broker is asked something else: {error}") from None
    if request.protocol != PROTOCOL:
        raise InvalidArgs("the broker is of another release: start it again")
    return request


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path, in place of one that a broker has left which ended."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _answers(path):
        raise InvalidArgs(f"another broker listens at {path}")
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)  # nobody can connect before it listens
        listener.listen()
    except OSError as error:
        listener.close()
        raise InvalidArgs(f"no broker can listen at {path}: {error.strerror or error}") from None
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False


def _is_ours(link: socket.socket) -> bool:
    """Return whether a process of this user is at the other end; the socket's mode keeps others out, too."""
    if sys.platform != "linux":
        return True
    _, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())
