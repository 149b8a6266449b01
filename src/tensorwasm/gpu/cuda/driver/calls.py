"""Calls of the driver API with checked results, and what each result code means for us: one table.

cuda-bindings is imported by `load_driver` only.

Source: CUDA Driver API, "Data types used by CUDA driver", CUresult.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any, Final

from tensorwasm.errors import (
    DeviceLost,
    DeviceUnavailable,
    InternalError,
    InvalidDimensions,
    InvalidKernel,
    KernelFault,
    LaunchRefused,
    MalformedPtx,
    QuotaExceeded,
    TensorWasmError,
    UnsupportedPtx,
)

SUCCESS: Final = 0
OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600
UNKNOWN: Final = 999


class DriverFailure(Exception):
    """A driver call that did not succeed.

    Inside gpu/cuda every function that calls the driver may raise it; one that does has created and changed nothing. It
    never leaves gpu/cuda: `translate` turns it into an error of our tree.

    Attributes:
        function: name of the entry point.
        code: CUresult.
        log: what the driver's compiler wrote, if it was called.
    """

    def __init__(self, function: str, code: int, log: str = "") -> None:
        super().__init__(f"{function}: {code}")
        self.function = function
        self.code = code
        self.log = log


class FailureScope(Enum):
    """What a failure affects."""

    CALL = "call"  # the call did nothing; everything else goes on
    DEVICE = "device"  # the device stopped answering this process
    KERNEL = "kernel"  # a kernel faulted, and destroyed the context


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row of the table.

    Attributes:
        error: the class raised.
        text: what happened.
        scope: what the failure affects.
        fix: what to do, empty if nothing can be advised.
    """

    error: type[TensorWasmError]
    text: str
    scope: FailureScope = FailureScope.CALL
    fix: str = ""


def _lost(text: str, fix: str = "start a new process") -> Meaning:
    return Meaning(DeviceLost, text, FailureScope.DEVICE, fix)


def _fault(text: str) -> Meaning:
    return Meaning(
        KernelFault, text, FailureScope.KERNEL, "run the kernel on the emulator, which names thread and instruction"
    )


def _absent(text: str, fix: str) -> Meaning:
    return Meaning(DeviceUnavailable, text, FailureScope.CALL, fix)


