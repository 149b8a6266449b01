"""The judge of guarded kernels: a window of addresses as a guard expects it, on the emulator, and a victim beside it.

A window is 4 GiB of addresses, or a larger power of two, aligned to that, with 64 MiB of slack before and behind. The
attacker's buffer and the module's variables are real memory in it; every other page, of the slack too, is one scratch
chunk of 64 MiB, mapped again and again. A guarded kernel is given the window and nothing else, so whatever leaves it is
a fault of the emulator; the victim's buffer is an ordinary allocation that no launch is given.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

import numpy as np

from fakes.emulation import Emulation
from strategies.hostile import OWN_BYTES, Hostile
from tensorwasm.errors import InvalidDimensions, InvokeTimeout, KernelFault, TensorWasmError
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES
from tensorwasm.gpu.device.guarded_kernel import launch_parameter
from tensorwasm.gpu.device.protocols import LoadedModule
from tensorwasm.gpu.emulator.memory.planes import host_bytes
from tensorwasm.gpu.emulator.memory.racecheck import RaceDetector
from tensorwasm.ptx import parse
from tensorwasm.ptx.guarded import FLAG_BYTES, FLAG_STOPPED, LOOK_NS, STOPPED, TRAPPED
from tensorwasm.values import NEVER, Deadline, Dim3, LaunchConfig, Region

WINDOW_BYTES = 4 << 30
SLACK_BYTES = 64 << 20
CHUNK_BYTES = 64 << 20
OWN_AT = 0x2000_0000
"""Offset of the attacker's buffer in a window of 4 GiB, and in the last 4 GiB of a larger one of an exam."""
DATA_AT = 0x3000_0000
"""Offset of the module's variables."""
DATA_BYTES = 1 << 20
VICTIM_BYTES = 1 << 16
_EXAM_NS = 600_000_000_000
_STRICTER = {
    "needs all 32 lanes": "matrix instructions of a warp of which threads have exited",
    "the lanes of the warp disagree": "matrices whose lanes say different addresses, of which each is confined",
}
"""What the emulator takes for a fault and a GPU does not, by words of the message."""
_MOST_BLOCKS = 16


