"""NVIDIA's Multi-Process Service (MPS): finding the daemon and counting its clients.

Processes under MPS share one fault domain: an illegal access in one ends its neighbours. A CUDA process joins any
daemon that it finds; one that must not is pointed at a folder in which no daemon can be (`WITHOUT_MPS`).

Source: NVIDIA Multi-Process Service, "CUDA_MPS_PIPE_DIRECTORY", "nvidia-cuda-mps-control".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

PIPES_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
DEFAULT_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - the daemon's own default
WITHOUT_MPS: Final = "/dev/null"
"""A folder of pipes that cannot exist: `PIPES_VARIABLE` set to this keeps a process from joining any daemon."""

CONTROL: Final = "nvidia-cuda-mps-control"
_MAX_SERVERS: Final = 64


@dataclass(frozen=True, slots=True)
class Daemon:
    """The result of `find_daemon`.

    Attributes:
        pipes: the daemon's folder of pipes, empty if there is none.
        reason: the control pipe that was found, or the paths at which there is none.
    """

    pipes: str
    reason: str


def find_daemon(environment: Mapping[str, str], exists: Callable[[str], bool]) -> Daemon:
    """Look for a daemon's control pipe: in the folder that `PIPES_VARIABLE` names, then in the default one."""
    asked = environment.get(PIPES_VARIABLE)
    missing = []
    for pipes in dict.fromkeys((asked, DEFAULT_PIPES) if asked else (DEFAULT_PIPES,)):
        control = f"{pipes.rstrip('/')}/control"
        if exists(control):
            return Daemon(pipes, control)
        missing.append(control)
    return Daemon("", f"no {' nor '.join(missing)}")


def count_clients(ask: Callable[[str], str | None]) -> int | None:
    """Return the number of the daemon's clients, None if it does not say.

    The daemon has no command for its limit, which depends on the GPU and on the driver's release. When it is full, a
    client's start fails with CUDA_ERROR_MPS_MAX_CLIENTS_REACHED.

    Args:
        ask: gives the control program one line and returns what it printed, None if that failed.
    """
    servers = _numbers(ask("get_server_list"))
    if servers is None:
        return None
    lists = [_numbers(ask(f"get_client_list {server}")) for server in servers[:_MAX_SERVERS]]
    return sum(len(each) for each in lists if each is not None)


def _numbers(answer: str | None) -> list[int] | None:
    """Return the process numbers in an answer, one a line; None for anything else."""
    lines = (answer or "").split()
    if answer is None or not all(re.fullmatch(r"\d{1,10}", line, re.ASCII) for line in lines):
        return None
    return [int(line) for line in lines]