MEANINGS: Final[dict[int, Meaning]] = {
    1: Meaning(InternalError, "a value the driver does not take"),
    2: Meaning(QuotaExceeded, "the device has no such memory left"),
    3: _lost("CUDA is not initialised in this process; it does not survive a fork"),
    4: _lost("CUDA is shutting down"),
    34: _absent(
        "the libcuda that was loaded is the toolkit's stub",
        "take the toolkit's stubs directory off LD_LIBRARY_PATH so that the driver's own libcuda.so.1 is found",
    ),
    35: _absent(
        "CUDA driver version is insufficient for CUDA runtime version",
        "upgrade the driver to the toolkit's row of the driver matrix, or use an older toolkit",
    ),
    36: _absent("the call needs a newer driver", "upgrade the driver"),
    46: _absent(
        "the device is busy or in exclusive or prohibited compute mode",
        "see 'nvidia-smi -q -d COMPUTE': the compute mode should be Default; stop the process that holds the device",
    ),
    100: _absent(
        "no CUDA-capable device is detected",
        "run nvidia-smi in this shell; in Docker add --gpus all; in Kubernetes request nvidia.com/gpu; look at "
        "CUDA_VISIBLE_DEVICES; on a headless server: sudo nvidia-modprobe -u -c=0",
    ),
    101: _absent("no device with this ordinal", "see 'nvidia-smi -L' for the ordinals and CUDA_VISIBLE_DEVICES"),
    102: _absent("the device is not licensed", "give the vGPU its licence"),
    200: Meaning(MalformedPtx, "the driver does not take the module's image"),
    201: _lost("the context was destroyed by another library"),
    209: Meaning(UnsupportedPtx, "the module has no code for this device"),
    214: _lost("an uncorrectable memory error", "have the card checked; start a new process"),
    218: Meaning(MalformedPtx, "the driver's compiler refuses the module"),
    220: _lost("an uncorrectable NVLink error", "have the link checked; start a new process"),
    221: _absent(
        "the driver's PTX compiler is missing",
        "reinstall the driver with libnvidia-ptxjitcompiler, or put ptxas on the PATH",
    ),
    222: Meaning(UnsupportedPtx, "the module's PTX version is newer than the driver"),
    223: _absent("compiling PTX is switched off", "unset CUDA_DISABLE_PTX_JIT, or put ptxas on the PATH"),
    226: _lost("the device contained a hardware error"),
    300: Meaning(MalformedPtx, "the driver does not take the module's source"),
    302: Meaning(MalformedPtx, "the module refers to a symbol that does not exist"),
    400: Meaning(InternalError, "a handle the driver does not know"),
    401: Meaning(LaunchRefused, "the operation does not fit the state of its object"),
    500: Meaning(InvalidKernel, "no such kernel in the module"),
    700: _fault("an access outside memory"),
    701: Meaning(InvalidDimensions, "the block needs more registers or shared memory than the device has"),
    702: _fault("the kernel ran longer than the driver allows"),
    709: _lost("the context was destroyed by another library"),
    710: _fault("a device assertion failed"),
    712: Meaning(LaunchRefused, "part of the memory is already registered"),
    713: Meaning(LaunchRefused, "the memory is not registered"),
    714: _fault("a hardware stack error"),
    715: _fault("an illegal instruction"),
    716: _fault("a misaligned access"),
    717: _fault("an instruction on the wrong address space"),
    718: _fault("the program counter left the program"),
    719: _fault("the kernel failed or trapped"),
    720: Meaning(InvalidDimensions, "more blocks than fit on the device at once"),
    721: _fault("the kernel left tensor memory allocated"),
    800: Meaning(LaunchRefused, "the operation is not permitted"),
    801: Meaning(LaunchRefused, "the operation is not supported here"),
    802: _absent(
        "the system is not ready", "start nvidia-fabricmanager of the driver's own version, then nvidia-smi -q"
    ),
    803: _absent(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: the user-mode driver and the kernel module are of different versions",
        "reboot after a driver upgrade; remove libcuda.so.1 from LD_LIBRARY_PATH and CUDA 'compat' directories; "
        "match the major versions of driver and toolkit",
    ),
    804: _absent(
        "the compatibility libcuda does not support this device",
        "remove the CUDA 'compat' directory from LD_LIBRARY_PATH; forward compatibility needs a data-centre card",
    ),
    805: _absent("the MPS server cannot be reached", "check CUDA_MPS_PIPE_DIRECTORY and nvidia-cuda-mps-control"),
    806: _lost("the MPS server failed", "restart nvidia-cuda-mps-control and this process"),
    807: _absent("the MPS server is not ready", "wait, or restart nvidia-cuda-mps-control"),
    808: _absent("the MPS server has no room for another client", "stop a client, or set a lower number of workers"),
    809: _absent("the MPS server has no free connection", "stop a client"),
    810: _lost("the MPS server ended this client", "a kernel of another client may have faulted; start a new process"),
    812: _lost("the MPS server and this process disagree on their version"),
    900: Meaning(LaunchRefused, "the operation cannot be recorded"),
    901: Meaning(LaunchRefused, "the recording was spoilt by an earlier operation"),
    902: Meaning(LaunchRefused, "the operation would merge two recordings"),
    903: Meaning(LaunchRefused, "the recording did not begin on this stream"),
    904: Meaning(LaunchRefused, "another stream was drawn into the recording and did not come back"),
    905: Meaning(LaunchRefused, "what is recorded would wait for work outside of the recording"),
    906: Meaning(LaunchRefused, "the default stream would have been drawn into the recording"),
    907: Meaning(LaunchRefused, "the event was set by a recording"),
    908: Meaning(LaunchRefused, "the recording did not begin on this thread"),
    909: _lost("the device did not finish in time"),
    912: Meaning(InvalidDimensions, "a cluster size the device does not take"),
    914: _absent("the driver cannot divide this device", "open it without a share of its multiprocessors"),
    915: _absent("the device cannot be divided like this", "ask for another number of multiprocessors"),
    917: _lost("the share of the device that the stream belonged to is gone"),
    999: _lost("an unknown driver error", "see the kernel log (dmesg | grep NVRM); start a new process"),
}
"""CUresult to meaning. A code that is not here is taken as `_UNKNOWN`: the device counts as lost."""

