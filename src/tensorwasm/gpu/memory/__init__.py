"""Memory that a host and a device share: one buffer class over a backing for each kind, and a pool over a buffer."""

from tensorwasm.gpu.memory.backings import BufferKind
from tensorwasm.gpu.memory.buffer import UnifiedBuffer
from tensorwasm.gpu.memory.capabilities import Capabilities
from tensorwasm.gpu.memory.pool import BufferPool, PoolStatistics, Slice

__all__ = ["BufferKind", "BufferPool", "Capabilities", "PoolStatistics", "Slice", "UnifiedBuffer"]
