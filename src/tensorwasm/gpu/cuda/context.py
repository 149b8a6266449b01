"""The primary context of a GPU: retained once for the life of the process and bound around every call.

Other libraries in the process (PyTorch, CuPy) use the same primary context. Ours is one reference more, never given
back, so that their release leaves it alive. Whatever was current on the calling thread is current again afterwards.

A library may still reset the GPU and destroy the context under us. Its handle then stays good for a push, and names the
next context as soon as somebody retains one; only the context's number tells them apart.

Source: CUDA Driver API, "Primary Context Management", "Context Management".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.results import DriverFailure


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
        self._retain()

    def bind(self) -> None:
        """Make the context current on this thread, above what is current now.

        Raises:
            DriverFailure: the context cannot be bound.
        """
        code, number = self._driver.attempt("cuCtxGetId", self._handle)
        if code or number != self._number:
            self._renew()
        self._driver.call("cuCtxPushCurrent", self._handle)

    def unbind(self) -> None:
        """Make current again what was current before `bind`."""
        self._driver.attempt("cuCtxPopCurrent")

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Bind for the length of a ``with``.

        Raises:
            DriverFailure: the context cannot be bound.
        """
        self.bind()
        try:
            yield
        finally:
            self.unbind()

    def _renew(self) -> None:
        """Retain the context again, once for all threads that found it gone."""
        with self._lock:
            code, number = self._driver.attempt("cuCtxGetId", self._handle)
            if code or number != self._number:
                self._retain()
                self.generation += 1

    def _retain(self) -> None:
        self._handle = self._driver.call("cuDevicePrimaryCtxRetain", self._device)
        self._number = self._driver.call("cuCtxGetId", self._handle)


class Call:
    """A ``with`` around driver calls: binds the context, and turns a failure into an error of our tree.

    It has no state of its own: one serves every thread at once.
    """

    __slots__ = ("_context", "_judge", "_require")

    def __init__(
        self, context: PrimaryContext, require: Callable[[], None], judge: Callable[[DriverFailure], TensorWasmError]
    ) -> None:
        """Know what to do.

        Args:
            context: bound inside.
            require: called once it is bound; what it raises is raised.
            judge: returns what is raised for a failure.
        """
        self._context = context
        self._require = require
        self._judge = judge

    def __enter__(self) -> None:
        """Bind."""
        try:
            self._context.bind()
        except DriverFailure as failure:
            raise self._judge(failure) from None
        try:
            self._require()
        except BaseException:
            self._context.unbind()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unbind, and judge a failure."""
        self._context.unbind()
        if isinstance(error, DriverFailure):
            raise self._judge(error) from None


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
