"""The context that a device works in: the primary one of its GPU, or a share of it, bound around every call.

The primary context is retained once for the life of the process. Other libraries in the process (PyTorch, CuPy) use
the same one. Ours is one reference more, never given back, so that their release leaves it alive. Whatever was current
on the calling thread is current again afterwards.

A library may still reset the GPU and destroy the context under us. Its handle then stays good for a push, and names the
next context as soon as somebody retains one; only the context's number tells them apart.

Source: CUDA Driver API, "Primary Context Management", "Context Management".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Protocol

from tensorwasm.errors import TensorWasmError
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.results import DriverFailure


class Context(Protocol):
    """A context of the driver. Every method may be called from any thread."""

    @property
    def handle(self) -> Any:
        """The driver's context."""

    @property
    def generation(self) -> int:
        """How often the GPU was reset under it: everything made under an earlier generation is gone."""

    @property
    def lost(self) -> str:
        """Why nothing on this GPU can be trusted any more in this process; empty while all is well."""

    def lose(self, why: str) -> None:
        """Count the GPU as lost for this process; the first reason stays."""

    def bind(self) -> None:
        """Make the context current on this thread, above what is current now.

        Raises:
            DriverFailure: the context cannot be bound.
        """

    def unbind(self) -> None:
        """Make current again what was current before `bind`."""

    def make_stream(self) -> Any:
        """Return a new stream of the driver in this context, which must be bound.

        Raises:
            DriverFailure: the driver has none.
        """

    def close(self) -> None:
        """Give the context back, if it is this device's alone. Nothing may be left in it."""


@contextmanager
def bound(context: Context) -> Iterator[None]:
    """Bind a context for the length of a ``with``.

    Raises:
        DriverFailure: the context cannot be bound.
    """
    context.bind()
    try:
        yield
    finally:
        context.unbind()


class PrimaryContext:
    """A GPU's primary context in this process; see `Context`.

    Attributes:
        handle: the driver's context.
        generation: how often it had to be retained anew, because another library has reset the device.
        lost: why nothing on this GPU can be trusted any more in this process.
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

    def lose(self, why: str) -> None:
        """See `Context.lose`."""
        self.lost = self.lost or why

    def check(self) -> None:
        """Retain the context again, once for all threads, if it is gone.

        Raises:
            DriverFailure: it cannot be created.
        """
        if not self._stands():
            with self._lock:
                if not self._stands():
                    self._retain()
                    self.generation += 1

    def bind(self) -> None:
        """See `Context.bind`.

        Raises:
            DriverFailure: the context cannot be bound.
        """
        self.check()
        self._driver.call("cuCtxPushCurrent", self.handle)

    def unbind(self) -> None:
        """See `Context.unbind`."""
        self._driver.attempt("cuCtxPopCurrent")

    def make_stream(self) -> Any:
        """See `Context.make_stream`.

        Raises:
            DriverFailure: the driver has none.
        """
        return self._driver.call("cuStreamCreate", self._driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def close(self) -> None:
        """See `Context.close`: the primary context stays for the life of the process."""

    def _stands(self) -> bool:
        code, number = self._driver.attempt("cuCtxGetId", self.handle)
        return not code and number == self._number

    def _retain(self) -> None:
        self.handle = self._driver.call("cuDevicePrimaryCtxRetain", self._device)
        self._number = self._driver.call("cuCtxGetId", self.handle)


class Call:
    """A ``with`` around driver calls: binds the context, and turns a failure into an error of our tree.

    It has no state of its own: one serves every thread at once, and may be entered again inside itself.
    """

    __slots__ = ("_context", "_judge", "_require")

    def __init__(
        self, context: Context, require: Callable[[], None], judge: Callable[[DriverFailure], TensorWasmError]
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
