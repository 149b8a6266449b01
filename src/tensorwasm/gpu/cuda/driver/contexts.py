"""The contexts that devices work in: a GPU's primary context, or a green context on some of its multiprocessors.

The primary context is retained once for the life of the process, and never given back, so that other libraries in the
process (PyTorch, CuPy), which use the same one, cannot release the last reference. A context is pushed around every
call and popped afterwards, which makes current again what the caller had.

Another library may still reset the GPU and destroy the context. Its handle then stays good for a push, and names the
next context as soon as one is retained; only the context's number (``cuCtxGetId``) tells them apart.

A green context is a share of the GPU: kernels of its streams run on its multiprocessors alone; memory and faults are
shared with the primary context. The driver does not track which multiprocessors are taken: each request for a group of
one size returns the same group. So shares of several processes are set apart by their places: every process splits the
GPU in the same way, which gives the same groups in the same order, and takes those after the ones that the shares
before its own need. The remainder of a split is not used: the driver promises nothing about it.

Source: CUDA Driver API, "Primary Context Management", "Context Management", "Green Contexts".
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from tensorwasm.errors import DeviceUnavailable, InvalidArgs, TensorWasmError
from tensorwasm.gpu.cuda.driver.calls import Driver, DriverFailure, FailureScope, describe, meaning
from tensorwasm.values import SmPlacement

GREEN_CONTEXTS_CUDA: Final = (12, 5)
"""First release with streams that belong to a green context; driver 555 is the first."""


class PrimaryContext:
    """A GPU's primary context in this process. Every method may be called from any thread.

    Attributes:
        handle: the driver's context.
        primary: itself.
        generation: how often it was retained anew after a reset of the GPU: all made under an earlier one is gone.
        lost: why nothing on this GPU can be trusted any more in this process; empty while all is well.
    """

    def __init__(self, driver: Driver, device: Any) -> None:
        """Retain the context."""
        self.primary = self
        self.generation = 0
        self.lost = ""
        self._driver = driver
        self._device = device
        self._lock = threading.Lock()
        self._retain()

    def lose(self, why: str) -> None:
        """Count the GPU as lost for this process; the first reason stays."""
        self.lost = self.lost or why

    def check(self) -> None:
        """Retain the context again, once for all threads, if another library has reset the GPU."""
        if not self._stands():
            with self._lock:
                if not self._stands():
                    self._retain()
                    self.generation += 1

    def bind(self) -> None:
        """Make the context current on this thread, above what is current now."""
        self.check()
        self._driver.call("cuCtxPushCurrent", self.handle)

    def unbind(self) -> None:
        """Make current again what was current before `bind`."""
        self._driver.attempt("cuCtxPopCurrent")

    def make_stream(self) -> Any:
        """Return a new stream of the driver in this context, which must be bound."""
        return self._driver.call("cuStreamCreate", self._driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def close(self) -> None:
        """Do nothing: the primary context stays for the life of the process."""

    def _stands(self) -> bool:
        code, number = self._driver.attempt("cuCtxGetId", self.handle)
        return not code and number == self._number

    def _retain(self) -> None:
        self.handle = self._driver.call("cuDevicePrimaryCtxRetain", self._device)
        self._number = self._driver.call("cuCtxGetId", self.handle)


class GreenContext:
    """A share of a GPU's multiprocessors, with the methods of `PrimaryContext`.

    Attributes:
        handle: the driver's context.
        primary: the context that it stands on, which knows of losses and resets.
        multiprocessors: how many it really has: the driver rounds up.
    """

    def __init__(
        self, driver: Driver, primary: PrimaryContext, device: Any, multiprocessors: int, place: SmPlacement | None
    ) -> None:
        """Take a share; the arguments are those of `open_green_context`.

        Raises:
            DeviceUnavailable: the device has fewer multiprocessors, or none left for this share.
        """
        self.primary = primary
        self._driver = driver
        self._device = device
        self._asked = multiprocessors
        self._place = place
        self._lock = threading.Lock()
        self._make()

    def bind(self) -> None:
        """See `PrimaryContext.bind`."""
        self.primary.check()
        with self._lock:
            if self._generation != self.primary.generation:  # a reset took it away with all that was in it
                self._make()
        self._driver.call("cuCtxPushCurrent", self.handle)

    def unbind(self) -> None:
        """See `PrimaryContext.unbind`."""
        self._driver.attempt("cuCtxPopCurrent")

    def make_stream(self) -> Any:
        """See `PrimaryContext.make_stream`."""
        flags = self._driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._driver.call("cuGreenCtxStreamCreate", self._green, flags, 0)

    def close(self) -> None:
        """Destroy the context, in which nothing is left."""
        self._driver.call("cuGreenCtxDestroy", self._green)

    def _make(self) -> None:
        generation = self.primary.generation
        groups = self._groups()
        description = self._driver.call("cuDevResourceGenerateDesc", groups, len(groups))
        flags = self._driver.api.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        green = self._driver.call("cuGreenCtxCreate", description, self._device, flags)
        try:
            self.handle = self._driver.call("cuCtxFromGreenCtx", green)
        except Exception:
            self._driver.attempt("cuGreenCtxDestroy", green)
            raise
        self._green = green
        self.multiprocessors = sum(_count(group) for group in groups)
        self._generation = generation

    def _groups(self) -> list[Any]:
        """Return the share's multiprocessors as resources of the driver, all of one split."""
        kind = self._driver.api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = self._driver.call("cuDeviceGetDevResource", self._device, kind)
        count = _count(whole)
        if self._asked > count:
            raise DeviceUnavailable(f"the device has {count} multiprocessors, not {self._asked}; ask for fewer")
        if self._asked == count and not (self._place and self._place.before):
            return [whole]
        if self._place is None:
            return self._split(whole, 1, self._asked)
        return self._groups_at(self._place, whole)

    def _groups_at(self, place: SmPlacement, whole: Any) -> list[Any]:
        """Return this share's groups of the split that all shares are cut from."""
        _, most, _ = self._driver.call("cuDevSmResourceSplitByCount", 0, whole, 0, place.unit)  # how many there are
        groups = self._split(whole, int(most), place.unit)
        size = _count(groups[0])  # of all of them
        first = sum(math.ceil(share / size) for share in place.before)
        end = first + math.ceil(self._asked / size)
        if end > len(groups):
            others = min(first, len(groups))
            raise DeviceUnavailable(
                f"the shares exceed the GPU: its {_count(whole)} multiprocessors make {len(groups)} groups of {size}, "
                f"{others} of them others', and there is no room for {self._asked} more; give smaller shares or fewer "
                "workers"
            )
        return groups[first:end]

    def _split(self, whole: Any, wanted: int, least: int) -> list[Any]:
        """Return up to ``wanted`` groups, at least one, of at least ``least`` multiprocessors each."""
        groups, made, _ = self._driver.call("cuDevSmResourceSplitByCount", max(1, wanted), whole, 0, least)
        if made < 1:
            raise DeviceUnavailable(f"the device cannot set {least} multiprocessors apart; ask for another number")
        return list(groups[: int(made)])


