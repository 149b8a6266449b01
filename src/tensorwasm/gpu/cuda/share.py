"""A share of a GPU's multiprocessors: a green context, in which everything of one device happens.

Kernels of streams that belong to it run on its multiprocessors alone; memory and faults are shared with the primary
context that it stands on.

Source: CUDA Driver API, "Green Contexts".
"""

from __future__ import annotations

import threading
from typing import Any, Final

from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.context import PrimaryContext
from tensorwasm.gpu.cuda.results import DriverFailure, Scope, describe, meaning

MINIMUM_CUDA: Final = (12, 5)
"""First release with streams that belong to a green context; driver 555 is the first."""


class Share:
    """A green context; see `tensorwasm.gpu.cuda.context.Context`.

    Attributes:
        handle: the driver's context.
        multiprocessors: how many it really has: the driver rounds up.
    """

    def __init__(self, driver: Driver, primary: PrimaryContext, device: Any, multiprocessors: int) -> None:
        """Take a share.

        Args:
            driver: the driver API.
            primary: the context it stands on.
            device: the driver's device.
            multiprocessors: how many at least.

        Raises:
            DriverFailure: the driver does not divide the device.
            DeviceUnavailable: the device has fewer, or the driver does not know shares.
        """
        self._driver = driver
        self._primary = primary
        self._device = device
        self._asked = multiprocessors
        self._lock = threading.Lock()
        self._make()

    @property
    def generation(self) -> int:
        """How often the GPU was reset under it."""
        return self._primary.generation

    @property
    def lost(self) -> str:
        """Why nothing on this GPU can be trusted any more in this process."""
        return self._primary.lost

    def lose(self, why: str) -> None:
        """See `Context.lose`."""
        self._primary.lose(why)

    def bind(self) -> None:
        """See `Context.bind`.

        Raises:
            DriverFailure: the context cannot be bound.
        """
        self._primary.check()
        with self._lock:
            if self._generation != self._primary.generation:  # a reset took it away with all that was in it
                self._make()
        self._driver.call("cuCtxPushCurrent", self.handle)

    def unbind(self) -> None:
        """See `Context.unbind`."""
        self._driver.attempt("cuCtxPopCurrent")

    def make_stream(self) -> Any:
        """See `Context.make_stream`.

        Raises:
            DriverFailure: the driver has none.
        """
        flags = self._driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._driver.call("cuGreenCtxStreamCreate", self._green, flags, 0)

    def close(self) -> None:
        """See `Context.close`.

        Raises:
            DriverFailure: it still exists.
        """
        self._driver.call("cuGreenCtxDestroy", self._green)

    def _make(self) -> None:
        generation = self._primary.generation
        api = self._driver.api
        group = self._group()
        description = self._driver.call("cuDevResourceGenerateDesc", [group], 1)
        flags = api.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        green = self._driver.call("cuGreenCtxCreate", description, self._device, flags)
        try:
            self.handle = self._driver.call("cuCtxFromGreenCtx", green)
        except Exception:
            self._driver.attempt("cuGreenCtxDestroy", green)
            raise
        self._green = green
        self.multiprocessors = int(group.sm.smCount)
        self._generation = generation

    def _group(self) -> Any:
        """Return that many multiprocessors as a resource of the driver."""
        kind = self._driver.api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = self._driver.call("cuDeviceGetDevResource", self._device, kind)
        count = int(whole.sm.smCount)
        if self._asked > count:
            raise DeviceUnavailable(f"the device has {count} multiprocessors, not {self._asked}; ask for fewer")
        if self._asked == count:
            return whole
        groups, made, _ = self._driver.call("cuDevSmResourceSplitByCount", 1, whole, 0, self._asked)
        if made < 1:
            raise DeviceUnavailable(
                f"the device cannot set {self._asked} multiprocessors apart; ask for another number"
            )
        return groups[0]


def take_share(
    driver: Driver, primary: PrimaryContext, device: Any, multiprocessors: int, cuda: tuple[int, int]
) -> Share:
    """Return a share of a GPU of at least that many multiprocessors.

    Raises:
        InvalidArgs: fewer than one.
        DeviceUnavailable: the driver or the device has no such share; says what to do.
        DriverFailure: the device is lost.
    """
    if multiprocessors < 1:
        raise InvalidArgs(f"a share of {multiprocessors} multiprocessors: at least 1")
    if cuda < MINIMUM_CUDA:
        raise DeviceUnavailable("this driver cannot divide a GPU; upgrade it to 555 or later, or open the whole device")
    try:
        return Share(driver, primary, device, multiprocessors)
    except DriverFailure as failure:
        if meaning(failure).scope is not Scope.CALL:
            raise
        raise DeviceUnavailable(
            f"no share of {multiprocessors} multiprocessors: {describe(failure)}; open the whole device"
        ) from None
