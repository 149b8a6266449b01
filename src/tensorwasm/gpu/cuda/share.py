"""A share of a GPU's multiprocessors: a green context, in which everything of one device happens.

Kernels of streams that belong to it run on its multiprocessors alone; memory and faults are shared with the primary
context that it stands on.

The driver keeps no book of which multiprocessors are taken: whoever asks for a group of so many gets the same ones. So
shares of several processes are set apart by their places. Every process splits the GPU in the same way, which gives the
same groups in the same order, and takes those after the ones that the shares before its own need. What a split leaves
over is not used: the driver promises nothing of it.

Source: CUDA Driver API, "Green Contexts".
"""

from __future__ import annotations

import math
import threading
from typing import Any, Final

from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.context import PrimaryContext
from tensorwasm.gpu.cuda.results import DriverFailure, Scope, describe, meaning
from tensorwasm.values import SmPlacement

MINIMUM_CUDA: Final = (12, 5)
"""First release with streams that belong to a green context; driver 555 is the first."""


class Share:
    """A green context; see `tensorwasm.gpu.cuda.context.Context`.

    Attributes:
        handle: the driver's context.
        multiprocessors: how many it really has: the driver rounds up.
    """

    def __init__(
        self, driver: Driver, primary: PrimaryContext, device: Any, multiprocessors: int, place: SmPlacement | None
    ) -> None:
        """Take a share.

        Args:
            driver: the driver API.
            primary: the context it stands on.
            device: the driver's device.
            multiprocessors: how many at least.
            place: where among other processes' shares; None for the first group of that many.

        Raises:
            DriverFailure: the driver does not divide the device.
            DeviceUnavailable: the device has fewer, or none left for this share, or the driver does not know shares.
        """
        self._driver = driver
        self._primary = primary
        self._device = device
        self._asked = multiprocessors
        self._place = place
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
        groups = self._groups()
        description = self._driver.call("cuDevResourceGenerateDesc", groups, len(groups))
        flags = api.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
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
        """Return that many multiprocessors as resources of the driver, all of one split."""
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
        """Return so many groups of at least so many multiprocessors, or as many as can be made, but one at least."""
        groups, made, _ = self._driver.call("cuDevSmResourceSplitByCount", max(1, wanted), whole, 0, least)
        if made < 1:
            raise DeviceUnavailable(f"the device cannot set {least} multiprocessors apart; ask for another number")
        return list(groups[: int(made)])


def _count(resource: Any) -> int:
    return int(resource.sm.smCount)


def take_share(
    driver: Driver,
    primary: PrimaryContext,
    device: Any,
    multiprocessors: int,
    cuda: tuple[int, int],
    place: SmPlacement | None = None,
) -> Share:
    """Return a share of a GPU of at least that many multiprocessors.

    Raises:
        InvalidArgs: fewer than one, or no such place.
        DeviceUnavailable: the driver or the device has no such share; says what to do.
        DriverFailure: the device is lost.
    """
    if multiprocessors < 1:
        raise InvalidArgs(f"a share of {multiprocessors} multiprocessors: at least 1")
    if place is not None and min(place.unit, *place.before, 1) < 1:
        raise InvalidArgs("a place among shares: its unit and the shares before it are at least 1")
    if cuda < MINIMUM_CUDA:
        raise DeviceUnavailable("this driver cannot divide a GPU; upgrade it to 555 or later, or open the whole device")
    try:
        return Share(driver, primary, device, multiprocessors, place)
    except DriverFailure as failure:
        if meaning(failure).scope is not Scope.CALL:
            raise
        raise DeviceUnavailable(
            f"no share of {multiprocessors} multiprocessors: {describe(failure)}; open the whole device"
        ) from None
