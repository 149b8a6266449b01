"""Which worker gets a request: a decision over what is known of the workers, without the workers.

Under ``shared`` isolation every device has one worker, and all tenants share it. Under ``process`` each tenant has a
worker of its own, because a process is the fault domain: on CUDA a kernel that breaks a rule takes the device from the
whole process, and one that is not guarded may read what others have there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Isolation = Literal["shared", "process"]


@dataclass(frozen=True, slots=True)
class Load:
    """What is known of a worker.

    Attributes:
        number: the worker's.
        device: index of its device in the executor's list.
        tenant: whose alone it is, None if anybody's.
        requests: waiting and running.
        held_bytes: device memory held.
        takes: whether it takes requests; one that never will again stands for itself, and is not replaced.
        used_at: when it was last given a request; larger is later.
    """

    number: int
    device: int
    tenant: str | None
    requests: int = 0
    held_bytes: int = 0
    takes: bool = True
    used_at: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """Give the request to a worker that is there."""

    number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker on a device, in place of an idle one where there are too many."""

    device: int
    instead_of: int | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """There is no room; all workers that could make room are busy."""


REFUSE: Final = Refuse()
Decision = Use | Start | Refuse


def choose(loads: Sequence[Load], tenant: str, isolation: Isolation, devices: int, most: int) -> Decision:
    """Decide where a request goes: to the least loaded worker it may use, by requests, then by bytes.

    Args:
        loads: the workers there are.
        tenant: whose request it is.
        isolation: who shares a worker.
        devices: how many devices there are.
        most: workers that one device may have.
    """
    owner = tenant if isolation == "process" else None
    own = [load for load in loads if load.tenant == owner]
    takers = [load for load in own if load.takes]
    unused = [device for device in range(devices) if not any(load.device == device for load in own)]
    if takers and (owner is not None or not unused or any(not load.requests for load in takers)):
        return Use(min(takers, key=_weight).number)
    if own and (owner is not None or not unused):
        return REFUSE  # a worker that was given up stays so
    return _make_room(loads, devices, most) if owner is not None else Start(unused[0])


def _weight(load: Load) -> tuple[int, int, int]:
    return load.requests, load.held_bytes, load.number


def _make_room(loads: Sequence[Load], devices: int, most: int) -> Decision:
    on = [[load for load in loads if load.device == device] for device in range(devices)]
    free = [device for device in range(devices) if len(on[device]) < most]
    if free:
        return Start(min(free, key=lambda device: (len(on[device]), sum(load.requests for load in on[device]), device)))
    idle = [load for load in loads if load.takes and not load.requests]
    if not idle:
        return REFUSE
    oldest = min(idle, key=lambda load: (load.used_at, load.number))
    return Start(oldest.device, instead_of=oldest.number)