_SPECIAL: Final[dict[tuple[str, int], Meaning]] = {
    ("cuLaunchKernel", 1): Meaning(LaunchRefused, "the driver does not take this launch"),
    ("cuMemHostRegister", 1): Meaning(LaunchRefused, "the memory cannot be registered"),
    ("cuMemHostGetDevicePointer", 1): Meaning(LaunchRefused, "the memory has no address on the device"),
    ("cuModuleLoadDataEx", 1): Meaning(MalformedPtx, "the driver does not take the module"),
    ("cuFuncSetAttribute", 1): Meaning(InvalidDimensions, "the kernel does not take that much dynamic shared memory"),
    ("cuStreamBeginCapture", 1): Meaning(LaunchRefused, "the stream cannot record"),
    ("cuStreamEndCapture", 1): Meaning(LaunchRefused, "what was recorded cannot be replayed"),
    ("cuGraphInstantiate", 1): Meaning(LaunchRefused, "what was recorded cannot be replayed"),
    ("cuGraphLaunch", 1): Meaning(LaunchRefused, "the driver does not take this replay"),
    ("cuMemAddressReserve", 1): Meaning(LaunchRefused, "the range cannot be reserved"),
    ("cuMemAddressReserve", 2): Meaning(LaunchRefused, "there is no room for the range"),
    ("cuMemCreate", 304): Meaning(QuotaExceeded, "the operating system has no such memory left"),
}
"""Codes that mean something else in one function: CUDA_ERROR_INVALID_VALUE is a bug of ours, unless the value in
question came from the caller."""

_UNKNOWN: Final = _lost("a driver error that is not in the table")


def meaning(failure: DriverFailure) -> Meaning:
    """Return the row that applies to a failed call."""
    return _SPECIAL.get((failure.function, failure.code)) or MEANINGS.get(failure.code, _UNKNOWN)


def describe(failure: DriverFailure) -> str:
    """Return the message: what happened, the code and the call, the log, what to do."""
    row = meaning(failure)
    text = f"{row.text} (error {failure.code} from {failure.function})"
    if failure.log:
        text += f": {failure.log}"
    return f"{text}; {row.fix}" if row.fix else text


def translate(failure: DriverFailure, *, waiting: bool = False) -> TensorWasmError:
    """Return the error of our tree for a failed call.

    Args:
        failure: the failed call.
        waiting: True where the work of a stream is waited for: a kernel's fault is raised as `KernelFault` there,
            and as `DeviceLost` elsewhere.
    """
    row = meaning(failure)
    if row.scope is FailureScope.KERNEL and not waiting:
        return DeviceLost(f"a kernel faulted: {describe(failure)}")
    return row.error(describe(failure))


_LIBRARY: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class Driver:
    """The entry points of a driver module: ``cuda.bindings.driver``, or one that behaves like it."""

    api: ModuleType | Any

    def call(self, function: str, *args: Any) -> Any:
        """Call an entry point and return its one result, a tuple of several, or None.

        Raises:
            DriverFailure: the result is not CUDA_SUCCESS.
            DeviceUnavailable: as `attempt`.
        """
        code, values = self.attempt(function, *args)
        if code != SUCCESS:
            raise DriverFailure(function, code)
        return values

    def attempt(self, function: str, *args: Any) -> tuple[int, Any]:
        """Call an entry point and return its result code and what `call` would return.

        Raises:
            DeviceUnavailable: there is no such entry point in this driver, or no driver at all.
        """
        try:
            answer = getattr(self.api, function)(*args)
        except (AttributeError, RuntimeError, OSError) as error:
            raise DeviceUnavailable(_explain(function, error)) from error
        except (KeyError, ValueError):  # a result code that these bindings are too old to know
            return UNKNOWN, None
        results = len(answer) - 1
        return int(answer[0]), answer[1] if results == 1 else answer[1:] if results else None

    def attribute(self, device: Any, name: str) -> int:
        """Return a device attribute, named without its ``CU_DEVICE_ATTRIBUTE_`` prefix."""
        key = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", key, device))

    def supports(self, device: Any, name: str) -> bool:
        """Return whether an attribute is set; False for one that the bindings or the driver do not know."""
        key = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if key is None:
            return False
        code, value = self.attempt("cuDeviceGetAttribute", key, device)
        return code == SUCCESS and bool(value)


def _explain(function: str, error: Exception) -> str:
    # The bindings look for the library and for each entry point on its first use.
    if function == "cuInit":
        return (
            f"no driver: {_LIBRARY} not found; install the NVIDIA driver, or in a container start it with the NVIDIA "
            f"container toolkit (docker run --gpus all)"
        )
    return f"this driver has no {function} ({type(error).__name__}); upgrade the driver"


@cache
def load_driver() -> Driver:
    """Return this process's driver, importing cuda-bindings on the first call.

    Raises:
        DeviceUnavailable: cuda-bindings is not installed or does not load.
    """
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - an optional extra: a host without a GPU never imports it
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "cuda"
        what = "cuda-bindings is not installed" if missing else f"cuda-bindings does not load ({error})"
        raise DeviceUnavailable(f"{what}; pip install 'tensor-wasm[cuda]'") from error
    return Driver(driver)
