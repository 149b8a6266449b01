"""The port that every device implements: its core here, one protocol a subject in `tensorwasm.gpu.device.protocols`.

What holds for all methods is stated in `tensorwasm.gpu.device`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tensorwasm.gpu.device.protocols import (
    AddressWindows,
    Events,
    Graphs,
    LoadedModule,
    Native,
    Pools,
    Stream,
    UnifiedMemory,
)
from tensorwasm.values import NEVER, Deadline, DeviceInfo, KernelSignature, LaunchConfig, Region

if TYPE_CHECKING:
    from tensorwasm.gpu.device.admission import CompiledKernel
    from tensorwasm.ptx.model import Module

MAX_KERNEL_OUTPUT_BYTES: Final = 1 << 20
"""Most that is kept between two calls of `KernelOutput.take`; the default size of a GPU's own buffer."""


class KernelOutput:
    """A bounded buffer. Any thread may write; only the one that runs the guest takes, or clears ``truncated``."""

    __slots__ = ("_lock", "_text", "truncated")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = bytearray()
        self.truncated = False

    def write(self, text: bytes) -> None:
        """Append a text, or as much of it as fits."""
        with self._lock:
            room = MAX_KERNEL_OUTPUT_BYTES - len(self._text)
            self._text += text[:room]
            self.truncated = self.truncated or len(text) > room

    def take(self) -> tuple[bytes, bool]:
        """Return and clear the text, and whether some was dropped since the last call."""
        if not self._text and not self.truncated:
            return b"", False
        with self._lock:
            text, cut = bytes(self._text), self.truncated
            self._text.clear()
            self.truncated = False
        return text, cut


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """A snapshot of what a device holds: counts of live things, and their bytes.

    Attributes:
        allocations: those from pools included.
        registrations: of host memory.
        launches: since the device was opened, replays counting one, those by compiled code not at all.
        unified_bytes: managed memory and memory mapped into reserved ranges.
        window_bytes: scratch memory of address windows and what is mapped in them.
        release_failures: releases that failed; each was logged.
    """

    allocations: int = 0
    allocated_bytes: int = 0
    registrations: int = 0
    registered_bytes: int = 0
    modules: int = 0
    streams: int = 0
    launches: int = 0
    events: int = 0
    graphs: int = 0
    pools: int = 0
    unified_bytes: int = 0
    windows: int = 0
    window_bytes: int = 0
    release_failures: int = 0


__all__ = ["Device", "DeviceStatistics", "LoadedModule", "Stream"]


