"""The machine as the checks see it: what they read from it, facts that are looked up once, results and the report.

Tests replace `System`, which reads from the machine.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from importlib import metadata
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

from tensorwasm.doctor.diagnoses import diagnose
from tensorwasm.errors import DeviceUnavailable, TensorWasmError
from tensorwasm.gpu.cuda.assembler import ROOT_VARIABLES, find_assembler
from tensorwasm.gpu.cuda.driver.versions import Version, parse_version
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.opening import open_device, parse_choice

_WIDTH: Final = 110
_LABEL: Final = 22


class Status(StrEnum):
    """Severity of a result."""

    OK = "OK"
    INFO = "INFO"  # neither good nor bad
    WARN = "WARN"  # something is broken that the chosen device does not need
    FAIL = "FAIL"  # keeps the chosen device from working


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One row of the report; `diagnosis` and `fix` are empty where there is nothing to explain or to do."""

    check: str  # stable: programs read it
    status: Status
    seen: str
    diagnosis: str = ""
    fix: str = ""


Results = CheckResult | tuple[CheckResult, ...] | None
"""What one check returns; None if it does not apply to the machine."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Results of all checks of a machine, in the order in which they were made.

    Attributes:
        ok: the chosen device works and no check failed.
        choice: device that was asked for.
        device: kind and name of the device that opened; empty if none did.
        platform: the value of ``sys.platform``.
        rows: the results.
    """

    ok: bool
    choice: str
    device: str
    platform: str
    rows: tuple[CheckResult, ...]


def render(report: MachineReport) -> str:
    """Return a report as plain ASCII text: one line per result, cause and fix below it."""
    verdict = f"{report.device} works." if report.ok else "The chosen device does not work."
    return render_rows(f"TensorWasm doctor: --device {report.choice} on {report.platform}", report.rows, verdict)


def render_rows(title: str, rows: Sequence[CheckResult], verdict: str) -> str:
    """Return results as `render` does, between a title and a verdict."""
    lines = [title, ""]
    for row in rows:
        head = f"{row.status:<4}  {row.check:<{_LABEL}}  "
        lines += _wrap(row.seen, head) or [head.rstrip()]
        for label, text in (("why: ", row.diagnosis), ("fix: ", row.fix)):
            lines += _wrap(text, " " * len(f"FAIL  {'':{_LABEL}}  ") + label)
    counts = Counter(row.status for row in rows)
    lines += ["", f"{counts[Status.FAIL]} FAIL, {counts[Status.WARN]} WARN. {verdict}"]
    return "".join(f"{_printable(line)}\n" for line in lines)


def _wrap(text: str, head: str) -> list[str]:
    """Wrap a text after a head, without breaking commands or paths."""
    indent = " " * len(head)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _printable(line: str) -> str:
    return "".join(character if " " <= character <= "~" else "?" for character in line)


DEVICE_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
KERNEL_MODULE: Final = "/proc/driver/nvidia/version"
WSL_LIBRARY: Final = "/usr/lib/wsl/lib/libcuda.so.1"

_QUERY: Final = ("index", "name", "driver_version", "memory.total", "compute_cap", "compute_mode")
_VAGUE: Final = frozenset({"libcuda-not-found", "no-device"})
"""Diagnoses that a missing file of the driver makes more precise."""

