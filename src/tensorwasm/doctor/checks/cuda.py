"""CUDA as it is installed: the driver, the GPUs that it shows, the toolkit, and MPS.

No kernel needs the toolkit to run: nvcc is for authors of kernels, and the driver replaces ptxas.

Source: NVIDIA Multi-Process Service, "Environment Variables", "System Considerations".
"""

from __future__ import annotations

import re
from typing import Final

from tensorwasm.doctor.facts import DEVICE_NODES, KERNEL_MODULE, CheckResult, ListedGpu, MachineFacts, Results, Status
from tensorwasm.gpu.cuda.assembler import ROOT_VARIABLES
from tensorwasm.gpu.cuda.driver.mps import CONTROL, DEFAULT_PIPES, PIPES_VARIABLE, count_clients, find_daemon
from tensorwasm.gpu.cuda.driver.versions import (
    DRIVER_FLOORS,
    MINIMUM_CAPABILITY,
    MINIMUM_CUDA,
    assembles,
    driver_floor,
    spell_version,
    toolkits_for,
)

_BASE: Final = "kernel launches, registered and managed memory, MPS"

CAPABILITIES: Final = {
    (7, 0): f"{_BASE}; not: wmma kernels (sm_80), cp.async, kernels for sm_75 and up",  # V100, Titan V
    (7, 2): f"{_BASE} (untested); not: wmma kernels (sm_80), cp.async, sm_75 kernels",  # Jetson AGX Xavier
    # RTX 20xx, T4
    (7, 5): f"{_BASE}; not: wmma kernels (sm_80), cp.async, cp.async.bulk, tensor memory accelerator",
    (8, 0): "everything",  # A100, A30
    (8, 6): "everything",  # RTX 30xx
    (8, 7): "everything (untested)",  # Jetson AGX Orin
    (8, 9): "everything",  # L4, L40S, RTX 40xx
    (9, 0): "everything",  # H100, H200
}
"""What GPUs run by compute capability, in ascending order; a GPU counts as the last that is not above it."""

_MPS_VARIABLES: Final = (
    PIPES_VARIABLE,
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)
_MPS_CONTROL_S: Final = 3.0
_NEWEST_VERIFIED: Final = (13, 2)
"""Newest toolkit that was verified."""


def check_nvidia_smi(machine: MachineFacts) -> Results:
    """Report whether nvidia-smi runs, and which driver it names."""
    output = machine.system.run(machine.smi)
    if output is None:
        where = " (inside WSL)" if machine.wsl else ""
        return machine.diagnosed("nvidia-smi", machine.hint, f"nvidia-smi: not found{where}")
    if output.code != 0:
        text = " ".join(output.text.split())[:200]
        return machine.diagnosed("nvidia-smi", machine.hint, f"exit code {output.code}: {text}")
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", output.text)
    driver = spell_version(machine.driver) if machine.driver else "unknown"
    return CheckResult("nvidia-smi", Status.OK, f"driver {driver}, for CUDA up to {cuda[1] if cuda else 'unknown'}")


def check_gpus(machine: MachineFacts) -> Results:
    """Report the GPUs and their compute modes."""
    if not machine.gpus:
        return CheckResult(
            "GPU table",
            machine.hint,
            "nvidia-smi lists no GPU",
            "Either there is none, or nvidia-smi cannot tell; the last lines say what CUDA itself finds.",
        )
    return tuple(_gpu_row(machine, gpu) for gpu in machine.gpus)


def _gpu_row(machine: MachineFacts, gpu: ListedGpu) -> CheckResult:
    seen = f"{gpu.name}, {gpu.memory_mib} MiB, compute mode {gpu.mode}"
    if gpu.mode.lower() in {"default", "[n/a]", "n/a"}:
        return CheckResult(f"GPU {gpu.index}", Status.OK, seen)
    return machine.diagnosed(f"GPU {gpu.index}", Status.WARN, f"{seen} (exclusive or prohibited compute mode)")


