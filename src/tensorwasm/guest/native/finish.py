"""The end, in Python, of what compiled code has started but could not see to its end."""

from __future__ import annotations

from tensorwasm.guest.hostfunc import HostCall
from tensorwasm.guest.imports.cuda.grant import CudaService, answering


@answering
def finish(call: HostCall, service: CudaService) -> int:
    """Wait for a launch or a copy, copy back the windows of a staged launch, and answer for the import."""
    service.session.finish_staged(call.deadline)
    return 0
