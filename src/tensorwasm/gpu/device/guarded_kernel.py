"""A kernel that was guarded and verified, and what each launch of it needs."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.device import limits
from tensorwasm.gpu.device.address_windows import window_mask
from tensorwasm.ptx.guard import DataImage, Guarded, guard
from tensorwasm.ptx.guarded import LAUNCH_BYTES, LAUNCH_PARAMS, SHARED_BASE, WIDE_LAUNCH_BYTES, Width
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Module
from tensorwasm.ptx.printer import render
from tensorwasm.ptx.verifier import Verified, verify
from tensorwasm.values import NEVER, Deadline

_LAUNCH: Final = struct.Struct("<IIQQQQIIII")
_WIDE: Final = struct.Struct("<II")
_SHARED_GRAIN_BYTES: Final = 16
_NEVER_NS: Final = (1 << 64) - 1

assert (_LAUNCH.size, _LAUNCH.size + _WIDE.size) == (LAUNCH_BYTES, WIDE_LAUNCH_BYTES)  # noqa: S101 - kernels read the parameter by these offsets


@dataclass(frozen=True, slots=True)
class SharedNeeds:
    """How much shared memory a launch has, given what it asks for.

    Attributes:
        dynamic: whether the launch says it at all; otherwise it has what it asks for.
        program_bytes: static shared memory of the program.
        reserve_bytes: what is added behind all of the program's memory.
        least_bytes: what there is at least.
    """

    dynamic: bool = False
    program_bytes: int = 0
    reserve_bytes: int = 0
    least_bytes: int = 0

    def total(self, asked_bytes: int) -> int:
        """Return the dynamic shared memory of a launch that asks for some."""
        if not self.dynamic:
            return asked_bytes
        return max(_rounded(self.program_bytes + asked_bytes) + self.reserve_bytes, self.least_bytes)


@dataclass(frozen=True, slots=True)
class GuardedKernel:
    """What each launch of a kernel in the form of `tensorwasm.ptx.guarded` needs.

    Attributes:
        verified: what a launch has to ensure.
        data: variables of the module, of which each session has a copy in its window.
        shared: how much shared memory a launch has.
    """

    verified: Verified
    data: DataImage
    shared: SharedNeeds

    @property
    def launch_bytes(self) -> int:
        """Size of the launch parameter."""
        return variable_bytes(LAUNCH_PARAMS[self.verified.width])

    def image(self, address: int) -> bytes:
        """Return the first contents of the module's variables at an address."""
        made = bytearray(self.data.image.ljust(self.data.size_bytes, b"\0"))
        for at in self.data.pointers:
            value = int.from_bytes(made[at : at + 8], "little") + address
            made[at : at + 8] = (value % (1 << 64)).to_bytes(8, "little")
        if len(made) != self.data.size_bytes:
            raise InternalError("the variables of a module are larger than the memory that they have")
        return bytes(made)


def guard_kernel(
    module: Module, shared_base: int = SHARED_BASE, deadline: Deadline = NEVER, width: Width = "narrow"
) -> tuple[Module, GuardedKernel]:
    """Guard a module of one kernel, as `tensorwasm.ptx.extract` returns it, and verify the text that it prints as.

    Returns:
        The guarded module, of which the verifier has accepted what it prints as; and what launches of it need.

    Args:
        module: what the kernel reaches.
        shared_base: address of the first variable in shared memory on the device.
        deadline: when to stop.
        width: of the windows that it is for.

    Raises:
        UnsupportedPtx: the kernel cannot be confined; the message names the form and its line.
        InvokeTimeout: the deadline passed.
    """
    return verify_kernel(guard(module, shared_base, deadline, width), shared_base, deadline)


def verify_kernel(
    written: Guarded, shared_base: int = SHARED_BASE, deadline: Deadline = NEVER
) -> tuple[Module, GuardedKernel]:
    """Verify the text that a guarded module prints as; otherwise as `guard_kernel`."""
    verified = verify(render(written.module, deadline), shared_base, deadline)
    reserve_bytes = verified.arrays.shared_reserve_bytes
    least_bytes = max(reserve_bytes + _SHARED_GRAIN_BYTES, _rounded(verified.least_shared_bytes))
    shared = SharedNeeds(verified.arrays.dynamic, written.program_shared_bytes, reserve_bytes, least_bytes)
    return written.module, GuardedKernel(verified, written.data, shared)


def launch_parameter(
    window: int,
    data: int,
    deadline_ns: int,
    flag: int,
    status: int,
    look_ns: int,
    shared_bytes: int,
    dynamic_bytes: int,
    window_bytes: int = 0,
) -> bytes:
    """Return the last parameter of a guarded kernel; see `tensorwasm.ptx.guarded` for its fields.

    Args:
        window: address of the session's window.
        data: offset in it of the module's variables.
        deadline_ns: on the device's clock, ``%globaltimer``.
        flag: address of the session's flag, through which its kernels stop each other.
        status: address of the word in which they say why they stopped, before the one that tells them to.
        look_ns: on the device's clock: when its blocks begin to look whether they are to stop.
        shared_bytes: dynamic shared memory of the launch.
        dynamic_bytes: what of it the launch asked for itself.
        window_bytes: size of the window, for a wide kernel; 0 for a narrow one.
    """
    made = _LAUNCH.pack(window >> 32, data, deadline_ns, flag, status, look_ns, shared_bytes, 0, dynamic_bytes, 0)
    return made + _WIDE.pack(window_mask(window_bytes), 0) if window_bytes else made


def device_time(deadline: Deadline, offset_ns: int) -> int:
    """Return a deadline on the device's clock, which is that far beyond the monotonic one."""
    return _NEVER_NS if deadline.at_ns is None else min(max(deadline.at_ns + offset_ns, 0), _NEVER_NS)


def first_look(deadline_ns: int, offset_ns: int) -> int:
    """Return when blocks of a launch that is submitted now begin to look, on the device's clock as ``deadline_ns``."""
    return min(deadline_ns, max(time.monotonic_ns() + limits.GUARDED_UNLOOKED_NS + offset_ns, 0))


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // _SHARED_GRAIN_BYTES) * _SHARED_GRAIN_BYTES
