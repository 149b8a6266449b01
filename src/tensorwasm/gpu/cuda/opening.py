"""Opening a GPU: find the driver, check that it and the GPU are new enough, and describe what the GPU can do."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tensorwasm import settings
from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.gpu.cuda.assembler import Assembler, find_assembler
from tensorwasm.gpu.cuda.device import CudaDevice
from tensorwasm.gpu.cuda.driver.calls import Driver, DriverFailure, describe, load_driver, translate
from tensorwasm.gpu.cuda.driver.contexts import Context, bound, open_green_context, primary_context
from tensorwasm.gpu.cuda.driver.versions import (
    MINIMUM_CAPABILITY,
    MINIMUM_CUDA,
    cuda_version,
    isa_version,
    parse_version,
    spell_version,
)
from tensorwasm.gpu.cuda.memory.pools import describe_memory
from tensorwasm.gpu.cuda.modules import LaunchLimits, PtxCompiler
from tensorwasm.values import DeviceInfo, Dim3, SmPlacement

_KERNEL_MODULE: Final = Path("/proc/driver/nvidia/version")
_NAME_BYTES: Final = 256

MAX_STREAMS: Final = 128
"""Streams for sessions: as many as kernels run side by side. Each takes half a MiB of the GPU, and the driver makes no
further one while a kernel runs (seen on an H200: the 35th waited)."""

_PROHIBITED: Final = 2


def open_cuda(
    ordinal: int = 0, multiprocessors: int | None = None, *, place: SmPlacement | None = None, jit: bool = True
) -> CudaDevice:
    """Open a GPU of this machine, or a share of it.

    Args:
        ordinal: its index, as CUDA counts them (``CUDA_VISIBLE_DEVICES`` applies).
        multiprocessors: least number of multiprocessors for the kernels of this device: the driver rounds up, and
            `DeviceInfo.multiprocessors` says to what. None for all, not set apart from other devices'.
        place: where among the shares of other processes the share lies; None for the first that the driver gives, which
            other processes are given too.
        jit: whether the driver's own compiler may take PTX that ptxas cannot, or where there is no ptxas. It runs in
            this process and is known to crash.

    Raises:
        InvalidArgs: a share of fewer than one multiprocessor, or a place without a share.
        DeviceUnavailable: there is no such GPU, it or its driver is too old, or it cannot be used; says what to do.
    """
    driver = load_driver()
    find = partial(find_assembler, settings.current().ptxas, os.environ)
    return open_with(driver, ordinal, find, multiprocessors, place=place, jit=jit)


def count_gpus() -> int:
    """Return the number of GPUs that CUDA shows to this process.

    Raises:
        DeviceUnavailable: no driver, or one that cannot be used; says what to do.
    """
    driver = load_driver()
    try:
        _require_driver(driver)
        return int(driver.call("cuDeviceGetCount"))
    except DriverFailure as failure:
        raise DeviceUnavailable(describe(failure)) from None


def open_with(
    driver: Driver,
    ordinal: int,
    find: Callable[[Callable[[Assembler], bool]], Assembler | None] = lambda _: None,
    multiprocessors: int | None = None,
    *,
    place: SmPlacement | None = None,
    jit: bool = True,
) -> CudaDevice:
    """Open a GPU through a given driver; the other arguments and the errors are those of `open_cuda`.

    ``find`` looks for a ptxas, once the GPU is known to be usable, and is given what tells whether one serves the GPU
    and its driver; if it returns None, the driver compiles.
    """
    if place is not None and multiprocessors is None:
        raise InvalidArgs("only a share of a GPU has a place on it")
    try:
        cuda = _require_driver(driver)
        device, info = _require_device(driver, ordinal, cuda)
        primary = primary_context(driver, ordinal, device)
        with bound(primary):
            traits = describe_memory(driver, device, ordinal, cuda)
        limits = _launch_limits(driver, device)
        assembler = find(lambda found: found.serves(info.compute_capability, cuda))
        if not jit:
            info = replace(info, ptx_version=_require_assembler(assembler, info, cuda))
        context: Context = primary
        if multiprocessors is not None:
            context = share = open_green_context(driver, primary, device, multiprocessors, cuda, place)
            info = replace(info, multiprocessors=share.multiprocessors)
        try:
            return CudaDevice(driver, context, info, limits, traits, PtxCompiler(driver, info, cuda, assembler, jit))
        except DriverFailure:
            context.close()
            raise
    except DriverFailure as failure:
        error = translate(failure)
        raise DeviceUnavailable(describe(failure)) from (None if isinstance(error, DeviceUnavailable) else error)


def _require_assembler(assembler: Assembler | None, info: DeviceInfo, cuda: tuple[int, int]) -> tuple[int, int]:
    """Return the newest PTX ISA of a device whose driver must not compile.

    Raises:
        DeviceUnavailable: no ptxas here compiles for the device either.
    """
    if assembler is not None and assembler.serves(info.compute_capability, cuda):
        return min(info.ptx_version, isa_version(assembler.release))
    lack = "there is no ptxas here"
    if assembler is not None:
        lack = f"ptxas here is of release {spell_version(assembler.release)}, which does not serve this GPU and driver"
    raise DeviceUnavailable(
        f"tenants are to share a process, in which the driver must not compile their PTX, and {lack}: install the "
        f"ptxas of a CUDA {cuda[0]} toolkit (TENSOR_WASM_PTXAS is its path), or use isolation='process'"
    )


def _require_driver(driver: Driver) -> tuple[int, int]:
    driver.call("cuInit", 0)
    cuda = cuda_version(int(driver.call("cuDriverGetVersion")))
    if cuda < MINIMUM_CUDA:
        version = driver_version()
        name = f"driver {version}" if version else "the driver"
        raise DeviceUnavailable(
            f"{name} supports CUDA {spell_version(cuda)} and is older than 525, the first for CUDA 12.0; upgrade it"
        )
    return cuda


def _require_device(driver: Driver, ordinal: int, cuda: tuple[int, int]) -> tuple[Any, DeviceInfo]:
    count = int(driver.call("cuDeviceGetCount"))
    if not 0 <= ordinal < count:
        have = f"{count} GPU{'s' if count != 1 else ''}, cuda:0 to cuda:{count - 1}" if count else "no GPU"
        raise DeviceUnavailable(f"there is no cuda:{ordinal}: this machine shows {have}; see CUDA_VISIBLE_DEVICES")
    device = driver.call("cuDeviceGet", ordinal)
    spelled: bytes = driver.call("cuDeviceGetName", _NAME_BYTES, device)
    name = spelled.split(b"\0", 1)[0].decode("ascii", "replace")
    capability = (
        driver.attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
        driver.attribute(device, "COMPUTE_CAPABILITY_MINOR"),
    )
    if capability < MINIMUM_CAPABILITY:
        raise DeviceUnavailable(
            f"{name} has compute capability {spell_version(capability)}, below 7.0 (Volta); "
            "use a newer GPU, or the emulator"
        )
    if driver.attribute(device, "COMPUTE_MODE") == _PROHIBITED:
        raise DeviceUnavailable(f"{name} is in prohibited compute mode; 'nvidia-smi -q -d COMPUTE' should say Default")
    supported, version = f"CUDA {spell_version(cuda)}", driver_version()
    return device, DeviceInfo(
        kind="cuda",
        ordinal=ordinal,
        name=name,
        compute_capability=capability,
        ptx_version=isa_version(cuda),
        memory_bytes=int(driver.call("cuDeviceTotalMem", device)),
        multiprocessors=driver.attribute(device, "MULTIPROCESSOR_COUNT"),
        max_shared_bytes=driver.attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        concurrent_managed_access=bool(driver.attribute(device, "CONCURRENT_MANAGED_ACCESS")),
        driver=f"{version} ({supported})" if version else supported,
        max_streams=MAX_STREAMS,
    )


def driver_version() -> str:
    """Return the version of the NVIDIA kernel module, such as ``580.159.03``; empty where it cannot be read."""
    try:
        found = parse_version(_KERNEL_MODULE.read_text(encoding="ascii", errors="replace").partition("NVRM")[2])
    except OSError:
        return ""
    return spell_version(found) if found else ""


def _launch_limits(driver: Driver, device: Any) -> LaunchLimits:
    def axes(prefix: str) -> Dim3:
        x, y, z = (driver.attribute(device, f"{prefix}_{axis}") for axis in "XYZ")
        return x, y, z

    return LaunchLimits(
        axes("MAX_GRID_DIM"), axes("MAX_BLOCK_DIM"), driver.attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    )
