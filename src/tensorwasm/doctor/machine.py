"""What the checks share: facts of the machine, each looked up once, and how much a missing GPU matters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

from tensorwasm.doctor.diagnoses import diagnose
from tensorwasm.doctor.rows import Row, Status
from tensorwasm.doctor.system import Answer, System
from tensorwasm.errors import DeviceUnavailable, TensorWasmError
from tensorwasm.gpu.cuda.assembler import ROOT_VARIABLES
from tensorwasm.gpu.cuda.versions import Version, parse_version
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.opening import parse_choice

_QUERY: Final = "index,name,driver_version,memory.total,compute_cap,compute_mode"
DEVICE_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
KERNEL_MODULE: Final = "/proc/driver/nvidia/version"
WSL_LIBRARY: Final = "/usr/lib/wsl/lib/libcuda.so.1"
_VAGUE: Final = frozenset({"libcuda-not-found", "no-device"})
"""Diagnoses that a clue makes more precise."""

_WSL_SMI: Final = "/usr/lib/wsl/lib/nvidia-smi"
_IF_MISSING: Final = {"cuda": Status.FAIL, "auto": Status.WARN, "emulator": Status.INFO}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One line of nvidia-smi's table.

    Attributes:
        index: as nvidia-smi counts.
        name: the vendor's.
        driver: version.
        memory_mib: total.
        capability: (major, minor), None if this nvidia-smi does not tell.
        mode: compute mode.
    """

    index: str
    name: str
    driver: str
    memory_mib: str
    capability: tuple[int, int] | None
    mode: str


@dataclass(frozen=True, slots=True)
class Opened:
    """What came of opening the chosen device.

    Attributes:
        device: the device, or None.
        reason: why this one, or why none.
    """

    device: Device | None
    reason: str


class Machine:
    """A machine and the device that is to work on it.

    Attributes:
        system: the port that everything is asked through.
        choice: the device that was asked for.
        kind: ``auto``, ``emulator`` or ``cuda``.
    """

    def __init__(self, system: System, choice: str) -> None:
        """Look at nothing yet.

        Raises:
            InvalidArgs: no such choice.
        """
        self.system = system
        self.choice = choice
        self.kind, _ = parse_choice(choice)

    @property
    def if_missing(self) -> Status:
        """How bad it is when a GPU cannot be used: FAIL only if it was asked for by name."""
        return _IF_MISSING[self.kind]

    @property
    def hint(self) -> Status:
        """How bad a sign is that does not prove anything: never FAIL, because the device may work all the same."""
        return Status.INFO if self.kind == "emulator" else Status.WARN

    @property
    def windows(self) -> bool:
        """Whether this is Windows itself."""
        return self.system.platform == "win32"

    @property
    def linux(self) -> bool:
        """Whether this is Linux, WSL included."""
        return self.system.platform == "linux"

    @cached_property
    def wsl(self) -> bool:
        """Whether this is Linux inside Windows."""
        return self.linux and "microsoft" in (self.system.read("/proc/version") or "").lower()

    @cached_property
    def container(self) -> bool:
        """Whether this looks like a container."""
        return self.linux and (self.system.exists("/.dockerenv") or self.system.exists("/run/.containerenv"))

    @cached_property
    def smi(self) -> str:
        """The nvidia-smi to ask."""
        return _WSL_SMI if self.wsl and self.system.exists(_WSL_SMI) else "nvidia-smi"

    @cached_property
    def overview(self) -> Answer | None:
        """What nvidia-smi prints, None if there is none."""
        return self.system.run(self.smi)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that nvidia-smi lists."""
        answer = self.system.run(self.smi, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
        if answer is None or answer.code != 0:
            return ()
        lines = ([part.strip() for part in line.split(",")] for line in answer.text.splitlines())
        return tuple(_gpu(parts) for parts in lines if len(parts) == _QUERY.count(",") + 1)

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
        """The release of the ptxas on the PATH."""
        return self._release("ptxas")

    @cached_property
    def root(self) -> tuple[str, str] | None:
        """The variable that names the toolkit's folder, and the folder: the first that is set counts."""
        environment = self.system.environment
        return next(((name, environment[name]) for name in ROOT_VARIABLES if environment.get(name)), None)

    @cached_property
    def opened(self) -> Opened:
        """The chosen device."""
        try:
            return Opened(*self.system.open(self.choice))
        except DeviceUnavailable as error:
            return Opened(None, error.message)

    def close(self) -> None:
        """Close the chosen device, if it was opened."""
        if "opened" in vars(self) and self.opened.device is not None:
            self.opened.device.close()

    def join(self, *parts: str) -> str:
        """Join a path as this platform does."""
        return str((PureWindowsPath if self.windows else PurePosixPath)(*parts))

    @cached_property
    def clues(self) -> tuple[str, ...]:
        """What is missing on this machine and explains errors whose text alone does not."""
        wanted: tuple[str, ...] = ()
        if self.wsl:
            wanted = (WSL_LIBRARY,)
        elif self.linux and self.system.exists(KERNEL_MODULE):
            wanted = DEVICE_NODES
        return tuple(f"{path} is missing" for path in wanted if not self.system.exists(path))

    def bad(self, check: str, status: Status, seen: str) -> Row:
        """Return a row with the diagnosis and fix that the table has for what was seen, the clues considered."""
        found = diagnose(seen)
        if found is not None and found.name in _VAGUE:
            found = diagnose("\n".join((*self.clues, seen)))
        if found is None:
            return Row(check, status, seen)
        return Row(check, status, seen, found.cause, found.fix)

    def failed(self, check: str, error: TensorWasmError) -> Row:
        """Return a row for an error on the chosen device."""
        found = diagnose(error.message)
        seen = f"{error.kind}: {error.message.partition('; ')[0]}"
        return Row(check, Status.FAIL, seen, found.cause if found else "", found.fix if found else "")

    def _release(self, tool: str) -> Version | None:
        answer = self.system.run(tool, "--version")
        return parse_version(answer.text.partition("release")[2]) if answer and answer.code == 0 else None


def _gpu(parts: list[str]) -> Gpu:
    index, name, driver, memory_mib, capability, mode = parts
    found = re.fullmatch(r"(\d{1,3})\.(\d)", capability)
    return Gpu(index, name, driver, memory_mib, (int(found[1]), int(found[2])) if found else None, mode)
