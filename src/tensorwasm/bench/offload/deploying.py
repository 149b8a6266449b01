"""The benchmark ``offload-deploy``: how long a deploy with offload takes to be answered, and until code is ready.

The module has the given size of code without loops, and functions of the programs that ``offload`` runs, of which about
twenty regions can be cut out. Each deploy is in a process of its own, which has loaded what a server loads at its
start. First with an empty cache, then with what the first one has kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure, Report, sampled
from tensorwasm.bench.harness import make_module, run_python, scratch_folder
from tensorwasm.bench.offload.programs import PROGRAMS, BenchProgram, read_programs
from tensorwasm.wasm import edit
from tensorwasm.wasm.module import Module, decode, encode
from tensorwasm.wasm.preamble import Export

_REGIONS: Final = 20
_ANSWER_BAR_MS: Final = 500.0
_READY_BAR_S: Final = 20.0
_RUN: Final = "run"

_DEPLOY: Final = """
import json, sys, time
from tensorwasm.runtime import Runtime
from tensorwasm.artifacts import hashing
from tensorwasm.guest.engine import capi
from tensorwasm.values import Limits
hashing.blake3(b"")
capi.check_bindings()
path, calls, offload = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
with Runtime("emulator", limits=Limits(memory_bytes=1 << 30)) as runtime:
    began = time.perf_counter()
    function = runtime.load(path, offload=offload, offload_waits=True)
    answer_s = time.perf_counter() - began
    if offload == "off":
        print(json.dumps([answer_s]))
        sys.exit()
    cut = function.cutting.result()
    cut_s = time.perf_counter() - began
    for export, arguments in calls:
        function.invoke(export, arguments)
    ready_s = time.perf_counter() - began
    made, compiled = runtime.offload_compiler.plans.made, runtime.deploys().compiled
    regions = len(cut.regions), sum(each.taken > 0 for each in cut.statistics)
print(json.dumps([answer_s, cut_s, ready_s, *regions, made, compiled]))
"""


def measure_offload_deploy(_choice: str = "auto", *, samples: int = 3, code_bytes: int = 1_000_000) -> Report:
    """Measure so many deploys of what was never deployed, and so many of what was."""
    programs = list(_programs())
    calls = json.dumps([(program.name, program.sizes) for program in programs])
    with scratch_folder() as folder:
        path = folder / "module.wasm"
        path.write_bytes(encode(make_loops(code_bytes, programs)))
        new: list[Mapping[str, float]] = []
        again: list[Mapping[str, float]] = []
        without_ms: list[float] = []
        for number in range(samples):
            without_ms.append(_deploy(folder / f"off{number}", path, calls, "off")["answer"] * 1e3)
            for taken in (new, again):
                taken.append(_deploy(folder / str(number), path, calls, "cpu"))
    return Report("offload-deploy", "all cores", tuple(_figures(new, again, without_ms)))


def make_loops(code_bytes: int, programs: list[BenchProgram]) -> Module:
    """Return a module with the function ``run`` of each program, under its name, behind code without loops."""
    module = decode(make_module(code_bytes, loops=False))
    pages = module.memories[0].minimum
    for program in programs:
        found = decode(program.wasm)
        place = _run_of(found)
        module, (index,) = edit.add_functions(module, [(found.types[found.functions[place]], found.bodies[place])])
        module = edit.add_exports(module, [Export(program.name, "func", index)])
        pages = max(pages, found.memories[0].minimum)
    return edit.add_exports(edit.set_memory_minimum(module, {0: pages}), [Export("memory", "memory", 0)])


def _programs() -> Iterator[BenchProgram]:
    """Yield programs, in small sizes, until there are regions enough."""
    from tensorwasm.offload.module import cut_module  # noqa: PLC0415 - slow to import

    regions = 0
    for program in read_programs("small", PROGRAMS):
        module = decode(program.wasm)
        body = module.bodies[_run_of(module)]
        if not {"call", "global.get"}.isdisjoint(step[0] for step in body.instructions()):
            continue
        function = _run_of(module) + len(module.imported("func"))
        regions += sum(region.function == function for region in cut_module(program.wasm).regions)
        yield program
        if regions >= _REGIONS:
            return


def _run_of(module: Module) -> int:
    index = next(item.index for item in module.exports if item.name == _RUN)
    return index - len(module.imported("func"))


def _deploy(folder: Path, path: Path, calls: str, offload: str) -> Mapping[str, float]:
    kept = {"CACHE": folder / "cache", "STATE_DIR": folder / "state", "CODE_CACHE": 1024, "KERNEL_CACHE": 1024}
    settings = {f"TENSOR_WASM_{name}": str(value) for name, value in kept.items()}
    names = "answer", "cut", "ready", "regions", "taken", "made", "compiled"
    answer: list[float] = json.loads(run_python("-P", "-c", _DEPLOY, str(path), calls, offload, settings=settings)[0])
    return dict(zip(names, answer, strict=False))


def _figures(
    new: list[Mapping[str, float]], again: list[Mapping[str, float]], without_ms: list[float]
) -> Iterator[Figure]:
    def listed(taken: list[Mapping[str, float]], name: str, scale: float = 1.0) -> list[float]:
        return [each[name] * scale for each in taken]

    yield sampled("regions", "", listed(new, "regions"))
    yield sampled("regions that were taken", "", listed(new, "taken"))
    for name, taken in (("new", new), ("seen before", again)):
        yield sampled(f"{name}: the deploy is answered", "ms", listed(taken, "answer", 1e3), bar=_ANSWER_BAR_MS)
        yield sampled(f"{name}: the module with guards is ready", "s", listed(taken, "cut"))
        yield sampled(f"{name}: all code is ready, and was called", "s", listed(taken, "ready"), bar=_READY_BAR_S)
    yield sampled("new: without offload the deploy is answered", "ms", without_ms)
    yield sampled("plans made anew of what was seen before", "", listed(again, "made"), bar=0.0)
    yield sampled("modules compiled anew that were seen before", "", listed(again, "compiled"), bar=0.0)
