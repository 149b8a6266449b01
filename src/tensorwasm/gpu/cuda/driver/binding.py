"""Calls of the driver API with checked results. cuda-bindings is imported by `load_driver` only."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.cuda.driver.results import SUCCESS, UNKNOWN, DriverFailure

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