_OUTPUT_CHARACTERS: Final = 64 << 10
_WSL_SMI: Final = "/usr/lib/wsl/lib/nvidia-smi"
_IF_MISSING: Final = {"cuda": Status.FAIL, "auto": Status.WARN, "emulator": Status.INFO}


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Exit status of a command, and its standard output and standard error together."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class System:
    """This machine."""

    platform: str = sys.platform
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: tuple[int, int, int] = sys.version_info[:3]

    def run(self, *command: str, limit_s: float = 10.0, say: str = "") -> CommandOutput | None:
        """Run a command with a text as input; None if it is not found, cannot be started or does not end in time."""
        path = shutil.which(command[0])
        if path is None:
            return None
        try:
            ended = subprocess.run(  # noqa: S603 - fixed commands of the checks, without a shell
                [path, *command[1:]],
                input=say.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return CommandOutput(ended.returncode, ended.stdout.decode("utf-8", "replace")[:_OUTPUT_CHARACTERS])

    def read(self, path: str) -> str | None:
        """Return the beginning of a text file; None if it cannot be read."""
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as stream:
                return stream.read(_OUTPUT_CHARACTERS)
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Return whether a path exists and may be looked at."""
        try:
            return Path(path).exists()
        except OSError:
            return False

    def load_library(self, name: str) -> str:
        """Load a shared library; return the loader's error message, empty if it loads."""
        try:
            ctypes.CDLL(name)
        except OSError as error:
            return str(error)
        return ""

    def version(self, package: str) -> str | None:
        """Return the version of an installed Python package; None if it is not installed."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def requirements(self) -> tuple[str, ...]:
        """Return the requirements of this package, such as ``wasmtime==50.0.1``; none if it is not installed."""
        try:
            return tuple(metadata.requires("tensor-wasm") or ())
        except metadata.PackageNotFoundError:
            return ()

    def ptxas(self) -> Version | None:
        """Return the release of the ptxas that compiles kernels for a GPU here; None if there is none."""
        found = find_assembler(self.environment.get("TENSOR_WASM_PTXAS", ""), self.environment)
        return None if found is None else found.release

    def open(self, choice: str) -> tuple[Device, str]:
        """Open a device as `tensorwasm.gpu.opening.open_device` does."""
        return open_device(choice)


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One line of nvidia-smi's table."""

    index: str
    name: str
    driver: str
    memory_mib: str
    capability: tuple[int, int] | None  # None if this nvidia-smi does not report it
    mode: str  # compute mode


class MachineFacts:
    """A machine, and the device that was chosen on it.

    Attributes:
        kind: ``auto``, ``emulator`` or ``cuda``.
        if_missing: severity of a GPU that cannot be used: FAIL only if it was asked for by name.
        hint: severity of a sign that proves nothing: never FAIL, because the device may work all the same.
        linux: whether this is Linux, WSL included.

    Raises:
        InvalidArgs: no such choice of a device.
    """

    def __init__(self, system: System, choice: str) -> None:
        self.system = system
        self.choice = choice
        self.kind, _ = parse_choice(choice)
        self.if_missing = _IF_MISSING[self.kind]
        self.hint = Status.INFO if self.kind == "emulator" else Status.WARN
        self.windows = system.platform == "win32"
        self.linux = system.platform == "linux"

    @cached_property
    def wsl(self) -> bool:
        """Whether this is Linux inside Windows."""
        return self.linux and "microsoft" in (self.system.read("/proc/version") or "").lower()

    @cached_property
    def smi(self) -> str:
        """The nvidia-smi to run."""
        return _WSL_SMI if self.wsl and self.system.exists(_WSL_SMI) else "nvidia-smi"

    @cached_property
    def gpus(self) -> tuple[ListedGpu, ...]:
        """The GPUs that nvidia-smi lists."""
        output = self.system.run(self.smi, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits")
        if output is None or output.code != 0:
            return ()
        lines = ([part.strip() for part in line.split(",")] for line in output.text.splitlines())
        return tuple(_gpu(*parts) for parts in lines if len(parts) == len(_QUERY))

    @cached_property
    def driver(self) -> Version | None:
        """The driver's version, from nvidia-smi or the kernel module."""
        if self.gpus:
            return parse_version(self.gpus[0].driver)
        return parse_version((self.system.read(KERNEL_MODULE) or "").partition("NVRM")[2])

    @cached_property
    def nvcc(self) -> Version | None:
        """The release of the nvcc on the PATH."""
        return self._release("nvcc")

    @cached_property
    def ptxas(self) -> Version | None:
        """The release of the ptxas that compiles kernels here."""
        return self.system.ptxas()

    @cached_property
    def root(self) -> tuple[str, str] | None:
        """The variable that names the toolkit's folder, and the folder: the first variable that is set counts."""
        environment = self.system.environment
        return next(((name, environment[name]) for name in ROOT_VARIABLES if environment.get(name)), None)

    @cached_property
    def opened(self) -> tuple[Device | None, str]:
        """The chosen device and why it was chosen, or None and why it did not open."""
        try:
            return self.system.open(self.choice)
        except DeviceUnavailable as error:
            return None, error.message

    @cached_property
    def missing_files(self) -> tuple[str, ...]:
        """Messages about missing files of the driver, which explain errors whose text alone does not."""
        nodes = DEVICE_NODES if self.linux and self.system.exists(KERNEL_MODULE) else ()
        expected = (WSL_LIBRARY,) if self.wsl else nodes
        return tuple(f"{path} is missing" for path in expected if not self.system.exists(path))

    def close(self) -> None:
        """Close the chosen device if it was opened."""
        if "opened" in vars(self) and self.opened[0] is not None:
            self.opened[0].close()

    def join(self, *parts: str) -> str:
        """Join a path as this platform does."""
        return str((PureWindowsPath if self.windows else PurePosixPath)(*parts))

    def entries(self, variable: str) -> list[str]:
        """Return the folders in a variable such as PATH."""
        text = self.system.environment.get(variable, "")
        return [entry.rstrip("/\\") for entry in text.split(";" if self.windows else ":") if entry]

    def diagnosed(self, check: str, status: Status, seen: str) -> CheckResult:
        """Return a result with the cause and fix of the diagnosis that matches what was seen, if there is one."""
        found = diagnose(seen)
        if found is not None and found.name in _VAGUE:
            found = diagnose("\n".join((*self.missing_files, seen)))
        return CheckResult(check, status, seen, found.cause, found.fix) if found else CheckResult(check, status, seen)

    def failed(self, check: str, error: TensorWasmError) -> CheckResult:
        """Return a result for an error on the chosen device."""
        found = diagnose(error.message)
        seen = f"{error.kind}: {error.message.partition('; ')[0]}"
        return CheckResult(check, Status.FAIL, seen, found.cause if found else "", found.fix if found else "")

    def _release(self, tool: str) -> Version | None:
        output = self.system.run(tool, "--version")
        return parse_version(output.text.partition("release")[2]) if output and output.code == 0 else None


def _gpu(index: str, name: str, driver: str, memory_mib: str, capability: str, mode: str) -> ListedGpu:
    found = re.fullmatch(r"(\d{1,3})\.(\d)", capability)
    return ListedGpu(index, name, driver, memory_mib, (int(found[1]), int(found[2])) if found else None, mode)
