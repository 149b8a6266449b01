"""A runtime's device: opened on first use, and shared by its sessions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tensorwasm import settings
from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.gpu.device.limits import MAX_PROCESS_DEVICE_BYTES, SessionLimits
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT, MAX_CAP_BYTES, Accounts
from tensorwasm.gpu.opening import open_device, parse_choice
from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder
from tensorwasm.settings.parsing import checked_isolation
from tensorwasm.values import MIB, Isolation, SmPlacement

if TYPE_CHECKING:
    from tensorwasm.gpu.shared_device import SharedDevice


class LazyDevice:
    """A device that is opened on first use. Thread-safe; `open` and `share` raise `DeviceUnavailable`."""

    def __init__(
        self,
        choice: str,
        gpu_bytes: int,
        *,
        multiprocessors: int | None,
        place: SmPlacement | None,
        jit: bool,
        isolation: Isolation = "stream",
        checked: bool = False,
    ) -> None:
        """Check and store the arguments of `tensorwasm.runtime.Runtime`; raise `InvalidArgs` for an invalid choice."""
        parse_choice(choice)
        self.reason = ""  # why this device was taken, in a few words; empty until it is open
        self._choice = choice
        self._gpu_bytes = gpu_bytes
        self._multiprocessors = multiprocessors
        self._place = place
        self._guarded = checked_isolation("isolation", isolation) == "guarded" or checked
        self._checked = checked
        # The driver's own compiler is known to crash, and a guarded kernel's neighbours would go with it.
        self._jit = jit and not self._guarded
        self._lock = threading.Lock()
        self._device: Device | None = None
        self._shared: SharedDevice | None = None
        self._closed = False

    def open(self) -> Device:
        """Return the device itself."""
        with self._lock:
            self._require_open()
            if self._device is None:
                self._device, self.reason = open_device(
                    self._choice, multiprocessors=self._multiprocessors, place=self._place, jit=self._jit
                )
            return self._device

    def share(self) -> SharedDevice:
        """Return the device as sessions share it."""
        shared = self._shared
        if shared is not None:
            return shared
        device = self.open()
        with self._lock:
            self._require_open()
            if self._shared is None:
                # For guests with a GPU alone.
                from tensorwasm.gpu.resources.guarded_compiler import LocalCompiler  # noqa: PLC0415
                from tensorwasm.gpu.shared_device import SharedDevice  # noqa: PLC0415

                accounts = Accounts()
                accounts.register(DEFAULT_TENANT, self._gpu_bytes)
                compiler = None
                if self._guarded and device.assembler:
                    compiler = LocalCompiler(device, open_kernel_folder())
                limits = SessionLimits(device_bytes=settings.current().gpu_session_mib * MIB)
                self._shared = SharedDevice(
                    device, accounts, guarded=self._guarded, compiler=compiler, checked=self._checked, limits=limits
                )
            return self._shared

    def close(self) -> None:
        """Release it. Idempotent."""
        with self._lock:
            self._closed = True
            device, self._device = self._device, None
            shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()
        if device is not None:
            device.close()

    def _require_open(self) -> None:
        if self._closed:
            raise DeviceUnavailable("the runtime is closed")


def checked_quota(gpu_bytes: int | None, setting_mib: int | None) -> int:
    """Return a tenant's cap in bytes: the given one, else the setting's, else the process's; raise `InvalidArgs`."""
    if gpu_bytes is None:
        return MAX_PROCESS_DEVICE_BYTES if setting_mib is None else setting_mib * MIB
    if not 0 <= gpu_bytes <= MAX_CAP_BYTES:
        raise InvalidArgs(f"gpu_bytes is 0 to {MAX_CAP_BYTES}, not {gpu_bytes}")
    return gpu_bytes
