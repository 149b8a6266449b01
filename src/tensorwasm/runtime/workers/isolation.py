"""What keeps tenants apart in worker processes: the safest way on this machine, and what goes together."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final, Literal

from tensorwasm import settings
from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.gpu.cuda.assembler import find_assembler
from tensorwasm.gpu.cuda.driver.mps import find_daemon
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.values import Isolation

Kernels = Literal["untrusted", "trusted"]

_log: Final = logging.getLogger(__name__)


def usual_isolation(*, emulated: bool, divided: bool) -> Isolation:
    """Return what keeps tenants apart unless somebody chooses. Guarded kernels need Linux and a ptxas."""
    if emulated or divided:
        return "stream" if emulated else "process"
    linux = sys.platform == "linux"
    if linux and find_assembler(settings.current().ptxas, os.environ) is not None:
        return "guarded"
    lack = "there is no ptxas" if linux else "GPUs have windows of addresses on Linux alone"
    _log.warning("%s, so each tenant has a process on the GPU of its own: `tensor-wasm doctor` says more", lack)
    return "process"


def check_workers(workers: int, isolation: Isolation, shares: Mapping[str, int], options: WorkerOptions) -> None:
    """Raise `InvalidArgs` for a number out of range, or shares without workers of tenants' own."""
    if workers < 1:
        raise InvalidArgs(f"a device has 1 worker or more, not {workers}")
    multiprocessors = 1 if options.multiprocessors is None else options.multiprocessors
    if min(options.places, options.requests, multiprocessors) < 1:
        raise InvalidArgs("a worker has 1 place, 1 request and 1 multiprocessor or more")
    if shares and isolation != "process":
        raise InvalidArgs("a tenant has a share of its own only where it has workers of its own: isolation='process'")
    if small := [tenant for tenant, multiprocessors in shares.items() if multiprocessors < 1]:
        raise InvalidArgs(f"the share of {small[0][:64]!r} is less than 1 multiprocessor")


def find_pipes(kernels: Kernels) -> str:
    """Return the folder of the MPS daemon that workers join."""
    if kernels != "trusted":
        raise InvalidArgs(
            "MPS is refused: kernels are not guarded, and under MPS a kernel that breaks a rule ends every process on "
            "the GPU; say kernels='trusted' if you vouch for all of them"
        )
    daemon = find_daemon(os.environ, os.path.exists)
    if not daemon.pipes:
        raise DeviceUnavailable(
            f"MPS was asked for and no daemon runs: {daemon.reason}; start nvidia-cuda-mps-control -d"
        )
    return daemon.pipes
