"""The end, in Python, of what compiled code has started but could not see to its end."""

from __future__ import annotations

from typing import Final

from tensorwasm.guest.imports.cuda.grant import CudaService, answering
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.values import Region

_OWN_STREAM: Final = 0


@answering
def finish(call: HostCall, service: CudaService) -> int:
    """Wait for a launch or a copy, copy back the windows of a staged launch, and answer for the import."""
    session = service.session
    if session.pad is not None and session.pad.staged:
        memory = call.memory
        session.kernels.finish_staged(Region(memory.address, memory.size_bytes, host=True), call.deadline)
    else:
        session.streams.synchronize(call.deadline, stream=_OWN_STREAM)
    return 0
