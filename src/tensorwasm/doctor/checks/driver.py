"""The driver and the GPUs it shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tensorwasm.doctor.machine import DEVICE_NODES, KERNEL_MODULE, Gpu, Machine
from tensorwasm.doctor.rows import Row, Status
from tensorwasm.gpu.cuda.versions import (
    DRIVER_FLOORS,
    MINIMUM_CAPABILITY,
    MINIMUM_CUDA,
    Version,
    driver_floor,
    spell_version,
)


@dataclass(frozen=True, slots=True)
class Capability:
    """What GPUs of one compute capability run.

    Attributes:
        capability: (major, minor).
        examples: cards.
        runs: what works.
        lacks: what does not, empty if nothing.
    """

    capability: tuple[int, int]
    examples: str
    runs: str
    lacks: str = ""


_BASE: Final = "kernel launches, registered and managed memory, MPS"

CAPABILITIES: Final = (
    Capability((7, 0), "V100, Titan V", _BASE, "wmma kernels (sm_80), cp.async, kernels for sm_75 and up"),
    Capability((7, 2), "Jetson AGX Xavier", f"{_BASE} (untested)", "wmma kernels (sm_80), cp.async, sm_75 kernels"),
    Capability(
        (7, 5), "RTX 20xx, T4", _BASE, "wmma kernels (sm_80), cp.async, cp.async.bulk, tensor memory accelerator"
    ),
    Capability((8, 0), "A100, A30", "everything"),
    Capability((8, 6), "RTX 30xx", "everything"),
    Capability((8, 7), "Jetson AGX Orin", "everything (untested)"),
    Capability((8, 9), "L4, L40S, RTX 40xx", "everything"),
    Capability((9, 0), "H100, H200", "everything"),
)
"""In ascending order; a GPU counts as the last row that is not above it."""


def check_nvidia_smi(machine: Machine) -> tuple[Row, ...]:
    """Does nvidia-smi run, and what does it say of the driver?"""
    answer = machine.overview
    if answer is None:
        where = " (inside WSL)" if machine.wsl else ""
        return (machine.bad("nvidia-smi", machine.hint, f"nvidia-smi: not found{where}"),)
    if answer.code != 0:
        said = " ".join(answer.text.split())[:200]
        return (machine.bad("nvidia-smi", machine.hint, f"exit code {answer.code}: {said}"),)
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", answer.text)
    driver = spell_version(machine.driver) if machine.driver else "unknown"
    return (Row("nvidia-smi", Status.OK, f"driver {driver}, for CUDA up to {cuda[1] if cuda else 'unknown'}"),)


def check_gpus(machine: Machine) -> tuple[Row, ...]:
    """Which GPUs are there, and in which compute mode?"""
    if not machine.gpus:
        why = "Either there is none, or nvidia-smi cannot tell; the last lines say what CUDA itself finds."
        return (Row("GPU table", machine.hint, "nvidia-smi lists no GPU", why),)
    return tuple(_gpu_row(machine, gpu) for gpu in machine.gpus)


def _gpu_row(machine: Machine, gpu: Gpu) -> Row:
    seen = f"{gpu.name}, {gpu.memory_mib} MiB, compute mode {gpu.mode}"
    if gpu.mode.lower() in {"default", "[n/a]", "n/a"}:
        return Row(f"GPU {gpu.index}", Status.OK, seen)
    return machine.bad(f"GPU {gpu.index}", Status.WARN, f"{seen} (exclusive or prohibited compute mode)")


def check_capability(machine: Machine) -> tuple[Row, ...]:
    """What can each GPU run, and what not?"""
    return tuple(
        _capability_row(machine, gpu.index, gpu.capability) for gpu in machine.gpus if gpu.capability is not None
    )


def _capability_row(machine: Machine, index: str, capability: tuple[int, int]) -> Row:
    check = f"GPU {index} can run"
    if capability < MINIMUM_CAPABILITY:
        status = machine.if_missing if len(machine.gpus) == 1 else Status.WARN
        return machine.bad(check, status, f"nothing: compute capability {spell_version(capability)} is below 7.0")
    row = [row for row in CAPABILITIES if row.capability <= capability][-1]
    untested = " (newer than what was tested)" if capability > CAPABILITIES[-1].capability else ""
    lacks = f"; not: {row.lacks}" if row.lacks else ""
    return Row(check, Status.OK, f"sm_{capability[0]}{capability[1]}{untested}: {row.runs}{lacks}")


def check_driver_floor(machine: Machine) -> tuple[Row, ...]:
    """Is the driver new enough, and for which toolkit?"""
    driver = machine.driver
    if driver is None:
        why = "Neither nvidia-smi nor the kernel module tells it."
        return (Row("driver", machine.hint, "version unknown", why),)
    oldest = driver_floor(MINIMUM_CUDA, windows=_windows_driver(machine))
    if driver < oldest:
        return (machine.bad("driver", machine.if_missing, f"driver {spell_version(driver)} is older than 525"),)
    return (
        Row(
            "driver", Status.OK, f"{spell_version(driver)} meets CUDA {spell_version(_newest_toolkit(machine, driver))}"
        ),
    )


def _newest_toolkit(machine: Machine, driver: Version) -> Version:
    windows = _windows_driver(machine)
    return [row.cuda for row in DRIVER_FLOORS if (row.windows if windows else row.linux) <= driver][-1]


def _windows_driver(machine: Machine) -> bool:
    """WSL has the Windows driver, with its numbers."""
    return machine.windows or machine.wsl


def check_toolkit_driver(machine: Machine) -> tuple[Row, ...]:
    """Is the driver new enough for the installed toolkit?"""
    if machine.driver is None or machine.nvcc is None:
        return ()
    floor = driver_floor(machine.nvcc, windows=_windows_driver(machine))
    toolkit, driver = spell_version(machine.nvcc), spell_version(machine.driver)
    if machine.driver >= floor:
        return (
            Row(
                "toolkit and driver",
                Status.OK,
                f"toolkit {toolkit} needs driver {spell_version(floor)}: {driver} is there",
            ),
        )
    seen = f"driver version is insufficient: toolkit {toolkit} needs {spell_version(floor)}, {driver} is there"
    return (machine.bad("toolkit and driver", Status.WARN, seen),)


def check_device_nodes(machine: Machine) -> tuple[Row, ...]:
    """Were the device nodes created at boot?"""
    if not machine.linux or machine.wsl or not machine.system.exists(KERNEL_MODULE):
        return ()
    if machine.clues:
        return (machine.bad("device nodes", Status.WARN, ", ".join(machine.clues)),)
    return (Row("device nodes", Status.OK, f"{' and '.join(DEVICE_NODES)} are there"),)
