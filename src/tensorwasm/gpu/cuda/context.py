"""The primary context of a GPU: retained once for the life of the process and bound around every call.

Other libraries in the process (PyTorch, CuPy) use the same primary context. Ours is one reference more, never given
back, so that their release leaves it alive. Whatever was current on the calling thread is current again afterwards.

Source: CUDA Driver API, "Primary Context Management", "Context Management".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.results import STALE_CONTEXT, DriverFailure


class PrimaryContext:
    """A GPU's primary context in this process. Every method may be called from any thread.

    Attributes:
        generation: how often the context had to be retained anew, because another library has reset the device:
            everything made under an earlier generation is gone.
        lost: why nothing on this GPU can be trusted any more in this process; empty while all is well.
    """

    def __init__(self, driver: Driver, device: Any) -> None:
        """Retain the context.

        Raises:
            DriverFailure: it cannot be created.
        """
        self.generation = 0
        self.lost = ""
        self._driver = driver
        self._device = device
        self._lock = threading.Lock()
        self._handle = driver.call("cuDevicePrimaryCtxRetain", device)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Make the context current on this thread for the length of a ``with``.

        Raises:
            DriverFailure: the context cannot be bound.
        """
        self._push()
        try:
            yield
        finally:
            self._driver.attempt("cuCtxPopCurrent")

    def _push(self) -> None:
        handle = self._handle
        code, _ = self._driver.attempt("cuCtxPushCurrent", handle)
        if code in STALE_CONTEXT:
            self._driver.call("cuCtxPushCurrent", self._renew(handle))
        elif code:
            raise DriverFailure("cuCtxPushCurrent", code)

    def _renew(self, stale: Any) -> Any:
        """Retain the context again, once for all threads that found the same handle stale."""
        with self._lock:
            if self._handle is stale:
                self._handle = self._driver.call("cuDevicePrimaryCtxRetain", self._device)
                self.generation += 1
            return self._handle


_contexts: Final[dict[tuple[int, int], PrimaryContext]] = {}
_contexts_lock: Final = threading.Lock()


def primary_context(driver: Driver, ordinal: int, device: Any) -> PrimaryContext:
    """Return the process's context for a GPU, retaining it on the first call.

    Raises:
        DriverFailure: it cannot be created.
    """
    key = (id(driver.api), ordinal)
    with _contexts_lock:
        if key not in _contexts:
            _contexts[key] = PrimaryContext(driver, device)
        return _contexts[key]