class Device(Protocol):
    """A device."""

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""

    @property
    def events(self) -> Events:
        """Order between streams."""

    @property
    def graphs(self) -> Graphs:
        """Sequences that are recorded once and replayed."""

    @property
    def pools(self) -> Pools:
        """Device memory under a cap."""

    @property
    def unified(self) -> UnifiedMemory:
        """Memory under one address for host and device."""

    @property
    def windows(self) -> AddressWindows:
        """Windows of addresses without an unmapped page."""

    @property
    def native(self) -> Native:
        """The device for compiled code."""

    @property
    def timer_offset_ns(self) -> int:
        """What kernels read as ``%globaltimer`` beyond the monotonic clock; negative if they read less."""

    @property
    def shared_base(self) -> int:
        """Where kernels find the first variable in shared memory."""

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new zeroed device memory, at least 256-byte aligned.

        Raises:
            QuotaExceeded: the device has no such memory left.
        """

    def free(self, address: int) -> None:
        """Release what `allocate` returned. No stream may still use it."""

    def register(self, address: int, size_bytes: int) -> None:
        """Make host pages reachable by kernels at the same address. Both arguments are multiples of the page size.

        Raises:
            LaunchRefused: the pages cannot be registered.
        """

    def unregister(self, address: int) -> None:
        """Undo `register`. No stream may still use the pages."""

    def write(self, address: int, data: bytes | memoryview, stream: Stream | None, deadline: Deadline = NEVER) -> None:
        """Copy host bytes into device memory, after the work already in the stream. Blocks until done.

        Args:
            address: in device memory.
            data: what is copied.
            stream: None if all work on that memory has been waited for: then the copy waits for no stream.
            deadline: when the copy must have begun, or nothing is copied; a busy device may begin late.
        """

    def read(self, address: int, into: memoryview, stream: Stream | None, deadline: Deadline = NEVER) -> None:
        """Fill a writable host buffer from device memory; as `write`."""

    def fill(self, address: int, size_bytes: int, stream: Stream) -> None:
        """Start filling device memory with zeros, behind the work already in the stream."""

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: Stream) -> None:
        """Start copying host memory, which stays as it is until the stream has drained, to device memory.

        Registered host memory is copied while the host goes on; from other memory the call may wait.
        """

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: Stream) -> None:
        """Start copying device memory to host memory, which is not used until the stream has drained."""

    def load(self, module: Module, deadline: Deadline, output: KernelOutput | None = None) -> LoadedModule:
        """Make a module's kernels ready to launch.

        What they print goes to ``output``, if the device can attribute it.

        Raises:
            UnsupportedPtx: the module asks for what this device lacks, by name.
            MalformedPtx: the device's own compiler refuses it.
            InvokeTimeout: the deadline passed; nothing was loaded.
        """

    @property
    def assembler(self) -> str:
        """What makes the images of `assemble`, by name and release; empty if nothing does."""

    def assemble(self, module: Module, deadline: Deadline) -> CompiledKernel | None:
        """Return a module of one kernel compiled, for `load_image` of this and other processes.

        None if the device has no such form.

        Raises:
            UnsupportedPtx, MalformedPtx, InvokeTimeout: as `load`.
        """

    def load_image(self, image: bytes, signature: KernelSignature) -> LoadedModule:
        """Load the image of a kernel that `assemble` has returned, unchanged, and make its one kernel ready to launch.

        Raises:
            MalformedPtx: the device does not take the image.
        """

    def unload(self, loaded: LoadedModule) -> None:
        """Release a module. None of its kernels may still run."""

    def open_stream(self) -> Stream:
        """Return a new stream."""

    def close_stream(self, stream: Stream) -> None:
        """Release a stream whose work has ended."""

    def launch(
        self,
        loaded: LoadedModule,
        entry: str,
        config: LaunchConfig,
        args: Sequence[bytes],
        regions: Sequence[Region],
        stream: Stream,
        deadline: Deadline,
    ) -> None:
        """Start a kernel. It may not have begun on return, and its fault may be raised by the wait for it.

        Args:
            loaded: from `load`.
            entry: a kernel of it.
            config: checked by the caller against the ABI's limits.
            args: one little-endian packed value per parameter, of exactly the parameter's size.
            regions: everything the kernel may touch in global memory, apart from the module's own variables.
            stream: where it runs.
            deadline: when it must have stopped.

        Raises:
            InvalidDimensions: more than this device or this kernel takes.
            LaunchRefused: the device refused, nothing ran.
        """

    def ended(self, stream: Stream) -> bool:
        """Return whether the work in a stream has ended; never waits."""

    def delayed(self, stream: Stream) -> bool:
        """Return whether work in a stream that has missed its deadline may only be held up by other streams' work.

        That is so for a limited time: work given after the first such call does not count.
        """

    def synchronize(self, stream: Stream, deadline: Deadline) -> None:
        """Wait for the work in a stream."""

    def statistics(self) -> DeviceStatistics:
        """Return what the device holds now."""

    def close(self) -> None:
        """Release everything. Idempotent."""


def attempt(release: Callable[..., object], *things: object) -> list[Exception]:
    """Release something; return what that raised, if anything."""
    try:
        release(*things)
    except Exception as error:  # noqa: BLE001 - a device that breaks its contract must not stop the other releases
        return [error]
    return []
