"""``wasi:cuda/host``: kernels, device memory, streams and graphs for guests."""

from __future__ import annotations

from tensorwasm.guest.imports.cuda.bodies import BODIES
from tensorwasm.guest.imports.cuda.grant import CODES, SERVICE, CudaService
from tensorwasm.guest.imports.cuda.waiting import FINISH, STEPS

__all__ = ["BODIES", "CODES", "FINISH", "SERVICE", "STEPS", "CudaService"]