def check_capability(machine: MachineFacts) -> Results:
    """Report what each GPU can run."""
    return tuple(
        _capability_row(machine, gpu.index, gpu.capability) for gpu in machine.gpus if gpu.capability is not None
    )


def _capability_row(machine: MachineFacts, index: str, capability: tuple[int, int]) -> CheckResult:
    check = f"GPU {index} can run"
    if capability < MINIMUM_CAPABILITY:
        status = machine.if_missing if len(machine.gpus) == 1 else Status.WARN
        return machine.diagnosed(check, status, f"nothing: compute capability {spell_version(capability)} is below 7.0")
    runs = [runs for known, runs in CAPABILITIES.items() if known <= capability][-1]
    untested = " (newer than what was tested)" if capability > max(CAPABILITIES) else ""
    return CheckResult(check, Status.OK, f"sm_{capability[0]}{capability[1]}{untested}: {runs}")


def check_driver_floor(machine: MachineFacts) -> Results:
    """Report whether the driver is new enough, and for which toolkit."""
    if machine.driver is None:
        return CheckResult(
            "driver", machine.hint, "version unknown", "Neither nvidia-smi nor the kernel module reports it."
        )
    driver, windows = spell_version(machine.driver), _has_windows_driver(machine)
    if machine.driver < driver_floor(MINIMUM_CUDA, windows=windows):
        return machine.diagnosed("driver", machine.if_missing, f"driver {driver} is older than 525")
    newest = [row.cuda for row in DRIVER_FLOORS if (row.windows if windows else row.linux) <= machine.driver][-1]
    return CheckResult("driver", Status.OK, f"{driver} meets CUDA {spell_version(newest)}")


def _has_windows_driver(machine: MachineFacts) -> bool:
    """Return whether the driver has Windows's version numbers: WSL uses the driver of Windows."""
    return machine.windows or machine.wsl


def check_device_nodes(machine: MachineFacts) -> Results:
    """Report whether the device nodes were created at boot."""
    if not machine.linux or machine.wsl or not machine.system.exists(KERNEL_MODULE):
        return None
    if machine.missing_files:
        return machine.diagnosed("device nodes", Status.WARN, ", ".join(machine.missing_files))
    return CheckResult("device nodes", Status.OK, f"{' and '.join(DEVICE_NODES)} are there")


def check_nvcc(machine: MachineFacts) -> Results:
    """Report the release of nvcc."""
    if machine.nvcc is None:
        return CheckResult(
            "nvcc",
            machine.hint,
            "not on the PATH",
            "Only authors of kernels need it: a kernel comes as PTX.",
            "To compile .cu files, install the CUDA toolkit and put its bin folder on the PATH.",
        )
    seen = f"release {spell_version(machine.nvcc)}"
    if machine.nvcc < MINIMUM_CUDA:
        return CheckResult(
            "nvcc",
            machine.hint,
            seen,
            "Older than the oldest toolkit that is supported.",
            "Install toolkit 12.0 or newer.",
        )
    newer = " (newer than what was verified)" if machine.nvcc > _NEWEST_VERIFIED else ""
    return CheckResult("nvcc", Status.OK, f"{seen}{newer}")


def check_ptxas(machine: MachineFacts) -> Results:
    """Report the release of ptxas."""
    if machine.ptxas is None:
        return machine.diagnosed("ptxas", machine.hint, "ptxas not found")
    return CheckResult("ptxas", Status.OK, f"release {spell_version(machine.ptxas)}")


def check_releases(machine: MachineFacts) -> Results:
    """Report whether nvcc and ptxas are of one toolkit."""
    if machine.nvcc is None or machine.ptxas is None:
        return None
    seen = f"nvcc {spell_version(machine.nvcc)}, ptxas {spell_version(machine.ptxas)}"
    if machine.nvcc == machine.ptxas:
        return CheckResult("toolkit release", Status.OK, f"{seen}: the same")
    return CheckResult(
        "toolkit release",
        Status.WARN,
        seen,
        "Two toolkits are on the PATH, one in front of the other.",
        "Uninstall the older one, or put the bin folder of the one you want first on the PATH.",
    )


