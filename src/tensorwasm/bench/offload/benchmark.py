"""The benchmark ``offload``: which programs run faster with their loops elsewhere, and whether they do the same.

All programs in large sizes take many minutes. Figures can be kept in a file after each program, and are taken from it
for as long as what they depend on is the same: the program, the machine, and for offloaded calls the package too.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tensorwasm.bench.figures import Figure, Report, machine, versions
from tensorwasm.bench.offload.measuring import (
    LIMITS,
    TRANSFORMER,
    KeptFigures,
    OffloadedFigures,
    PlainFigures,
    TransformerFigures,
    measure_offloaded,
    measure_plain,
    measure_transformer,
    transformer_digest,
)
from tensorwasm.bench.offload.programs import PROGRAMS, UNCOUNTED, BenchProgram, code_digest, read_programs
from tensorwasm.bench.peers.host import WASMTIME
from tensorwasm.bench.peers.native import GCC
from tensorwasm.runtime import Runtime
from tensorwasm.settings import give

if TYPE_CHECKING:
    from tensorwasm.runtime import Function

_NEW: Final = "sizes new"
_LATER: Final = "later calls"
_NATIVE: Final = f"later calls, against {GCC}"

_BARS: Final[Mapping[tuple[str, str], Mapping[str, float]]] = {
    ("cuda", "extralarge"): {_NEW: 20.0, _LATER: 30.0},
    ("cpu", "large"): {_LATER: 2.0, _NATIVE: 1.0},
}
"""The least geometric means of speed-ups, by place and size."""


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """A program's figures."""

    plain: PlainFigures
    offloaded: OffloadedFigures

    @property
    def speed_ups(self) -> dict[str, float]:
        """How much faster calls are than in wasmtime, and than native code; 1 where no loop was taken."""
        found = {_NEW: self.plain.best_s / self.offloaded.new_s, _LATER: self.plain.best_s / self.offloaded.later_s}
        if not self.offloaded.taken:
            found = dict.fromkeys(found, 1.0)
        if self.plain.native_s is not None:
            found[_NATIVE] = self.plain.native_s / self.offloaded.later_s
        return found


@dataclass(frozen=True, slots=True)
class OffloadReport(Report):
    """A report with the figures of each program, by name, and their sizes' name."""

    size: str
    programs: Mapping[str, MeasuredProgram]
    transformer: TransformerFigures | None = None

    def to_json(self) -> str:
        """Return the report as JSON, with all figures of programs."""
        programs = {name: asdict(program) for name, program in self.programs.items()}
        report = json.loads(Report.to_json(self)) | {"size": self.size, "programs": programs}
        report |= {} if self.transformer is None else {TRANSFORMER: asdict(self.transformer)}
        return json.dumps(report, indent=1) + "\n"

    def to_text(self) -> str:
        """Return a table of programs, what became of their regions, and a table of figures over all programs."""
        head = ("program", "wasmtime", "cold", "sizes new", "", "later", "", GCC, "against it", "same")
        rows = [_row(name, program) for name, program in self.programs.items()]
        regions = [f"{name}: {region}" for name, each in self.programs.items() for region in each.offloaded.regions]
        means = Report(self.benchmark, self.device, tuple(figure for figure in self.figures if not figure.peer))
        regions += [] if self.transformer is None else [self.transformer.to_text()]
        return "\n".join((self._table([head, *rows]), *regions, "", means.to_text().partition("\n\n")[2]))

    @property
    def title(self) -> str:
        """The benchmark, what it ran on, and the sizes."""
        return f"{self.benchmark} on {self.device}, {self.size} sizes, times in ms"


def _row(name: str, program: MeasuredProgram) -> tuple[str, ...]:
    plain, offloaded, found = program.plain, program.offloaded, program.speed_ups
    times = (plain.best_s, offloaded.cold_s, offloaded.new_s, offloaded.later_s)
    best, cold, new, later = (f"{taken_s * 1e3:.4g}" for taken_s in times)
    native = "missing" if plain.native_s is None else f"{plain.native_s * 1e3:.4g}"
    against = f"x {found[_NATIVE]:.3g}" if _NATIVE in found else ""
    ratios = (f"x {found[name]:.3g}" if offloaded.taken else "declined" for name in (_NEW, _LATER))
    new_ratio, later_ratio = ratios
    return name, best, cold, new, new_ratio, later, later_ratio, native, against, offloaded.difference or "yes"


def make_report(
    place: str,
    device: str,
    size: str,
    programs: Mapping[str, MeasuredProgram],
    transformer: TransformerFigures | None = None,
) -> OffloadReport:
    """Return the report of measured programs and of the transformer; the place is cpu, emulator or cuda."""
    bars = _BARS.get((place, size), {})
    figures = [figure for name, program in programs.items() for figure in _figures(name, program)]
    figures += _means(programs, bars)
    different = sum(bool(program.offloaded.difference) for program in programs.values())
    if transformer is not None:
        different += not transformer.same
        speed, ratio = transformer.tokens / transformer.offloaded_s, transformer.plain_s / transformer.offloaded_s
        figures.append(Figure(f"{TRANSFORMER}: tokens", "1/s", speed, 0.0, 1, peer="not offloaded", ratio=ratio))
    count = len(programs) + (transformer is not None)
    figures.append(Figure("programs that differ from wasmtime", "", different, 0.0, count, bar=0.0))
    return OffloadReport("offload", device, tuple(figures), size, programs, transformer)


