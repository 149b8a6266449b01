"""Copies that their callers wait for, on a stream of the device's own.

On a caller's stream, which others may share, such a copy would stand behind their kernels, with no limit on the wait
and with a lock of the driver held if the host memory is pageable. What has to be over before it is waited for first.

Source: CUDA Driver API, "API synchronization behavior" (Memcpy, Async: transfers from and to pageable memory).
"""

from __future__ import annotations

from typing import Any, Final

from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.values import Deadline

_LOOK_S: Final = 1.0
"""How often the wait for a copy that has been started looks whether the GPU was lost."""


class CudaCopies:
    """Copies now. Safe from any thread."""

    def __init__(self, core: Core) -> None:
        """Copy nothing yet."""
        self._core = core

    def copy(self, function: str, ends: tuple[Any, Any], size_bytes: int, deadline: Deadline) -> None:
        """Copy, behind the clearing of new memory and nothing else. The copy is over on return.

        Before it is started the driver is made to come to it: other streams' kernels may stand in the way even there.
        Once started it is waited for to its end, because until then it reaches the host memory.

        Args:
            function: of the driver.
            ends: target and source, as it takes them.
            size_bytes: at least 1.
            deadline: when it must have been started.

        Raises:
            InvokeTimeout: it was not started in time; nothing was copied.
            KernelFault: a kernel faulted; the device is lost.
            DeviceLost: the device does not answer.
        """
        core, streams = self._core, self._core.streams
        with core.waiting:
            stream = streams.copying()
            streams.order(stream)
            if not streams.wait_turn(stream, deadline):
                raise InvokeTimeout("the deadline passed before the GPU came to a copy")
            core.driver.call(function, *ends, size_bytes, stream.handle)
            while not streams.wait(stream, Deadline.after(_LOOK_S)):
                core.require_alive()
