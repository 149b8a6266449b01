"""Environment variables, in the order in which they count."""

from __future__ import annotations

import re
from typing import Final

from tensorwasm.doctor.machine import Machine
from tensorwasm.doctor.rows import Row, Status
from tensorwasm.gpu.cuda.assembler import ROOT_VARIABLES
from tensorwasm.gpu.cuda.versions import spell_version


def check_roots(machine: Machine) -> tuple[Row, ...]:
    """CUDA_ROOT, CUDA_PATH, CUDA_HOME: which counts, and is a toolkit there?"""
    environment = machine.system.environment
    if machine.root is None:
        first, *others = ROOT_VARIABLES
        seen = f"not set, nor {' nor '.join(others)}: none is needed to run kernels"
        return (Row(first, Status.INFO, seen),)
    rows = [_root_row(machine, *machine.root)]
    for name in ROOT_VARIABLES:
        value = environment.get(name)
        if value and name != machine.root[0] and value != machine.root[1]:
            why = f"{machine.root[0]} counts here, but other programs read {name}."
            rows.append(
                Row(name, Status.WARN, f"{value} differs from {machine.root[0]}", why, "Set them to one folder.")
            )
    return tuple(rows)


def _root_row(machine: Machine, name: str, folder: str) -> Row:
    nvcc = machine.join(folder, "bin", "nvcc.exe" if machine.windows else "nvcc")
    if not machine.system.exists(folder):
        return Row(
            name, Status.WARN, f"{folder} does not exist", "", f"Set {name} to the toolkit's folder, or unset it."
        )
    if not machine.system.exists(nvcc):
        return Row(
            name, Status.WARN, f"{folder} has no bin/nvcc", "It is no toolkit.", f"Set {name} to a toolkit's folder."
        )
    return Row(name, Status.OK, folder)


def check_arch(machine: Machine) -> tuple[Row, ...]:
    """CUDA_ARCH: does the PTX target it asks for run on the GPU?"""
    wanted = machine.system.environment.get("CUDA_ARCH", "")
    if not wanted:
        return (Row("CUDA_ARCH", Status.INFO, "not set: the GPU decides which PTX is used"),)
    found = re.fullmatch(r"sm_(\d{1,2})(\d)[af]?", wanted)
    if found is None:
        return (Row("CUDA_ARCH", Status.WARN, wanted, "Not an architecture.", "Set it like sm_75, or unset it."),)
    capability = int(found[1]), int(found[2])
    for gpu in machine.gpus:
        if gpu.capability is not None and gpu.capability < capability:
            seen = f"CUDA_ARCH={wanted} is newer than the GPU ({gpu.name}: {spell_version(gpu.capability)})"
            return (machine.bad("CUDA_ARCH", Status.WARN, seen),)
    return (Row("CUDA_ARCH", Status.OK, f"{wanted} overrides the PTX target"),)


def check_path(machine: Machine) -> tuple[Row, ...]:
    """Is the toolkit's bin folder on the PATH?"""
    if machine.root is None or not machine.system.exists(machine.root[1]):
        return ()
    folder = machine.join(machine.root[1], "bin")
    if folder in _entries(machine, "PATH"):
        return (Row("PATH", Status.OK, f"has {folder}"),)
    shell = "setx PATH, then open a new shell" if machine.windows else f'export PATH="{folder}:$PATH"'
    return (Row("PATH", Status.WARN, f"{folder} is not on it", "nvcc and ptxas of that toolkit are not found.", shell),)


def check_library_path(machine: Machine) -> tuple[Row, ...]:
    """LD_LIBRARY_PATH: is there anything on it that hides the driver?"""
    if not machine.linux:
        return ()
    entries = _entries(machine, "LD_LIBRARY_PATH")
    rows = [
        machine.bad("LD_LIBRARY_PATH", Status.WARN, f"{entry}: {what}")
        for entry in entries
        for part, what in _HIDING.items()
        if part in entry.strip("/").split("/")
    ]
    return tuple(rows) or (Row("LD_LIBRARY_PATH", Status.INFO, ":".join(entries) or "not set"),)


_HIDING: Final = {
    "stubs": "the toolkit's stub of libcuda is found before the driver's",
    "compat": "a CUDA 'compat' folder, whose libcuda is used instead of the driver's",
}


def check_visible_devices(machine: Machine) -> tuple[Row, ...]:
    """CUDA_VISIBLE_DEVICES: does it hide GPUs?"""
    value = machine.system.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return ()
    if value.strip() in {"", "-1", "NoDevFiles"}:
        why = "It hides every GPU from CUDA."
        return (Row("CUDA_VISIBLE_DEVICES", machine.if_missing, repr(value), why, "Unset it, or name a GPU: 0"),)
    return (Row("CUDA_VISIBLE_DEVICES", Status.INFO, f"{value}: cuda:0 is the first of these"),)


def _entries(machine: Machine, name: str) -> list[str]:
    text = machine.system.environment.get(name, "")
    return [entry.rstrip("/\\") for entry in text.split(";" if machine.windows else ":") if entry]
