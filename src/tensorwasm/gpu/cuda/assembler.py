"""ptxas in a child process, so that untrusted PTX becomes a cubin without NVIDIA's compiler running in this process.

The compiler is known to crash on programs that it should refuse. In a child a crash is one more refusal; inside the
driver's compiler it would end this process. The child gets a folder of its own (mode 0700, removed afterwards), a
minimal environment, and limits on time, memory and file size. The cubin is kept in memory only.

Source: CUDA Toolkit Documentation, "CUDA Compiler Driver NVCC", ptxas options, "Printing Code Generation Statistics";
CUDA Compatibility, "Minor Version Compatibility" (a cubin runs on any driver of its toolkit's major release or a later
one).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import DeviceUnavailable, MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.cuda.driver.versions import Version, assembles, isa_version, parse_version
from tensorwasm.gpu.device.admission import CompiledKernel
from tensorwasm.values import Deadline
from tensorwasm.watch import Watch

if sys.platform != "win32":
    import resource

ROOT_VARIABLES: Final = ("CUDA_ROOT", "CUDA_PATH", "CUDA_HOME")
"""Variables that name the toolkit's folder, in the order in which they are read."""

_VERSION_LIMIT_S: Final = 10.0
_LOG_BYTES: Final = 1 << 20
_CUBIN_BYTES: Final = 256 << 20
_KEPT_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP")

_SUMMARY_LINES: Final = 3
_SUMMARY_CHARACTERS: Final = 400
_PATH: Final = re.compile(r"(?<!\w)(?:[A-Za-z]:)?(?:[\\/][\w.+-]+)+[\\/]?")
_PREAMBLE: Final = re.compile(r"^ptxas\s+(?:application ptx input|[\w.]*)\s*,\s*|^ptxas\s+(?=error|fatal|warning|info)")
_REPORTED: Final = re.compile(r"info\b|\d+ bytes stack frame")
_USED: Final = re.compile(r"^ptxas info\s*: Used (\d+) registers(.*)$", re.MULTILINE)
_FRAME: Final = re.compile(r"^\s*(\d+) bytes stack frame,", re.MULTILINE)
_STACK: Final = re.compile(r"\b(\d+) bytes cumulative stack size")
_SHARED: Final = re.compile(r"\b(\d+) bytes smem")
_ABORTED: Final = "fatal : Ptx assembly aborted due to errors"


