"""Starting a worker process and ending it.

Parent and worker talk over an unnamed pair of connected sockets: there is no file whose mode must be right, and no
other process can connect. The worker still verifies that its parent made the pair. Over a second one the parent hands
the worker the connections of fronts (`child/server.py`). Of both, the worker inherits its end and nothing else.

The process is spawned, never forked, with an environment, a session and a process group of its own.

Source: Linux man-pages, socketpair(2), setsid(2), killpg(3), unix(7) SCM_RIGHTS.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final, Protocol

from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.cuda.driver.mps import PIPES_VARIABLE, WITHOUT_MPS
from tensorwasm.runtime.workers.frames import UnfitFrame

PROGRAM: Final = ("-m", "tensorwasm.runtime.workers.child")
"""What Python runs in a worker; the numbers of the two descriptors follow."""

INHERITED: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "CUDA_ARCH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "TENSOR_WASM_CACHE",
    "TENSOR_WASM_COMPILE_MEMORY",
    "TENSOR_WASM_COMPILE_TIMEOUT",
    "TENSOR_WASM_EMULATOR_ARCH",
    "TENSOR_WASM_EMULATOR_MEMORY",
    "TENSOR_WASM_EMULATOR_PTX",
    "TENSOR_WASM_GPU_MEMORY",
    "TENSOR_WASM_GPU_QUOTA",
    "TENSOR_WASM_GPU_SESSION",
    "TENSOR_WASM_NATIVE",
    "TENSOR_WASM_POOL_SLOTS",
    "TENSOR_WASM_PTXAS",
)
"""Variables that a worker gets. A list of names, not of patterns: keys are kept in variables too."""

KEYLESS: Final = {"TENSOR_WASM_CODE_CACHE": "0", "TENSOR_WASM_KERNEL_CACHE": "0"}
"""What is kept on the disk is signed, and no key is in a process with guests that a GPU may have let out."""

_REAP_S: Final = 10.0


def make_environment(environment: Mapping[str, str], pipes: str | None) -> dict[str, str]:
    """Return the environment of a worker, which joins the MPS daemon of the folder `pipes`, or none for None."""
    kept = {name: environment[name] for name in INHERITED if name in environment}
    return kept | KEYLESS | {PIPES_VARIABLE: pipes or WITHOUT_MPS}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a process gets for what, in seconds.

    Attributes:
        start_s: from its start until it is ready; compiling host functions for the first time takes ten.
        beat_s: between two of its heartbeats.
        silent_s: without any before it is taken to hang.
        drain_s: to finish what it has once its device is lost.
        stop_s: to leave.
    """

    start_s: float = 120.0
    beat_s: float = 1.0
    silent_s: float = 15.0
    drain_s: float = 5.0
    stop_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended.

    Attributes:
        text: for people; ``was killed by SIGKILL``, ``sent no heartbeat for 15 s``.
        blamed: it had requests, or had answered some.
        unfit: what it said of its device, None if it did not.
        orphan: as of `WorkerProcess`: no request of its is the cause.
    """

    text: str
    blamed: bool
    unfit: UnfitFrame | None = None
    orphan: bool = False


class WorkerProcess(Protocol):
    """A worker process to talk to.

    Attributes:
        link: this end of the connection, non-blocking.
        errors: the process's standard error, non-blocking; None if another process has started it.
        orphan: whether the process has ended with the one that had started it, known after `wait`.
    """

    link: socket.socket
    errors: IO[bytes] | None
    orphan: bool

    @property
    def pid(self) -> int | None:
        """The process's number, None if another process has started it."""

    def admit(self, link: socket.socket) -> None:
        """Hand the process the connection of a front. The process has it then, and the caller no more."""

    def wait(self, limit_s: float) -> None:
        """Wait a moment for a process that is about to end by itself."""

    def end(self) -> int | None:
        """End the process, or the connection to one that another process has started, and release everything.

        Returns:
            The exit status, None if it is not known.
        """


@dataclass(slots=True)
class Process:
    """A worker process that this one has started; see `WorkerProcess`."""

    link: socket.socket
    errors: IO[bytes] | None
    _handover: socket.socket
    _popen: subprocess.Popen[bytes]
    orphan: bool = False

    @classmethod
    def spawn(cls, program: Sequence[str], environment: Mapping[str, str]) -> Process:
        """Start a process, which on Linux ends with the calling thread; `DeviceUnavailable` if that fails."""
        if sys.platform == "win32":
            raise DeviceUnavailable("worker processes need Linux or macOS")
        (ours, theirs), (handover, fronts) = socket.socketpair(), socket.socketpair()
        inherited = theirs.fileno(), fronts.fileno()
        try:
            popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
                [sys.executable, "-P", *program, *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=dict(environment),
                pass_fds=inherited,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            handover.close()
            raise DeviceUnavailable(f"no worker process can be started: {error.strerror}") from None
        finally:
            theirs.close()
            fronts.close()
        ours.setblocking(False)
        handover.setblocking(False)
        assert popen.stderr is not None  # noqa: S101 - it was asked for
        os.set_blocking(popen.stderr.fileno(), False)
        return cls(ours, popen.stderr, handover, popen)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._popen.pid

    def admit(self, link: socket.socket) -> None:
        """See `WorkerProcess.admit`. A process that has gone, or takes none, ends the connection."""
        with link, contextlib.suppress(OSError):
            socket.send_fds(self._handover, [b"\0"], [link.fileno()])

    def end(self) -> int:
        """Kill the process and its children, and release everything; return its exit status.

        Until this returns, the system gives the number of the process, or of its group, to no other.
        """
        # The leader is not reaped yet, so its number, which is the group's, is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        try:
            return self._popen.wait(_REAP_S)
        except subprocess.TimeoutExpired:  # in the kernel, in a driver's call that does not return
            return -signal.SIGKILL
        finally:
            self.link.close()
            self._handover.close()
            if self.errors is not None:
                self.errors.close()

    def wait(self, limit_s: float) -> None:
        """Wait a moment for a process that is about to end by itself, on Linux."""
        if sys.platform != "linux":
            return
        watch = os.pidfd_open(self._popen.pid)
        try:
            with selectors.DefaultSelector() as selector:  # select() takes no descriptor over 1,023
                selector.register(watch, selectors.EVENT_READ)
                selector.select(limit_s)
        finally:
            os.close(watch)


def describe_exit(status: int | None) -> str:
    """Return how a process ended, for people: ``was killed by SIGSEGV``, ``exited with code 1``."""
    if status is None:
        return "has gone"
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