def _figures(name: str, program: MeasuredProgram) -> Iterator[Figure]:
    """Yield the times of one program, and their ratios to wasmtime's and to native code's."""
    plain, offloaded = program.plain, program.offloaded
    times = {"cold": offloaded.cold_s, _NEW: offloaded.new_s, _LATER: offloaded.later_s}
    for call, taken_s in times.items():
        yield Figure(f"{name}: {call}", "s", taken_s, 0.0, 1, peer=WASMTIME, ratio=taken_s / plain.best_s)
    ratio = None if plain.native_s is None else offloaded.later_s / plain.native_s
    yield Figure(f"{name}: {_NATIVE}", "s", offloaded.later_s, 0.0, 1, peer=GCC, ratio=ratio)


def _means(programs: Mapping[str, MeasuredProgram], bars: Mapping[str, float]) -> Iterator[Figure]:
    """Yield geometric means of speed-ups, with bars if all programs that count are there."""
    counted = [name for name in PROGRAMS if name not in UNCOUNTED]
    found = [programs[name].speed_ups for name in counted if name in programs]
    for call in (_NEW, _LATER, _NATIVE):
        ratios = [each[call] for each in found if call in each]
        name = f"speed-up, {call}, mean of {len(ratios)} of {len(counted)} programs"
        if ratios:
            bar = bars.get(call) if len(ratios) == len(counted) else None
            yield Figure(name, "x", statistics.geometric_mean(ratios), 0.0, len(ratios), bar=bar, sense="at least")


def measure_offload(
    choice: str = "auto", *, size: str = "medium", programs: str = "", resume: Path | None = None
) -> OffloadReport:
    """Measure programs on all cores (cpu), the emulator or a GPU; auto is a GPU, or all cores where there is none.

    Args:
        choice: of the device.
        size: small, medium, large or extralarge.
        programs: names with commas between them; empty for all. Besides those of programs there is `TRANSFORMER`.
        resume: a file that keeps figures.
    """
    names = programs.split(",") if programs else [*PROGRAMS, TRANSFORMER]
    chosen = read_programs(size, [name for name in names if name != TRANSFORMER])
    kept = KeptFigures(resume)
    give({"TENSOR_WASM_KERNEL_CACHE": 0})  # plans that an earlier run has kept would be ready at once
    with Runtime("emulator" if choice == "cpu" else choice, limits=LIMITS) as runtime:
        place, device = "cpu", "all cores"
        if choice != "cpu" and (choice != "auto" or runtime.device.kind == "cuda"):
            place, device = runtime.device.kind, runtime.device.name
        load = partial(runtime.load, offload="cpu" if place == "cpu" else "gpu", offload_waits=True)
        measured = {}
        for number, program in enumerate(chosen, 1):
            print(f"{number} of {len(chosen)}: {program.name}", end="", file=sys.stderr, flush=True)
            measured[program.name] = found = _measure(program, load, device, kept)
            print(_summary(found), file=sys.stderr, flush=True)
        transformer = None
        if TRANSFORMER in names:
            elsewhere = partial(runtime.load, offload="cpu" if place == "cpu" else "gpu")
            transformer = _measure_transformer(runtime.load, elsewhere, device, kept)
    return make_report(place, device, size, measured, transformer)


def _measure_transformer(
    plain: Callable[[bytes], Function], offloaded: Callable[[bytes], Function], device: str, kept: KeptFigures
) -> TransformerFigures:
    depends_on = [machine(), versions()["wasmtime"], transformer_digest(), device, code_digest()]
    found = kept.find(TransformerFigures, TRANSFORMER, depends_on)
    if found is None:
        found = kept.keep(measure_transformer(plain, offloaded), TRANSFORMER, depends_on)
    print(found.to_text(), file=sys.stderr, flush=True)
    return found


def _measure(
    program: BenchProgram, load: Callable[[bytes], Function], device: str, kept: KeptFigures
) -> MeasuredProgram:
    depends_on = [machine(), versions()["wasmtime"], program.digest]
    plain = kept.find(PlainFigures, program.name, depends_on)
    if plain is None:
        plain = kept.keep(measure_plain(program), program.name, depends_on)
    depends_on += [device, code_digest()]
    offloaded = kept.find(OffloadedFigures, program.name, depends_on)
    if offloaded is None:
        offloaded = kept.keep(measure_offloaded(load, program, plain), program.name, depends_on)
    return MeasuredProgram(plain, offloaded)


def _summary(found: MeasuredProgram) -> str:
    plain, offloaded = found.plain, found.offloaded
    if offloaded.difference:
        return f": WRONG: {offloaded.difference}"
    times = (plain.best_s, offloaded.cold_s, offloaded.new_s, offloaded.later_s)
    wasmtime, cold, new, later = (f"{taken_s:.4g} s" for taken_s in times)
    return f": wasmtime {wasmtime}; cold {cold}, sizes new {new}, later {later}; taken {offloaded.taken} times"
