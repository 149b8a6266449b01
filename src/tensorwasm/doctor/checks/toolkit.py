"""The toolkit: nvcc for authors of kernels, ptxas for the runtime. Nothing here is needed to run a kernel."""

from __future__ import annotations

from typing import Final

from tensorwasm.doctor.machine import Machine
from tensorwasm.doctor.rows import Row, Status
from tensorwasm.gpu.cuda.versions import MINIMUM_CAPABILITY, MINIMUM_CUDA, assembles, spell_version, toolkits_for

_NEWEST_VERIFIED: Final = (13, 2)


def check_nvcc(machine: Machine) -> tuple[Row, ...]:
    """Is there an nvcc, and of which release?"""
    if machine.nvcc is None:
        return (
            Row(
                "nvcc",
                machine.hint,
                "not on the PATH",
                "Only authors of kernels need it: a kernel comes as PTX.",
                "To compile .cu files, install the CUDA toolkit and put its bin folder on the PATH.",
            ),
        )
    release = spell_version(machine.nvcc)
    if machine.nvcc < MINIMUM_CUDA:
        fix = "Install toolkit 12.0 or newer."
        return (
            Row("nvcc", machine.hint, f"release {release}", "Older than the oldest toolkit that is supported.", fix),
        )
    newer = " (newer than what was verified)" if machine.nvcc > _NEWEST_VERIFIED else ""
    return (Row("nvcc", Status.OK, f"release {release}{newer}"),)


def check_ptxas(machine: Machine) -> tuple[Row, ...]:
    """Is there a ptxas, and of which release?"""
    if machine.ptxas is None:
        return (machine.bad("ptxas", machine.hint, "ptxas not found"),)
    return (Row("ptxas", Status.OK, f"release {spell_version(machine.ptxas)}"),)


def check_releases(machine: Machine) -> tuple[Row, ...]:
    """Do nvcc and ptxas come from one toolkit?"""
    nvcc, ptxas = machine.nvcc, machine.ptxas
    if nvcc is None or ptxas is None:
        return ()
    seen = f"nvcc {spell_version(nvcc)}, ptxas {spell_version(ptxas)}"
    if nvcc == ptxas:
        return (Row("toolkit release", Status.OK, f"{seen}: the same"),)
    return (
        Row(
            "toolkit release",
            Status.WARN,
            seen,
            "Two toolkits are on the PATH, one in front of the other.",
            "Uninstall the older one, or put the bin folder of the one you want first on the PATH.",
        ),
    )


def check_assembler(machine: Machine) -> tuple[Row, ...]:
    """Does ptxas know the GPUs?"""
    if machine.ptxas is None:
        return ()
    capabilities = {gpu.capability for gpu in machine.gpus if gpu.capability is not None}
    return tuple(
        Row(
            f"ptxas for sm_{major}{minor}",
            Status.WARN,
            f"release {spell_version(machine.ptxas)} does not compile for it",
            "The driver compiles kernels itself then, inside this process.",
            f"Install {_toolkit_for((major, minor))}.",
        )
        for major, minor in sorted(capabilities)
        if (major, minor) >= MINIMUM_CAPABILITY and not assembles(machine.ptxas, (major, minor))
    )


def _toolkit_for(capability: tuple[int, int]) -> str:
    known = toolkits_for(capability)
    if known is None:
        return "the newest toolkit"
    first, last = max(known[0], MINIMUM_CUDA), known[1]
    return (
        f"toolkit {spell_version(first)} or newer" if last is None else f"toolkit 12.x, {spell_version(last)} at most"
    )
