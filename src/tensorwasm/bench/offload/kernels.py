"""The benchmark ``offload-kernels``: the kernels that regions become, beside kernels written by hand in CUDA.

Times are the device's own, from the begin of a region's first kernel to the end of its last one, without copies. A
kernel of one thread before it and one behind it note the device's clock; the first one waits until launches have queued
up behind it, as those of a program in C++ do at once. The peer's times are from its events.
"""

from __future__ import annotations

import statistics
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tensorwasm.bench.figures import Figure, MissingPeer, Report
from tensorwasm.bench.harness import checkout_path, scratch_folder
from tensorwasm.bench.offload.measuring import LIMITS, count_taken, opened
from tensorwasm.bench.offload.programs import FOLDER, PROGRAMS, UNCOUNTED, BenchProgram, read_programs
from tensorwasm.bench.peers.handwritten import NVCC, build_handwritten, time_handwritten
from tensorwasm.errors import InvalidArgs
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, Scalar
from tensorwasm.runtime import Runtime
from tensorwasm.values import NEVER, LaunchConfig

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.runtime import Function

_SAMPLES: Final = 4
_ONE_THREAD: Final = LaunchConfig((1, 1, 1), (1, 1, 1))
_QUEUED_NS: Final = 1_000_000
_CLOCK: Final = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry clock(.param .u64 place, .param .u64 wait)
{
    .reg .pred %p;
    .reg .u64 %rd<5>;
    ld.param.u64 %rd0, [place];
    ld.param.u64 %rd3, [wait];
    cvta.to.global.u64 %rd1, %rd0;
    mov.u64 %rd4, %globaltimer;
    add.u64 %rd3, %rd3, %rd4;
again:
    mov.u64 %rd2, %globaltimer;
    setp.lt.u64 %p, %rd2, %rd3;
    @%p bra again;
    st.global.u64 [%rd1], %rd2;
    ret;
}
"""


class WatchedSession:
    """A session that measures: the work between two reads of buffers is one stretch, and reads end it."""

    def __init__(self, session: Session) -> None:
        """Measure what is done with a session."""
        self.taken_ns = 0
        self._session = session
        self._places = session.buffers.allocate(16)
        self._clock = session.kernels.load(_CLOCK, "clock", NEVER)
        self._running = False
        self.kernels = _Watched(session.kernels, {"submit": self._begin})
        self.graphs = _Watched(session.graphs, {"begin": self._begin, "replay": self._begin})
        self.buffers = _Watched(session.buffers, {"read": self._end})

    def __getattr__(self, name: str) -> Any:
        """Return what is not measured."""
        return getattr(self._session, name)

    def _begin(self) -> None:
        if not self._running:
            self._running = True
            self._note(0, _QUEUED_NS)

    def _end(self) -> None:
        if self._running:
            self._running = False
            self._note(8)
            times = bytearray(16)
            self._session.buffers.read(self._places, memoryview(times), NEVER)
            begin_ns, end_ns = struct.unpack("<QQ", times)
            self.taken_ns += end_ns - begin_ns

    def _note(self, offset_bytes: int, wait_ns: int = 0) -> None:
        arguments: list[Argument] = [BufferOffset(self._places, offset_bytes), Scalar(wait_ns.to_bytes(8, "little"))]
        self._session.kernels.submit(self._clock, _ONE_THREAD, lambda: arguments, None, NEVER)


class _Watched:
    """A part of a session of which some methods are told of before they are called."""

    def __init__(self, part: object, told: Mapping[str, Any]) -> None:
        self._part = part
        self._told = told

    def __getattr__(self, name: str) -> Any:
        if name in self._told:
            self._told[name]()
        return getattr(self._part, name)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Of one program: seconds of all kernels in the best call.

    Attributes:
        ours_s: None if a loop was not taken.
        peers_s: of kernels written by hand, without and with fused operations; empty without a compiler.
    """

    ours_s: float | None
    peers_s: tuple[float, ...]


