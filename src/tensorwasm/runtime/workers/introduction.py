"""How a worker says what its device is, and how its parent reads that."""

from __future__ import annotations

from tensorwasm.runtime.workers.frames import PROTOCOL, Ready
from tensorwasm.runtime.workers.outcomes import clean
from tensorwasm.settings import package_version
from tensorwasm.values import DeviceInfo


def introduce(info: DeviceInfo) -> Ready:
    """Return what a worker says of its device."""
    return Ready(
        protocol=PROTOCOL,
        version=package_version(),
        kind=info.kind,
        ordinal=info.ordinal,
        name=info.name,
        compute_capability=info.compute_capability,
        ptx_version=info.ptx_version,
        memory_bytes=info.memory_bytes,
        multiprocessors=info.multiprocessors,
        max_shared_bytes=info.max_shared_bytes,
        concurrent_managed_access=info.concurrent_managed_access,
        driver=info.driver,
    )


def read_introduction(ready: Ready) -> DeviceInfo:
    """Return the device that a worker says it has; its words are made fit to be shown."""
    return DeviceInfo(
        kind=ready.kind,
        ordinal=ready.ordinal,
        name=clean(ready.name),
        compute_capability=ready.compute_capability,
        ptx_version=ready.ptx_version,
        memory_bytes=ready.memory_bytes,
        multiprocessors=ready.multiprocessors,
        max_shared_bytes=ready.max_shared_bytes,
        concurrent_managed_access=ready.concurrent_managed_access,
        driver=clean(ready.driver),
    )
