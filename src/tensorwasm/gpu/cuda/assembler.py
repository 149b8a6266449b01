"""ptxas in a child process: untrusted PTX becomes a cubin without NVIDIA's compiler ever running inside ours.

The compiler is known to crash on programs it should refuse. In a child a crash is one more refusal; inside the driver's
compiler it would end this process. The child gets a folder of its own (mode 0700, removed afterwards), a minimal
environment, and limits on time, memory and file size. The cubin is kept in memory only.

Source: CUDA Toolkit Documentation, "CUDA Compiler Driver NVCC", ptxas options; CUDA Compatibility, "Minor Version
Compatibility" (a cubin runs on any driver of its toolkit's major release or a later one).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import DeviceUnavailable, MalformedPtx
from tensorwasm.gpu.cuda.diagnostics import summarize
from tensorwasm.gpu.cuda.versions import Version, assembles, isa_version, parse_version
from tensorwasm.values import Deadline
from tensorwasm.watch import Watch

if sys.platform != "win32":
    import resource

ROOT_VARIABLES: Final = ("CUDA_ROOT", "CUDA_PATH", "CUDA_HOME")
"""Variables that name the toolkit's folder, in the order in which they are asked."""

_VERSION_LIMIT_S: Final = 10.0
_LOG_BYTES: Final = 64 << 10
_CUBIN_BYTES: Final = 256 << 20
_KEPT_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP")


@dataclass(frozen=True, slots=True)
class AssemblyLimits:
    """What one run of ptxas may use.

    Attributes:
        wall_s: seconds, of wall clock and of processor.
        memory_bytes: address space.
    """

    wall_s: float = 60.0
    memory_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class Assembler:
    """A ptxas that was found and answers.

    Attributes:
        path: the executable.
        release: its toolkit's release, such as (13, 0).
        limits: what one run may use.
    """

    path: str
    release: Version
    limits: AssemblyLimits = AssemblyLimits()

    def serves(self, capability: tuple[int, int], driver_cuda: tuple[int, int]) -> bool:
        """Return whether it knows the device, and the driver takes its cubins."""
        return assembles(self.release, capability) and self.release[0] <= driver_cuda[0]

    def suits(self, capability: tuple[int, int], isa: tuple[int, int], driver_cuda: tuple[int, int]) -> bool:
        """Return whether it serves the device and driver, and knows the PTX ISA."""
        return self.serves(capability, driver_cuda) and isa <= isa_version(self.release)

    def assemble(self, text: str, architecture: str, deadline: Deadline) -> bytes:
        """Return the cubin of a PTX text.

        Args:
            text: the module, printed by us.
            architecture: ``sm_90``, ``sm_90a``.
            deadline: when ptxas is ended, if its own limit does not end it before.

        Raises:
            MalformedPtx: ptxas refuses the text, crashes on it or exceeds its limits.
            InvokeTimeout: the deadline passed.
            DeviceUnavailable: this machine could not run ptxas: it has gone, or there is no room for its files. The
                driver's own compiler does not stand in, for it would compile the text inside this process.
        """
        try:
            return self._assemble(text, architecture, deadline)
        except OSError as error:
            # The whole text of the error shows paths of this machine.
            raise DeviceUnavailable(f"this machine cannot run ptxas: {error.strerror or 'no reason given'}") from error

    def _assemble(self, text: str, architecture: str, deadline: Deadline) -> bytes:
        with tempfile.TemporaryDirectory(prefix="tensorwasm-ptxas-") as folder:
            source, cubin, log = (Path(folder, name) for name in ("module.ptx", "module.cubin", "log"))
            source.write_text(text, encoding="ascii")
            code = self._run(["--gpu-name", architecture, "-o", cubin.name, source.name], folder, log, deadline)
            if code is None:
                Watch(deadline, "while ptxas compiled the module").look()
            if code != 0 or not cubin.is_file():
                raise MalformedPtx(_refusal(code, log))
            return cubin.read_bytes()

    def _run(self, options: list[str], folder: str, log: Path, deadline: Deadline) -> int | None:
        """Return the child's exit status, negative for a signal, None past the time limit or the deadline."""
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        with log.open("wb") as output:
            child = subprocess.Popen(  # noqa: S603 - the operator's own ptxas, without a shell
                [self.path, *options],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _confine(child.pid, self.limits)
            return child.wait(min(self.limits.wall_s, deadline.remaining_s()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(child)


def find_assembler(preferred: str, environment: Mapping[str, str]) -> Assembler | None:
    """Return the first ptxas that answers: the preferred path, the PATH, the toolkit's folder; None if none does."""
    roots = [environment[name] for name in ROOT_VARIABLES if environment.get(name)]
    places = [preferred, shutil.which("ptxas", path=environment.get("PATH", "")) or ""]
    places += [str(Path(root, "bin", "ptxas")) for root in [*roots, "/usr/local/cuda"]]
    for place in filter(None, places):
        release = _release(place)
        if release is not None:
            return Assembler(place, release)
    return None


def _release(path: str) -> Version | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the operator's own ptxas, without a shell
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return parse_version(answer.stdout.partition("release")[2])


def _confine(pid: int, limits: AssemblyLimits) -> None:
    """Set the child's limits from outside: `preexec_fn` is unsafe in a process with threads."""
    if sys.platform != "linux":
        return  # the wall clock alone limits it
    seconds = round(limits.wall_s) + 1
    try:
        resource.prlimit(pid, resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_CUBIN_BYTES, _CUBIN_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except ProcessLookupError:
        return  # it has ended already


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and what it started, and reap it."""
    if child.poll() is None:
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _refusal(code: int | None, log: Path) -> str:
    if code is None:
        return "ptxas did not finish the module in time"
    if code < 0:
        return f"ptxas crashed on the module (signal {-code})"
    with log.open("rb") as stream:
        said = summarize(stream.read(_LOG_BYTES))
    return f"ptxas refuses the module: {said}" if said else f"ptxas refuses the module (exit code {code})"