def measure_kernels(choice: str = "auto", *, size: str = "extralarge", programs: str = "") -> Report:
    """Measure the kernels of programs on a GPU, or on the emulator.

    Args:
        choice: of the device.
        size: small, medium, large or extralarge.
        programs: names with commas between them; empty for all that count.

    Raises:
        InvalidArgs: a program has no kernels written by hand.
    """
    names = programs.split(",") if programs else [name for name in PROGRAMS if name not in UNCOUNTED]
    chosen = read_programs(size, names)
    if unknown := [program.name for program in chosen if program.name in UNCOUNTED]:
        raise InvalidArgs(f"there are no kernels written by hand for {unknown[0]}")
    with Runtime(choice, limits=LIMITS) as runtime, scratch_folder() as folder:
        libraries = _build(chosen, folder) if runtime.device.kind == "cuda" else {}
        found = {}
        for program in chosen:
            function = runtime.load(program.wasm, offload="gpu", offload_waits=True)
            ours_s, peers = _measure(function, program), libraries.get(program.name)
            times = time_handwritten(peers, program.sizes, _SAMPLES) if peers else ()
            found[program.name] = KernelTimes(ours_s, tuple(map(min, times)))
            print(f"{program.name}: {found[program.name]}", file=sys.stderr, flush=True)
        return make_kernel_report(f"{runtime.device.name}, driver {runtime.device.driver or 'none'}, {size}", found)


def _build(programs: Sequence[BenchProgram], folder: Path) -> dict[str, list[Path]]:
    """Return the libraries of programs, without and with fused operations; none where there is no compiler."""
    sources = checkout_path(FOLDER)
    with ThreadPoolExecutor() as pool:
        asked = {
            program.name: [
                pool.submit(build_handwritten, sources, program.name, folder, fma=fma) for fma in (False, True)
            ]
            for program in programs
        }
    try:
        return {name: [each.result() for each in building] for name, building in asked.items()}
    except MissingPeer as missing:
        print(missing, file=sys.stderr)
        return {}


def _measure(function: Function, program: BenchProgram) -> float | None:
    offloading = function.offloading
    if offloading is None:
        return None
    watched: list[WatchedSession] = []

    def watch(session: Session) -> Session:
        watched.append(WatchedSession(session))
        return cast("Session", watched[-1])

    offloading.watched = watch
    times_ns = []
    with opened(function, program) as sandbox:
        for _ in range(_SAMPLES):
            sandbox.call("init", program.sizes)
            before_ns = sum(each.taken_ns for each in watched)
            sandbox.call("run", program.sizes)
            times_ns.append(sum(each.taken_ns for each in watched) - before_ns)
            if not times_ns[-1]:
                break
    _, regions = count_taken(function, program.wasm)
    whole = all(": taken: 0, " not in region for region in regions)
    return min(times_ns) * 1e-9 if whole and times_ns[-1] else None


def make_kernel_report(device: str, found: Mapping[str, KernelTimes]) -> Report:
    """Return the report of measured programs."""
    return Report("offload-kernels", device, tuple(_figures(found)))


def _figures(found: Mapping[str, KernelTimes]) -> Iterator[Figure]:
    taken = {name: times for name, times in found.items() if times.ours_s}
    for name in found.keys() - taken.keys():
        yield Figure(f"{name}: not taken", "s", 0.0, 0.0, 0)
    for number, (fma, bars) in enumerate((("fma off", (1.0, 0.5)), ("fma on", (None, None)))):
        speeds = {
            name: times.peers_s[number] / times.ours_s
            for name, times in taken.items()
            if times.ours_s and times.peers_s
        }
        for name, times in taken.items():
            peer, ours_s = f"{NVCC}, {fma}", times.ours_s or 0.0
            yield Figure(f"{name}: speed", "s", ours_s, 0.0, _SAMPLES, peer=peer, ratio=speeds.get(name))
        means = (statistics.geometric_mean(speeds.values()), min(speeds.values())) if speeds else ()
        for what, value, bar in zip(("mean", "least"), means, bars, strict=False):
            name = f"{what} speed of {len(speeds)} programs, {fma}"
            yield Figure(name, "x", value, 0.0, len(speeds), bar=bar, sense="at least")
