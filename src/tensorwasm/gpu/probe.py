"""Choosing a device by name: ``auto``, ``emulator``, ``cuda``, ``cuda:N``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tensorwasm import settings
from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.gpu.device import Device
from tensorwasm.values import MIB

CHOICES: Final = ("auto", "emulator", "cuda", "cuda:N")
"""What `open_device` takes; N is an ordinal."""


def open_emulator() -> Device:
    """Open the emulator, which is there wherever NumPy is, with the device memory that the settings give it.

    Raises:
        DeviceUnavailable: NumPy or ml_dtypes is not installed.
        InvalidArgs: a setting does not parse.
    """
    try:
        from tensorwasm.gpu.emulator.device import EmulatorDevice  # noqa: PLC0415 - NumPy only for those who use it
    except ImportError as error:
        raise DeviceUnavailable(f"the emulator does not load ({error}); pip install tensor-wasm") from error
    return EmulatorDevice(settings.current().emulator_memory_mib * MIB)


def open_gpu(ordinal: int) -> Device:
    """Open a GPU.

    Raises:
        DeviceUnavailable: it is not there or cannot be used; says what to do.
    """
    from tensorwasm.gpu.cuda.opening import open_cuda  # noqa: PLC0415 - the same, for the driver

    return open_cuda(ordinal)


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
    emulator: Callable[[], Device] = open_emulator,
    gpu: Callable[[int], Device] = open_gpu,
) -> tuple[Device, str]:
    """Open the chosen device and say in a few words why it is this one.

    Args:
        choice: one of `CHOICES`. ``auto`` takes GPU 0 where it works and the emulator where it does not, and the
            reason then says why not.
        emulator: opens the emulator.
        gpu: opens the GPU of an ordinal.

    Raises:
        InvalidArgs: no such choice.
        DeviceUnavailable: the GPU that was asked for is not there or cannot be used; says what to do.
    """
    kind, ordinal = parse_choice(choice)
    if kind == "emulator":
        return emulator(), "asked for"
    if kind == "cuda":
        return gpu(ordinal), "asked for"
    try:
        device = gpu(ordinal)
    except DeviceUnavailable as error:
        return emulator(), f"no usable GPU: {error.message}"
    return device, f"{device.info.name} works"
