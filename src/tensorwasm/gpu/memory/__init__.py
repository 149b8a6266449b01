"""Memory that a host and a device share (one buffer class over a backing for each kind), and the suballocator."""

from tensorwasm.gpu.memory.backings import BufferKind, Capabilities
from tensorwasm.gpu.memory.buffer import UnifiedBuffer
from tensorwasm.gpu.memory.pool import BufferPool, PoolStatistics, Slice

__all__ = ["BufferKind", "BufferPool", "Capabilities", "PoolStatistics", "Slice", "UnifiedBuffer"]