def check_assembler(machine: MachineFacts) -> Results:
    """Report the GPUs that ptxas does not compile for."""
    if machine.ptxas is None:
        return None
    capabilities = {gpu.capability for gpu in machine.gpus if gpu.capability is not None}
    seen = f"release {spell_version(machine.ptxas)} does not compile for it"
    why = "The driver compiles kernels itself then, inside this process."
    return tuple(
        CheckResult(f"ptxas for sm_{major}{minor}", Status.WARN, seen, why, f"Install {_toolkit_for((major, minor))}.")
        for major, minor in sorted(capabilities)
        if (major, minor) >= MINIMUM_CAPABILITY and not assembles(machine.ptxas, (major, minor))
    )


def _toolkit_for(capability: tuple[int, int]) -> str:
    if (known := toolkits_for(capability)) is None:
        return "the newest toolkit"
    first, last = max(known[0], MINIMUM_CUDA), known[1]
    return f"toolkit 12.x, {spell_version(last)} at most" if last else f"toolkit {spell_version(first)} or newer"


def check_roots(machine: MachineFacts) -> Results:
    """Report which of CUDA_ROOT, CUDA_PATH and CUDA_HOME counts, and whether it names a toolkit."""
    if machine.root is None:
        first, *others = ROOT_VARIABLES
        return CheckResult(first, Status.INFO, f"not set, nor {' nor '.join(others)}: none is needed to run kernels")
    counted, folder = machine.root
    rows = [_root_row(machine, counted, folder)]
    for name in ROOT_VARIABLES:
        value = machine.system.environment.get(name)
        if value and value != folder:
            why = f"{counted} counts here, but other programs read {name}."
            seen = f"{value} differs from {counted}"
            rows.append(CheckResult(name, Status.WARN, seen, why, "Set them to one folder."))
    return tuple(rows)


def _root_row(machine: MachineFacts, name: str, folder: str) -> CheckResult:
    if not machine.system.exists(folder):
        return CheckResult(
            name, Status.WARN, f"{folder} does not exist", "", f"Set {name} to the toolkit's folder, or unset it."
        )
    if not machine.system.exists(machine.join(folder, "bin", "nvcc.exe" if machine.windows else "nvcc")):
        return CheckResult(
            name, Status.WARN, f"{folder} has no bin/nvcc", "It is no toolkit.", f"Set {name} to a toolkit's folder."
        )
    return CheckResult(name, Status.OK, folder)


def check_arch(machine: MachineFacts) -> Results:
    """Report whether the GPU runs the PTX target that CUDA_ARCH names."""
    wanted = machine.system.environment.get("CUDA_ARCH", "")
    if not wanted:
        return CheckResult("CUDA_ARCH", Status.INFO, "not set: the GPU decides which PTX is used")
    found = re.fullmatch(r"sm_(\d{1,2})(\d)[af]?", wanted)
    if found is None:
        return CheckResult("CUDA_ARCH", Status.WARN, wanted, "Not an architecture.", "Set it like sm_75, or unset it.")
    for gpu in machine.gpus:
        if gpu.capability is not None and gpu.capability < (int(found[1]), int(found[2])):
            return machine.diagnosed(
                "CUDA_ARCH",
                Status.WARN,
                f"CUDA_ARCH={wanted} is newer than the GPU ({gpu.name}: {spell_version(gpu.capability)})",
            )
    return CheckResult("CUDA_ARCH", Status.OK, f"{wanted} overrides the PTX target")


