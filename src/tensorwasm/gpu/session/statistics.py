"""What a session tells of itself."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class SessionStatistics(NamedTuple):
    """A snapshot of a session. A tuple, because every invocation has one.

    Attributes:
        allocations: live device buffers.
        device_bytes: bytes charged for them and for the variables of loaded modules.
        kernels: loaded kernels.
        ptx_bytes: PTX text charged for them.
        pinned_bytes: guest memory registered with the device.
        kernels_launched: launches the device accepted, those of replayed graphs and of compiled code included.
        back_pressure_rejections: launches refused for want of a place on the GPU.
        release_failures: things the device failed to release at close.
        abandoned: close found work still running, or a device that does not answer or keeps the guest's pages. What
            that work could reach, the guest's pages included, must not be used again in this process.
        staged_launches: launches whose windows Python copied through a staging slot, before or after.
        replays: graphs that were replayed.
        quota_refusals: requests refused by a limit of the session, the tenant or the process.
        streams: live streams, the instance's own not counted.
        events: live events.
        graphs: live graphs.
    """

    allocations: int = 0
    device_bytes: int = 0
    kernels: int = 0
    ptx_bytes: int = 0
    pinned_bytes: int = 0
    kernels_launched: int = 0
    back_pressure_rejections: int = 0
    release_failures: int = 0
    abandoned: bool = False
    staged_launches: int = 0
    replays: int = 0
    quota_refusals: int = 0
    streams: int = 0
    events: int = 0
    graphs: int = 0


@lru_cache(maxsize=64)
def describe_compiled(kernels: int, ptx_bytes: int, launched: int, replays: int, refusals: int) -> SessionStatistics:
    """Return the snapshot of a session that compiled code alone has used; one guest's is like another's."""
    return SessionStatistics(
        kernels=kernels, ptx_bytes=ptx_bytes, kernels_launched=launched, replays=replays, quota_refusals=refusals
    )