class AddressWindow:
    """A window of the emulator with the memory that the module's description says.

    Attributes:
        start: the first address of the slack in front.
        base: the first address of the window, a multiple of its size.
        size_bytes: addresses of it.
        region: all of it, slack included, as a launch is given it.
        own, data: the real memory.
        scratch: the bytes that all other pages show.
    """

    def __init__(
        self, emulation: Emulation, own_bytes: int = OWN_BYTES, size_bytes: int = WINDOW_BYTES, own_at: int = OWN_AT
    ) -> None:
        self._emulation = emulation
        self._windows = emulation.device.windows
        self._window = self._windows.open_window(CHUNK_BYTES, size_bytes)
        self.base, self.size_bytes = self._window.address, size_bytes
        self.start = self.base - SLACK_BYTES
        self.region = Region(self.start, size_bytes + 2 * SLACK_BYTES, host=True)
        self.scratch = host_bytes(self.start, CHUNK_BYTES)
        self._real_bytes: dict[int, int] = {}
        self.own = self._real(own_at, own_bytes)
        self.data = self._real(DATA_AT, DATA_BYTES)

    def _real(self, offset: int, size_bytes: int) -> Region:
        whole_bytes = self._real_bytes[offset] = -(-size_bytes // GRANULE_BYTES) * GRANULE_BYTES
        self._windows.map_device(self._window, offset, whole_bytes)
        return Region(self.base + offset, size_bytes, host=True)

    def bytes_of(self, region: Region) -> np.ndarray:
        """Return memory of the window, writable."""
        return host_bytes(region.address, region.size_bytes)

    def clear(self) -> None:
        """Fill the real memory and the scratch chunk with zeros."""
        stream = self._emulation.stream
        self._windows.clear_scratch(self._window, stream)
        for offset, size_bytes in self._real_bytes.items():
            self._windows.clear(self._window, offset, size_bytes, stream)
        self._emulation.device.synchronize(stream, NEVER)

    def close(self) -> None:
        self._windows.close_window(self._window)


@contextmanager
def races_allowed() -> Iterator[None]:
    """Let kernels race in shared memory, as hardware does; what nobody has written is still not read."""
    saved = RaceDetector._conflict, RaceDetector.overlaps
    RaceDetector._conflict = lambda *_: None
    RaceDetector.overlaps = lambda _self, index, *_: np.zeros(index.size, np.bool_)
    try:
        yield
    finally:
        RaceDetector._conflict, RaceDetector.overlaps = saved


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a launch.

    Attributes:
        violations: what a guarded kernel must never do; empty if it did nothing of it.
        stopped: whether a thread wrote the status word.
        lacking: why the emulator could not run the kernel, else empty; then nothing is known of it.
    """

    violations: tuple[str, ...] = ()
    stopped: bool = False
    lacking: str = ""


class Exam:
    """A window, a victim, and the words through which a guard is told to stop; runs hostile kernels one by one."""

    def __init__(self, seed: int = 0, window_bytes: int = WINDOW_BYTES) -> None:
        self._rng = random.Random(seed)
        self.emulation = Emulation(memory_bytes=1 << 27)
        self.window = AddressWindow(
            self.emulation, size_bytes=window_bytes, own_at=window_bytes - WINDOW_BYTES + OWN_AT
        )
        self.secret = np.frombuffer(self._rng.randbytes(VICTIM_BYTES), np.uint64)
        self.victim = self.emulation.buffer(self.secret)
        self.flag = self.emulation.buffer([0] * 4)
        self.status = self.emulation.buffer([0, 0])

    def close(self) -> None:
        self.window.close()
        self.emulation.device.close()

    def run(
        self,
        hostile: Hostile,
        guarded: str | None = None,
        *,
        data: bytes = b"",
        budget_s: float = 0.05,
        grace_s: float = 30.0,
        stop: bool = False,
    ) -> Outcome:
        """Launch a kernel and judge what it did.

        Args:
            hostile: the kernel.
            guarded: what runs in its place; None launches the kernel as it is, with the window as the only memory that
                it may touch.
            budget_s: time until the deadline of the guard.
            grace_s: time after it until the emulator stops the kernel, which is a violation.
            stop: whether it is told to stop from the beginning.
        """
        window, emulation = self.window, self.emulation
        window.clear()
        if guarded is not None:
            image = guarded.image(window.data.address)
            window.bytes_of(window.data)[: len(image)] = np.frombuffer(image, np.uint8)
        for region, words in ((self.flag, bytes(FLAG_BYTES)), (self.status, struct.pack("<II", 0, stop))):
            emulation.device.write(region.address, words, emulation.stream)
        args = self._arguments()
        regions, text, shared_bytes = [window.region], hostile.text, hostile.dynamic_shared_bytes
        if guarded is not None:
            text, shared_bytes = guarded.text, guarded.shared_bytes(shared_bytes)
            if not guarded.takes(hostile.block):
                return Outcome(lacking="blocks that are no whole warps")
            args = [_aligned(value, align) for value, align in zip_longest(args, guarded.aligns, fillvalue=1)]
        try:
            loaded = emulation.device.load(parse(text), NEVER)
        except TensorWasmError as error:
            return Outcome((*self._harm(stop=stop),), lacking=f"{type(error).__name__}: {error}")
        if guarded is not None:  # the time that loading takes is not the kernel's
            deadline = time.time_ns() + int(budget_s * 1e9)
            words = self.window.base, DATA_AT, deadline, self.flag.address, self.status.address
            given = 0, shared_bytes, hostile.dynamic_shared_bytes, window.size_bytes if guarded.wide else 0
            args.append(launch_parameter(*words, *given))
            regions += [self.flag, self.status]
        config = LaunchConfig(_cut(hostile.grid), hostile.block, shared_bytes)
        fault, lacking = self._launch(hostile, loaded, config, args, regions, budget_s + grace_s)
        return Outcome((*fault, *self._harm(stop=stop)), bool(emulation.read(self.status)[0]), lacking)

    def _arguments(self) -> list[bytes]:
        random_64, random_32 = self._rng.getrandbits(64), self._rng.getrandbits(32)
        values = struct.pack(
            "<QQQII", self.window.own.address, self.victim.address, random_64, self.window.own.size_bytes, random_32
        )
        return [values[:8], values[8:16], values[16:24], values[24:28], values[28:]]

    def _launch(
        self,
        hostile: Hostile,
        loaded: LoadedModule,
        config: LaunchConfig,
        args: list[bytes],
        regions: list[Region],
        seconds: float,
    ) -> tuple[tuple[str, ...], str]:
        """Return the violation that ended the launch, and what the emulator lacks."""
        emulation, device = self.emulation, self.emulation.device
        deadline = Deadline.after(seconds)
        try:
            with races_allowed():
                device.launch(loaded, hostile.entry, config, args, regions, emulation.stream, deadline)
                device.synchronize(emulation.stream, deadline)
        except InvalidDimensions as error:
            return (), str(error)
        except (KernelFault, InvokeTimeout) as error:
            device.close_stream(emulation.stream)
            emulation.stream = device.open_stream()
            for words, form in _STRICTER.items():
                if words in error.message:
                    return (), f"{form}: hardware lets them pass"
            kind = "fault" if isinstance(error, KernelFault) else "still running"
            return (f"{kind}: {error}",), ""
        except TensorWasmError as error:
            device.close_stream(emulation.stream)
            emulation.stream = device.open_stream()
            return (), f"{type(error).__name__}: {error}"
        finally:
            device.unload(loaded)
        return (), ""

    def _harm(self, *, stop: bool) -> Iterator[str]:
        """Yield what happened to memory that is not the attacker's, and what he learnt of it."""
        if not np.array_equal(self.emulation.read(self.victim, np.uint64), self.secret):
            self.emulation.device.write(self.victim.address, self.secret.tobytes(), self.emulation.stream)
            yield "the victim's buffer has changed"
        until, (told, behind) = self.emulation.read(self.flag, np.uint64)[0], self.emulation.read(self.flag)[2:]
        status, request = self.emulation.read(self.status)
        if request != stop:
            yield "the request to stop has changed"
        if status not in {0, STOPPED, TRAPPED}:
            yield "the status word holds what no guard writes"
        if behind or not (until in {0, FLAG_STOPPED} or 0 <= time.time_ns() + LOOK_NS - until < _EXAM_NS):
            yield "the flag holds what no guard writes"
        if (told != status and 0 in {told, status}) or (until == FLAG_STOPPED) != bool(told):
            yield "flag and status do not agree"
        for region in (self.window.own, self.window.data):
            if np.isin(self.window.bytes_of(region).view(np.uint64), self.secret).any():
                yield "the victim's data are in the attacker's memory"


def _aligned(value: bytes, align: int) -> bytes:
    """Return an argument as a launch ensures it: a multiple of what the kernel relies on."""
    number = int.from_bytes(value, "little")
    return (number - number % align).to_bytes(len(value), "little")


def _cut(grid: Dim3) -> Dim3:
    """Return a grid of which the emulator runs every block in time."""
    return grid if prod(grid) <= _MOST_BLOCKS else (_MOST_BLOCKS, 1, 1)