def check_path(machine: MachineFacts) -> Results:
    """Report whether the toolkit's bin folder is on the PATH."""
    if machine.root is None or not machine.system.exists(machine.root[1]):
        return None
    folder = machine.join(machine.root[1], "bin")
    if folder in machine.entries("PATH"):
        return CheckResult("PATH", Status.OK, f"has {folder}")
    fix = "setx PATH, then open a new shell" if machine.windows else f'export PATH="{folder}:$PATH"'
    return CheckResult(
        "PATH", Status.WARN, f"{folder} is not on it", "nvcc and ptxas of that toolkit are not found.", fix
    )


def check_toolkit_driver(machine: MachineFacts) -> Results:
    """Report whether the driver is new enough for the installed toolkit."""
    if machine.driver is None or machine.nvcc is None:
        return None
    floor = driver_floor(machine.nvcc, windows=_has_windows_driver(machine))
    toolkit, driver, needed = (spell_version(each) for each in (machine.nvcc, machine.driver, floor))
    if machine.driver >= floor:
        return CheckResult(
            "toolkit and driver", Status.OK, f"toolkit {toolkit} needs driver {needed}: {driver} is there"
        )
    return machine.diagnosed(
        "toolkit and driver",
        Status.WARN,
        f"driver version is insufficient: toolkit {toolkit} needs {needed}, {driver} is there",
    )


def check_visible_devices(machine: MachineFacts) -> Results:
    """Report whether CUDA_VISIBLE_DEVICES hides GPUs."""
    value = machine.system.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    if value.strip() in {"", "-1", "NoDevFiles"}:
        return CheckResult(
            "CUDA_VISIBLE_DEVICES",
            machine.if_missing,
            repr(value),
            "It hides every GPU from CUDA.",
            "Unset it, or name a GPU: 0",
        )
    return CheckResult("CUDA_VISIBLE_DEVICES", Status.INFO, f"{value}: cuda:0 is the first of these")


def check_mps(machine: MachineFacts) -> Results:
    """Report the variables of MPS, whether a daemon serves this process, and how many clients it has."""
    environment = machine.system.environment
    variables = (CheckResult(name, Status.INFO, environment[name]) for name in _MPS_VARIABLES if environment.get(name))
    return (*variables, *_mps_rows(machine))


def _mps_rows(machine: MachineFacts) -> tuple[CheckResult, ...]:
    if not machine.linux or machine.wsl:
        return (
            CheckResult("MPS", Status.INFO, f"off: {'WSL has none' if machine.wsl else 'it exists on Linux only'}"),
        )
    asked = machine.system.environment.get(PIPES_VARIABLE)
    daemon = find_daemon(machine.system.environment, machine.system.exists)
    if daemon.pipes and daemon.pipes == (asked or DEFAULT_PIPES):
        why = "Processes under MPS share one fault domain: an illegal access in one ends its neighbours."
        fix = "Stop it where tenants do not trust each other."
        return CheckResult("MPS", machine.hint, f"on: {daemon.reason}", why, fix), _mps_clients(machine)
    if not asked:
        seen = f"off: {daemon.reason}; each process has the GPU to itself in turn"
        return (CheckResult("MPS", Status.INFO, seen),)
    seen = f"off: {machine.join(asked, 'control')} is missing"
    why, fix = "No daemon runs in the folder that was named.", f"Start it with {CONTROL} -d, or unset {PIPES_VARIABLE}."
    if daemon.pipes:
        seen += f", but {daemon.reason} is there"
        why = "CUDA looks for a daemon only where the variable says."
        fix = f"Unset {PIPES_VARIABLE}, or name {daemon.pipes}."
    return (CheckResult("MPS", Status.WARN, seen, why, fix),)


def _mps_clients(machine: MachineFacts) -> CheckResult:
    def ask(line: str) -> str | None:
        output = machine.system.run(CONTROL, limit_s=_MPS_CONTROL_S, say=f"{line}\n")
        return output.text if output is not None and output.code == 0 else None

    clients = count_clients(ask)
    connected = "number of connected clients unknown" if clients is None else f"{clients} connected"
    return CheckResult("MPS clients", Status.INFO, f"{connected}; the limit is unknown")