def _count(resource: Any) -> int:
    return int(resource.sm.smCount)


Context = PrimaryContext | GreenContext
"""Where everything of one device happens."""


@contextmanager
def bound(context: Context) -> Iterator[None]:
    """Bind a context for the length of a ``with``."""
    context.bind()
    try:
        yield
    finally:
        context.unbind()


@dataclass(frozen=True, slots=True)
class ContextBinding:
    """A ``with`` around driver calls: binds the context, and turns a `DriverFailure` into an error of our tree.

    It has no state of its own: one serves every thread at once, and may be entered again inside itself.

    Attributes:
        context: bound inside.
        require: called once it is bound; what it raises is raised.
        judge: returns what is raised for a failure.
    """

    context: Context
    require: Callable[[], None]
    judge: Callable[[DriverFailure], TensorWasmError]

    def __enter__(self) -> None:
        try:
            self.context.bind()
        except DriverFailure as failure:
            raise self.judge(failure) from None
        try:
            self.require()
        except BaseException:
            self.context.unbind()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.context.unbind()
        if isinstance(error, DriverFailure):
            raise self.judge(error) from None


_contexts: Final[dict[tuple[int, int], PrimaryContext]] = {}
_contexts_lock: Final = threading.Lock()


def primary_context(driver: Driver, ordinal: int, device: Any) -> PrimaryContext:
    """Return the process's context for a GPU, retaining it on the first call.

    Raises:
        DriverFailure: it cannot be created.
        DeviceUnavailable: this process has lost the GPU.
    """
    with _contexts_lock:
        key = (id(driver.api), ordinal)
        if key not in _contexts:
            _contexts[key] = PrimaryContext(driver, device)
        context = _contexts[key]
    if context.lost:
        raise DeviceUnavailable(f"this process has lost the GPU: {context.lost}; start a new process")
    return context


def open_green_context(
    driver: Driver,
    primary: PrimaryContext,
    device: Any,
    multiprocessors: int,
    cuda: tuple[int, int],
    place: SmPlacement | None = None,
) -> GreenContext:
    """Return a share of a GPU.

    Args:
        driver: the driver API.
        primary: the context that the share stands on.
        device: the driver's device.
        multiprocessors: how many at least.
        cuda: the release that the driver supports.
        place: where among other processes' shares; None for the first group of that many.

    Raises:
        InvalidArgs: fewer than one multiprocessor, or no such place.
        DeviceUnavailable: the driver or the device has no such share; says what to do.
        DriverFailure: the device is lost.
    """
    if multiprocessors < 1:
        raise InvalidArgs(f"a share of {multiprocessors} multiprocessors: at least 1")
    if place is not None and min(place.unit, *place.before, 1) < 1:
        raise InvalidArgs("a place among shares: its unit and the shares before it are at least 1")
    if cuda < GREEN_CONTEXTS_CUDA:
        raise DeviceUnavailable("this driver cannot divide a GPU; upgrade it to 555 or later, or open the whole device")
    try:
        return GreenContext(driver, primary, device, multiprocessors, place)
    except DriverFailure as failure:
        if meaning(failure).scope is not FailureScope.CALL:
            raise
        raise DeviceUnavailable(
            f"no share of {multiprocessors} multiprocessors: {describe(failure)}; open the whole device"
        ) from None
