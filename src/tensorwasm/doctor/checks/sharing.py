"""MPS: may processes share the GPU, and if not, why not?

Source: NVIDIA Multi-Process Service, "Environment Variables", "System Considerations".
"""

from __future__ import annotations

from typing import Final

from tensorwasm.doctor.machine import Machine
from tensorwasm.doctor.rows import Row, Status
from tensorwasm.gpu.cuda.mps import CONTROL, DEFAULT_PIPES, PIPES_VARIABLE, count_clients, find_daemon

_VARIABLES: Final = (
    PIPES_VARIABLE,
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)
_ASK_S: Final = 3.0


def check_mps(machine: Machine) -> tuple[Row, ...]:
    """Does an MPS daemon serve this process, and how many others?"""
    variables = tuple(
        Row(name, Status.INFO, machine.system.environment[name])
        for name in _VARIABLES
        if machine.system.environment.get(name)
    )
    return (*variables, *_daemon_rows(machine))


def _daemon_rows(machine: Machine) -> tuple[Row, ...]:
    if not machine.linux:
        return (Row("MPS", Status.INFO, "off: it is there on Linux only"),)
    if machine.wsl:
        return (Row("MPS", Status.INFO, "off: WSL has none"),)
    asked = machine.system.environment.get(PIPES_VARIABLE)
    daemon = find_daemon(machine.system.environment, machine.system.exists)
    if daemon.pipes and daemon.pipes == (asked or DEFAULT_PIPES):
        why = "Processes under MPS share one fault domain: an illegal access in one ends its neighbours."
        fix = "Stop it where tenants do not trust each other."
        return Row("MPS", machine.hint, f"on: {daemon.reason}", why, fix), _clients_row(machine)
    if daemon.pipes:
        seen = f"off: {machine.join(asked or '', 'control')} is missing, but {daemon.reason} is there"
        why = "CUDA looks for a daemon only where the variable says."
        return (Row("MPS", Status.WARN, seen, why, f"Unset {PIPES_VARIABLE}, or name {daemon.pipes}."),)
    if asked:
        seen = f"off: {machine.join(asked, 'control')} is missing"
        fix = f"Start it with {CONTROL} -d, or unset {PIPES_VARIABLE}."
        return (Row("MPS", Status.WARN, seen, "No daemon runs in the folder that was named.", fix),)
    return (Row("MPS", Status.INFO, f"off: {daemon.reason}; each process has the GPU to itself in turn"),)


def _clients_row(machine: Machine) -> Row:
    def ask(line: str) -> str | None:
        answer = machine.system.run(CONTROL, limit_s=_ASK_S, say=f"{line}\n")
        return answer.text if answer is not None and answer.code == 0 else None

    return Row("MPS clients", Status.INFO, _spell(count_clients(ask)))


def _spell(clients: int | None) -> str:
    connected = "not told how many are connected" if clients is None else f"{clients} connected"
    return f"{connected}; how many there can be is not told"
