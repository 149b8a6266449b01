"""Choosing a device by name: ``auto``, ``emulator``, ``cuda``, ``cuda:N``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol

from tensorwasm import settings
from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.gpu.device.port import Device
from tensorwasm.values import MIB, NEWEST_PTX, SmPlacement

CHOICES: Final = ("auto", "emulator", "cuda", "cuda:N")
"""What `open_device` takes; N is an ordinal."""


def open_emulator(multiprocessors: int | None = None) -> Device:
    """Open the emulator with the device memory of the settings.

    Args:
        multiprocessors: how many it reports; None for as many as a large GPU has.

    Raises:
        DeviceUnavailable: NumPy or ml_dtypes is not installed.
        InvalidArgs: a setting does not parse, or fewer than one multiprocessor.
    """
    try:
        from tensorwasm.gpu.emulator.device import EMULATED_CAPABILITY, EmulatorDevice  # noqa: PLC0415 - NumPy only where it is used
    except ImportError as error:
        raise DeviceUnavailable(f"the emulator does not load ({error}); pip install tensor-wasm") from error
    if multiprocessors is not None and multiprocessors < 1:
        raise InvalidArgs(f"a share of {multiprocessors} multiprocessors: at least 1")
    given = settings.current()
    return EmulatorDevice(
        given.emulator_memory_mib * MIB,
        multiprocessors,
        compute_capability=given.emulator_arch or EMULATED_CAPABILITY,
        ptx_version=given.emulator_ptx or NEWEST_PTX,
    )


def open_gpu(
    ordinal: int, multiprocessors: int | None = None, *, place: SmPlacement | None = None, jit: bool = True
) -> Device:
    """Open a GPU, or a share of one.

    Args:
        ordinal: which.
        multiprocessors: how many of its multiprocessors at least; None for the whole GPU.
        place: where among the shares of other processes the share lies; None for any.
        jit: whether the driver's own compiler may take PTX of guests, in this process, where ptxas cannot.

    Raises:
        InvalidArgs: a share of fewer than one multiprocessor, or a place without a share.
        DeviceUnavailable: it is missing, or cannot be used or divided; the message says what to do.
    """
    from tensorwasm.gpu.cuda.opening import open_cuda  # noqa: PLC0415 - likewise the driver

    return open_cuda(ordinal, multiprocessors, place=place, jit=jit)


class GpuOpener(Protocol):
    """The signature of `open_gpu`."""

    def __call__(self, ordinal: int, multiprocessors: int | None, *, place: SmPlacement | None, jit: bool) -> Device:
        """Open a GPU, or a share of one."""


def parse_choice(choice: str) -> tuple[str, int]:
    """Return the kind, ``auto``, ``emulator`` or ``cuda``, and the ordinal.

    Raises:
        InvalidArgs: no such choice; the message lists those there are.
    """
    found = re.fullmatch(r"(?P<kind>auto|emulator|cuda)(?::(?P<ordinal>[0-9]{1,4}))?", choice)
    if found is None or (found["ordinal"] is not None and found["kind"] != "cuda"):
        raise InvalidArgs(f"no device {choice[:64]!r}: choose {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")
    return found["kind"], int(found["ordinal"] or 0)


def open_device(
    choice: str,
    emulator: Callable[[int | None], Device] = open_emulator,
    gpu: GpuOpener = open_gpu,
    *,
    multiprocessors: int | None = None,
    place: SmPlacement | None = None,
    jit: bool = True,
) -> tuple[Device, str]:
    """Open the chosen device; return it and, in a few words, why it is this one. Raises what `open_gpu` does.

    Args:
        choice: one of `CHOICES`. ``auto`` takes GPU 0 where it works and the emulator where it does not; the reason
            then says why.
        emulator: as `open_emulator`.
        gpu: as `open_gpu`.
        multiprocessors: the share of the device, at least; None for all of it. The device's `DeviceInfo` has the number
            it was rounded up to.
        place: as in `open_gpu`.
        jit: as in `open_gpu`.
    """
    kind, ordinal = parse_choice(choice)
    if kind == "emulator":
        return emulator(multiprocessors), "asked for"
    if kind == "cuda":
        return gpu(ordinal, multiprocessors, place=place, jit=jit), "asked for"
    try:
        device = gpu(ordinal, multiprocessors, place=place, jit=jit)
    except DeviceUnavailable as error:
        return emulator(multiprocessors), f"no usable GPU: {error.message}"
    return device, f"{device.info.name} works"