@dataclass(frozen=True, slots=True)
class Assembler:
    """A ptxas that runs on this machine.

    Attributes:
        path: the executable.
        release: its toolkit's release, such as (13, 0).
        wall_s: seconds that one run may take, of wall clock and of processor.
        memory_bytes: address space that one run may use.
        apart: whether a run has a process group of its own; otherwise it ends with the group of its caller.
    """

    path: str
    release: Version
    wall_s: float = 60.0
    memory_bytes: int = 4 << 30
    apart: bool = True

    @property
    def name(self) -> str:
        """The compiler and its release, as `tensorwasm.gpu.device.port.Device.assembler`."""
        return f"ptxas {self.release[0]}.{self.release[1]}"

    def serves(self, capability: tuple[int, int], driver_cuda: tuple[int, int]) -> bool:
        """Return whether it knows the device, and the driver takes its cubins."""
        return assembles(self.release, capability) and self.release[0] <= driver_cuda[0]

    def suits(self, capability: tuple[int, int], isa: tuple[int, int], driver_cuda: tuple[int, int]) -> bool:
        """Return whether it serves the device and driver, and knows the PTX ISA."""
        return self.serves(capability, driver_cuda) and isa <= isa_version(self.release)

    def assemble(self, text: str, architecture: str, deadline: Deadline) -> bytes:
        """Return the cubin of a PTX text that `tensorwasm.ptx` has printed, for ``sm_90``, ``sm_90a``, ...

        Raises:
            MalformedPtx: ptxas refuses the text, crashes on it or exceeds its limits.
            InvokeTimeout: the deadline passed.
            DeviceUnavailable: ptxas or the folder for its files cannot be used. The driver's own compiler is no
                substitute, for it would compile the text inside this process.
        """
        return self._assemble(text, architecture, deadline)[0]

    def compile_kernel(self, text: str, architecture: str, deadline: Deadline) -> CompiledKernel:
        """Return the one kernel of a text as a cubin, with what it takes; otherwise as `assemble`.

        Raises:
            UnsupportedPtx: this ptxas does not say what it takes.
        """
        return read_report(*self._assemble(text, architecture, deadline, "--verbose"))

    def _assemble(self, text: str, architecture: str, deadline: Deadline, *options: str) -> tuple[bytes, str]:
        """Return the cubin of a text and what ptxas said."""
        try:
            with tempfile.TemporaryDirectory(prefix="tensorwasm-ptxas-") as folder:
                source, cubin, log = (Path(folder, name) for name in ("module.ptx", "module.cubin", "log"))
                source.write_text(text, encoding="ascii")
                named = ["--gpu-name", architecture, "-o", cubin.name, source.name]
                code = self._run([*options, *named], folder, log, deadline)
                if code is None:
                    Watch(deadline, "while ptxas compiled the module").look()
                if code == 0 and cubin.is_file():
                    return cubin.read_bytes(), _said(log).decode("ascii", "replace")
                refusal = _refusal(code, _said(log))
        except OSError as error:
            # The whole text of the error shows paths of this machine.
            raise DeviceUnavailable(f"this machine cannot run ptxas: {error.strerror or 'no reason given'}") from error
        raise MalformedPtx(refusal)

    def _run(self, options: list[str], folder: str, log: Path, deadline: Deadline) -> int | None:
        """Return the child's exit status, negative for a signal, None past the time limit or the deadline."""
        with log.open("wb") as output:
            child = subprocess.Popen(  # noqa: S603 - the operator's own ptxas, without a shell
                [self.path, *options],
                cwd=folder,
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=self.apart,
            )
        try:
            self._confine(child.pid)
            return child.wait(min(self.wall_s, deadline.remaining_s()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(child, group=self.apart)

    def _confine(self, pid: int) -> None:
        # From outside: `preexec_fn` is unsafe in a process with threads.
        if sys.platform != "linux":
            return  # the wall clock alone limits it
        limits = {
            resource.RLIMIT_AS: self.memory_bytes,
            resource.RLIMIT_CPU: round(self.wall_s) + 1,
            resource.RLIMIT_FSIZE: _CUBIN_BYTES,
            resource.RLIMIT_CORE: 0,
        }
        with suppress(ProcessLookupError):  # it has ended already
            for kind, most in limits.items():
                resource.prlimit(pid, kind, (most, most))


def find_assembler(
    preferred: str, environment: Mapping[str, str], serves: Callable[[Assembler], bool] = lambda _: True
) -> Assembler | None:
    """Return the first ptxas that answers and serves; without one, the first that answers; None if none does.

    Asked in this order: the preferred path, the PATH, the toolkit's folder, NVIDIA's packages for Python.
    """
    roots = [environment[name] for name in ROOT_VARIABLES if environment.get(name)]
    paths = [preferred, shutil.which("ptxas", path=environment.get("PATH", "")) or ""]
    paths += [str(Path(root, "bin", "ptxas")) for root in [*roots, "/usr/local/cuda"]]
    first = None
    for path in filter(None, [*paths, *_packaged()]):
        release = _release(path)
        if release is None:
            continue
        found = Assembler(path, release)
        if serves(found):
            return found
        first = first or found
    return first


def _packaged() -> list[str]:
    """Return the ptxas of the packages ``nvidia-cuda-nvcc``, newest first, and ``nvidia-cuda-nvcc-cu12``."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    newest = sorted((path for folder in folders for path in folder.glob("cu[0-9]*/bin/ptxas")), reverse=True)
    return [str(path) for path in [*newest, *(folder / "cuda_nvcc" / "bin" / "ptxas" for folder in folders)]]


def read_report(cubin: bytes, said: str) -> CompiledKernel:
    """Return a compiled kernel by what ``ptxas --verbose`` said of it.

    Local memory is the frames of kernel and functions together. ptxas counts spills in, and adds the frames up itself
    where it can.

    Raises:
        UnsupportedPtx: it did not say it, or of other than one kernel.
    """
    used = _USED.findall(said)
    frames = [int(size) for size in _FRAME.findall(said)]
    if len(used) != 1 or not frames or len(said) >= _LOG_BYTES:
        raise UnsupportedPtx("this ptxas does not say what the kernel takes of the device, so that it is not admitted")
    registers, rest = used[0]
    stack, shared = _STACK.search(rest), _SHARED.search(rest)
    local_bytes = max(int(stack[1]), *frames) if stack else sum(frames)
    return CompiledKernel(cubin, int(registers), local_bytes, int(shared[1]) if shared else 0)


def summarize(log: bytes) -> str:
    """Return the first meaningful lines of a compiler's log, joined by ``; ``: short, plain ASCII, no paths."""
    lines = map(_clean, log.split(b"\0", 1)[0].decode("ascii", "replace").splitlines())
    said = [line for line in lines if line not in {"", _ABORTED} and not _REPORTED.match(line)]
    return "; ".join(said[:_SUMMARY_LINES])[:_SUMMARY_CHARACTERS]


def _clean(line: str) -> str:
    printable = "".join(character if " " <= character <= "~" else " " for character in line)
    return " ".join(_PREAMBLE.sub("", _PATH.sub("", printable)).split())


def _release(path: str) -> Version | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the operator's own ptxas, without a shell
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return parse_version(answer.stdout.partition("release")[2])


def _end(child: subprocess.Popen[bytes], *, group: bool) -> None:
    """Kill the child, with its process group if that is its own, and reap it."""
    if child.poll() is None:
        if sys.platform == "win32" or not group:
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _said(log: Path) -> bytes:
    with log.open("rb") as stream:
        return stream.read(_LOG_BYTES)


def _refusal(code: int | None, log: bytes) -> str:
    if code is None:
        return "ptxas did not finish the module in time"
    if code < 0:
        return f"ptxas crashed on the module (signal {-code})"
    said = summarize(log)
    return f"ptxas refuses the module: {said}" if said else f"ptxas refuses the module (exit code {code})"
