"""Worker processes are forked from a template, a process that has loaded what they need; this is its owner's side.

A template is started by its program, with a worker's environment, so that no key is in its memory or in that of a
worker. It is asked over a socket, by any process that has the other end: the server's processes inherit that of their
supervisor (`adopt`), all others start templates of their own when they first need one. A template ends once no process
can ask it any more, and its workers have ended; until then it stays, also while it has no workers.

The supervisor imports this module, so it imports little itself.

Source: Linux man-pages, unix(7) SCM_RIGHTS and SOCK_SEQPACKET, pidfd_open(2).
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.cuda.driver.mps import PIPES_VARIABLE, WITHOUT_MPS

PROGRAM: Final = ("-m", "tensorwasm.runtime.workers.child")
"""What Python runs as a template; descriptors' numbers follow (`tensorwasm.runtime.workers.child.fork_server`)."""

FORKS: Final = sys.platform == "linux"
"""Whether workers are forked from templates; elsewhere each of them runs the program itself."""

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
    "TENSOR_WASM_OFFLOAD_SHADOW",
    "TENSOR_WASM_OFFLOAD_THREADS",
    "TENSOR_WASM_POOL_SLOTS",
    "TENSOR_WASM_PTXAS",
)
"""Variables that a worker gets. A list of names, not of patterns: keys are kept in variables too."""

KEYLESS: Final = {"TENSOR_WASM_CODE_CACHE": "0", "TENSOR_WASM_KERNEL_CACHE": "0"}
"""What is kept on the disk is signed, and no key is in a process with guests that a GPU may have let out."""

MOST: Final = 4
"""Templates that a process keeps; for one more, the one not asked for longest is left to end with its workers."""


def make_environment(environment: Mapping[str, str], pipes: str | None) -> dict[str, str]:
    """Return the environment of a worker, which joins the MPS daemon of the folder `pipes`, or none for None."""
    kept = {name: environment[name] for name in INHERITED if name in environment}
    return kept | KEYLESS | {PIPES_VARIABLE: pipes or WITHOUT_MPS}


def start_template(
    program: Sequence[str], environment: Mapping[str, str], asked: socket.socket
) -> subprocess.Popen[bytes]:
    """Start a template that is asked at a socket, whose pair this process has made; raise OSError if that fails."""
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
        [sys.executable, "-P", *program, str(asked.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=dict(environment),
        pass_fds=(asked.fileno(),),
        start_new_session=True,
    )


class WorkerTemplate:
    """A template as one of the processes that may ask it.

    Args:
        asking: the socket where it is asked; this process's alone from now on.
        process: the template, None if another process has started it.
    """

    def __init__(self, asking: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.asking, self.process = asking, process
        asking.setblocking(False)

    @classmethod
    def start(cls, program: Sequence[str], environment: Mapping[str, str]) -> WorkerTemplate:
        """Start a template; raise OSError if that fails."""
        asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with asked:
                return cls(asking, start_template(program, environment, asked))
        except BaseException:
            asking.close()
            raise

    def fork(self, pipes: str, descriptors: Sequence[int]) -> None:
        """Ask for a worker, which has the descriptors, in the order of `ForkServer`; raise OSError if that fails."""
        socket.send_fds(self.asking, [pipes.encode()], descriptors, socket.MSG_NOSIGNAL)

    def has_gone(self) -> bool:
        """Return whether the template has ended. It never writes to the socket, so only its end can be read."""
        try:
            return not self.asking.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Ask it no more. It ends at the latest when its workers have."""
        self.asking.close()


_Key = tuple[tuple[str, ...], frozenset[tuple[str, str]]]
_lock: Final = threading.Lock()
_kept: Final[dict[_Key, WorkerTemplate]] = {}
"""This process's templates, by program and environment; the one asked last is the last."""
_leaving: Final[list[subprocess.Popen[bytes]]] = []
"""Templates that this process asks no more, until they have ended."""


def adopt(descriptor: int) -> None:
    """Have workers with this process's environment forked from a template that is asked at an inherited socket."""
    os.set_inheritable(descriptor, False)
    with _lock:
        _kept[_key(PROGRAM, make_environment(os.environ, None))] = WorkerTemplate(socket.socket(fileno=descriptor))


def fork_worker(program: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> None:
    """Have a worker forked from the template with a program and an environment, as `WorkerTemplate.fork`.

    Raises:
        DeviceUnavailable: no template can be started, or it does not take what it is asked.
    """
    common, pipes = {**environment, PIPES_VARIABLE: WITHOUT_MPS}, environment[PIPES_VARIABLE]
    with _lock:
        try:
            _current(program, common).fork(pipes, descriptors)
        except OSError as error:  # it has just died, or is asked too much
            raise DeviceUnavailable(f"no worker process can be started: {error.strerror}") from None


def _current(program: Sequence[str], environment: Mapping[str, str]) -> WorkerTemplate:
    """Return the template with a program and an environment, started if there is none that lives. The lock is held."""
    _leaving[:] = [each for each in _leaving if each.poll() is None]
    key = _key(program, environment)
    template = _kept.pop(key, None)
    if template is not None and template.has_gone():
        _leave(template)
        template = None
    _kept[key] = template = template or WorkerTemplate.start(program, environment)
    while len(_kept) > MOST:
        _leave(_kept.pop(next(iter(_kept))))
    return template


@atexit.register
def _end_all() -> None:
    """End the templates of this process with it: one that loads would learn of its end only then."""
    for template in _kept.values():
        _leave(template)
    for each in _leaving:
        each.kill()
        each.wait()


def _key(program: Sequence[str], environment: Mapping[str, str]) -> _Key:
    return tuple(program), frozenset(environment.items())


def _leave(template: WorkerTemplate) -> None:
    template.close()
    if template.process is not None:
        _leaving.append(template.process)
