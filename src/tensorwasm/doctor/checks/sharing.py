"""MPS: may processes share the GPU, and if not, why not?

Source: NVIDIA Multi-Process Service, "Environment Variables", "System Considerations".
"""

from __future__ import annotations

from typing import Final

from tensorwasm.doctor.machine import Machine
from tensorwasm.doctor.rows import Row, Status

_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - the daemon's own default
_VARIABLES: Final = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)


def check_mps(machine: Machine) -> tuple[Row, ...]:
    """Does an MPS daemon serve this process?"""
    variables = tuple(
        Row(name, Status.INFO, machine.system.environment[name])
        for name in _VARIABLES
        if machine.system.environment.get(name)
    )
    return (*variables, _daemon_row(machine))


def _daemon_row(machine: Machine) -> Row:
    if not machine.linux:
        return Row("MPS", Status.INFO, "off: it is there on Linux only")
    if machine.wsl:
        return Row("MPS", Status.INFO, "off: WSL has none")
    asked = machine.system.environment.get("CUDA_MPS_PIPE_DIRECTORY")
    control = machine.join(asked or _PIPES, "control")
    if machine.system.exists(control):
        seen = f"on: {control}"
        why = "Processes under MPS share one fault domain: an illegal access in one ends its neighbours."
        return Row("MPS", machine.hint, seen, why, "Stop it where tenants do not trust each other.")
    if asked:
        fix = "Start it with nvidia-cuda-mps-control -d, or unset CUDA_MPS_PIPE_DIRECTORY."
        return Row(
            "MPS", Status.WARN, f"off: {control} is missing", "No daemon runs in the folder that was named.", fix
        )
    return Row("MPS", Status.INFO, f"off: no {control}; each process has the GPU to itself in turn")
