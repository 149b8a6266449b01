"""Judges each part of the offload of loops on a program that runs: the nest, the program, and what is live."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from loops import LEVELS, as_bits, compile_c, memory_after_init
from oracles.nest import Trace, UndefinedCell, faults, run_nest
from oracles.program import Violation, run_program
from oracles.wasm_interpreter import Interpreter, Part, StepsExhausted, Visit
from oracles.wasm_numeric import Trapped
from strategies.loop_nests import arguments, functions, head
from tensorwasm.offload.analysis.build import RegionCode, build_nest, read_region
from tensorwasm.offload.analysis.regions import DeclinedLoop, LoopRegion, find_regions
from tensorwasm.offload.codegen.host import LoadedProgram, compile_for_host
from tensorwasm.offload.codegen.host_pool import HostOutcome, HostPool
from tensorwasm.offload.codegen.sizes import LoadedCodes, make_plan, with_sizes
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Nest
from tensorwasm.offload.program import NestProgram
from tensorwasm.offload.scheduling.plan import plan
from tensorwasm.values import Deadline
from tensorwasm.wasm.module import decode

MAX_STEPS = 100_000


Code = Callable[[NestProgram, Mapping[int, int], bytearray], Mapping[int, int] | None]


@dataclass(frozen=True)
class Pipeline:
    """The parts that are judged.

    Attributes:
        nest: of a region, given the bits of its integer inputs, locals and globals.
        program: of a nest and a size of memory.
        codes: by name, what runs a program over a memory for live-in locals, and returns the nest's results, or None if
            arithmetic made a NaN: then memory is as it was.
    """

    nest: Callable[[RegionCode, Mapping[int, int], Mapping[int, int]], Nest]
    program: Callable[[Nest, int], NestProgram]
    codes: Mapping[str, Code] = field(default_factory=dict)


@cache
def _pool() -> HostPool:
    pool = HostPool(3)
    atexit.register(pool.close)
    return pool


@cache
def _codes() -> LoadedCodes[LoadedProgram]:
    return LoadedCodes(LoadedProgram)


def run_on_host(program: NestProgram, values: Mapping[int, int], memory: bytearray) -> Mapping[int, int] | None:
    made = make_plan(program, compile_for_host, _codes().known())
    plan = _codes().ready(made)
    assert plan is not None, "this thread alone makes room"
    inputs = {local: values[local] for local, _ in made.program.arguments.inputs}
    anchor = (ctypes.c_char * len(memory)).from_buffer(memory)
    run = _pool().run(plan, ctypes.addressof(anchor), inputs, Deadline())
    return run.results if run.outcome is HostOutcome.COMPLETED else None


PIPELINE = Pipeline(build_nest, lambda nest, memory_bytes: with_sizes(plan(nest, memory_bytes)), {"host": run_on_host})
"""That of the package."""


@dataclass
class Judgement:
    """What became of the regions of a program.

    Attributes:
        declined: reasons, and how often.
        nests: how many were made and are right.
        programs: how many of them became programs that are right.
        codes: how often code of a program was run, and was right.
        wrong: what is wrong, with the part of which it is.
    """

    declined: dict[str, int] = field(default_factory=dict)
    nests: int = 0
    programs: int = 0
    codes: int = 0
    wrong: list[str] = field(default_factory=list)

    def decline(self, part: str, declined: Declined | DeclinedLoop) -> None:
        self.count(f"{part}: {declined.reason.name}")

    def count(self, reason: str) -> None:
        self.declined[reason] = self.declined.get(reason, 0) + 1

    def add(self, other: Judgement) -> None:
        for reason, count in other.declined.items():
            self.declined[reason] = self.declined.get(reason, 0) + count
        self.nests += other.nests
        self.programs += other.programs
        self.codes += other.codes
        self.wrong += other.wrong

    def reasons(self) -> set[str]:
        """Return the names of the reasons, whichever part has declined."""
        return {key.partition(": ")[2] for key in self.declined}

    def blame(self, part: str, message: object) -> None:
        self.wrong.append(f"{part}: {message}")


Outcome = tuple[dict[int, int], Trace, bytearray]
"""A nest's results, what it did, and the memory after it."""


class Judge:
    """Runs a function of a module and judges what a pipeline makes of its regions."""

    def __init__(self, pipeline: Pipeline, wasm: bytes, memory: bytes) -> None:
        self.pipeline, self.wasm, self.memory = pipeline, wasm, memory
        self.module = decode(wasm)
        self._codes: dict[LoopRegion, RegionCode] = {}
        found = find_regions(self.module)
        self.regions = {
            (region.function, region.start, region.end + 1): region
            for region in found
            if isinstance(region, LoopRegion)
        }
        self.declined = [loop for loop in found if isinstance(loop, DeclinedLoop)]

    def judge(self, name: str, arguments: list[int], seed: int = 0) -> Judgement:
        """Judge a call of an export, given bits."""
        made = Judgement()
        plain = self._interpreter()
        index = plain.index_of(name)
        for loop in self.declined:
            if loop.function == index:
                made.decline("region", loop)
        expected = self._call(plain, name, arguments)
        for part, visits in plain.visits.items():
            for visit in visits:
                self._visit(made, self.regions[part], visit, seed)
        if made.nests and not made.wrong:
            replaced = self._interpreter()
            for part in self.regions:
                replaced.replacements[part] = self._replacement(part)
            found = self._call(replaced, name, arguments)
            if (found, replaced.memory) != (expected, plain.memory):
                made.blame("liveness", f"the function returns {found}, not {expected}, or leaves another memory")
        return made

    def signature(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the types of an export's parameters and results."""
        return self._interpreter().signature(name)

    def code_of(self, name: str) -> bytes:
        """Return the code of all functions if an export's calls another, else that of the export."""
        bodies = self.module.bodies
        body = bodies[self._interpreter().index_of(name) - len(self.module.imported("func"))]
        calls = any(item[0] in {"call", "call_indirect"} for item in body.instructions())
        return b"".join(each.raw for each in bodies) if calls else body.raw

    def _interpreter(self) -> Interpreter:
        interpreter = Interpreter(self.wasm, tuple(self.regions))
        interpreter.memory[:] = self.memory
        return interpreter

    def _call(self, interpreter: Interpreter, name: str, arguments: list[int]) -> list[int] | str:
        try:
            return interpreter.call_export(name, *arguments)
        except Trapped:
            return "trap"

    def _nest(self, region: LoopRegion, locals_: list[int], globals_: list[int]) -> Nest:
        integers = {local: locals_[local] for local, type_ in region.inputs if type_[0] == "i"}
        if region not in self._codes:
            self._codes[region] = read_region(self.module, region)
        return self.pipeline.nest(self._codes[region], integers, {at: globals_[at] for at, _ in region.globals})

    def _visit(self, made: Judgement, region: LoopRegion, visit: Visit, seed: int) -> None:
        try:
            nest = self._nest(region, visit.locals_before, visit.globals_before)
        except Declined as declined:
            made.decline("nest", declined)
            return
        found = faults(nest)
        if found:
            made.blame("nest", found)
            return
        values = {local: visit.locals_before[local] for local, _ in region.inputs}
        memory = bytearray(visit.memory_before)
        try:
            results, trace = run_nest(nest, values, memory, MAX_STEPS)
        except StepsExhausted:  # an empty loop may be long
            made.count("nest: not judged")
            return
        except Trapped as trapped:
            if visit.left_at is not None:
                made.blame("nest", f"it traps: {trapped}")
            self._refuse(made, nest, len(memory))
            return
        except UndefinedCell as undefined:
            made.blame("nest", f"it uses {undefined} before it is set")
            return
        wrong = _differences(region, visit, results, memory)
        if wrong:
            made.blame("nest", wrong)
            return
        made.nests += 1
        self._program(made, nest, visit, values, (results, trace, memory), seed)

    def _refuse(self, made: Judgement, nest: Nest, memory_bytes: int) -> None:
        """See that a nest that traps is refused."""
        try:
            self.pipeline.program(nest, memory_bytes)
        except Declined as declined:
            made.decline("program", declined)
        else:
            made.blame("program", "it was made of a nest that traps")

    def _program(
        self,
        made: Judgement,
        nest: Nest,
        visit: Visit,
        values: dict[int, int],
        expected: Outcome,
        seed: int,
    ) -> None:
        results, trace, memory_after = expected  # where a program makes a NaN, its code declines or is right
        try:
            program = self.pipeline.program(nest, len(visit.memory_before))
        except Declined as declined:
            made.decline("program", declined)
            return
        if program.nest is not nest:
            memory = bytearray(visit.memory_before)
            found, trace = run_nest(program.nest, values, memory)
            is_same = trace.has_nan or (found == results and memory == memory_after)
            if faults(program.nest) or not is_same:
                made.blame("rewriting", f"{faults(program.nest)}, locals {found}, not {results}, or another memory")
                return
        memory = bytearray(visit.memory_before)
        try:
            found = run_program(program, values, memory, trace, seed)
        except (Violation, Trapped) as violation:
            made.blame("program", violation)
            return
        if not trace.has_nan and (found != results or memory != memory_after):
            made.blame("program", f"locals {found}, not {results}, or another memory")
            return
        made.programs += 1
        for name, code in self.pipeline.codes.items():
            self._code(made, (name, code), program, visit, values, (results, trace, memory_after))

    def _code(
        self,
        made: Judgement,
        named: tuple[str, Code],
        program: NestProgram,
        visit: Visit,
        values: dict[int, int],
        expected: Outcome,
    ) -> None:
        (name, code), (results, trace, memory_after) = named, expected
        memory = bytearray(visit.memory_before)
        try:
            found = code(program, values, memory)
        except Declined as declined:
            made.decline(name, declined)
            return
        if found is None:
            made.count(f"{name}: {DeclineReason.NOT_A_NUMBER.name}")
            if memory != visit.memory_before:
                made.blame(name, "memory has changed, though a NaN was made")
            elif not trace.has_nan:
                made.blame(name, "there is no NaN")
        elif dict(found) != results:
            made.blame(name, f"locals are {found}, not {results}")
        elif memory != memory_after:
            at = next(_unequal(memory, memory_after))
            made.blame(name, f"byte {at} is {memory[at]:#x}, not {memory_after[at]:#x}")
        else:
            made.codes += 1

    def _replacement(self, part: Part) -> Callable[[Interpreter, list[int]], bool]:
        region = self.regions[part]
        code = self.module.bodies[region.function - len(self.module.imported("func"))].instructions()
        written = {item[1] for item in code[part[1] : part[2]] if item[0] in {"local.set", "local.tee"}}

        def replace(interpreter: Interpreter, locals_: list[int]) -> bool:
            memory = bytearray(interpreter.memory)
            try:
                nest = self._nest(region, locals_, interpreter.globals)
                values = {local: locals_[local] for local, _ in region.inputs}
                results, _ = run_nest(nest, values, memory, MAX_STEPS)
            except (Declined, Trapped, StepsExhausted):
                return False
            interpreter.memory[:] = memory
            outputs = {local for local, _ in region.outputs}
            for local in written - outputs:
                locals_[local] ^= 0x2A  # nothing may depend on it
            for local in outputs:
                locals_[local] = results.get(local, locals_[local])
            return True

        return replace


def _differences(region: LoopRegion, visit: Visit, results: Mapping[int, int], memory: bytearray) -> list[str]:
    if visit.left_at is None:
        return ["it does not trap, and the code does"]
    if visit.left_at != visit.part[2]:
        return [f"the code goes on at {visit.left_at}, not behind the region"]
    found = []
    for local, _ in region.outputs:
        value = results.get(local, visit.locals_before[local])
        if value != visit.locals_after[local]:
            found.append(f"local {local} is {value:#x}, not {visit.locals_after[local]:#x}")
    if memory != visit.memory_after:
        at = next(_unequal(memory, visit.memory_after))
        found.append(f"byte {at} is {memory[at]:#x}, not {visit.memory_after[at]:#x}")
    return found


def _unequal(one: bytes | bytearray, other: bytes | bytearray) -> Iterator[int]:
    return (at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


def judge_functions(pipeline: Pipeline, seed: int, count: int) -> Iterator[tuple[str, Judgement]]:
    """Yield each random function of a seed as C, with what is wrong if anything is, and what became of two calls."""
    level = LEVELS[seed % len(LEVELS)]
    texts = functions(seed, count)
    wasm = compile_c(head() + "".join(texts), level)
    judge = Judge(pipeline, wasm, memory_after_init(wasm))
    for number, text in enumerate(texts):
        name, total, call = f"f{number}", Judgement(), ""
        for chosen in range(2):
            given = arguments((seed * count + number) * 2 + chosen)
            judgement = judge.judge(name, as_bits(judge.signature(name)[0], given), seed=chosen)
            total.add(judgement)
            if judgement.wrong:
                call = f"// run: {name}{given} at {level}\n// wrong: {judgement.wrong}\n"
                break
        yield f"{head()}{text}{call}", total


def wrong_functions(pipeline: Pipeline, seed: int, count: int) -> Iterator[str]:
    """Yield the text of each random function of a seed that is offloaded wrong, and what is wrong, as C."""
    return (text for text, judgement in judge_functions(pipeline, seed, count) if judgement.wrong)


def judged_program(source: str, name: str, level: str, *arguments: float) -> NestProgram | None:
    """Return the program of a function of a C text, which is run and judged; None if it has none."""
    made: list[NestProgram] = []

    def planned(nest: Nest, memory_bytes: int) -> NestProgram:
        made.append(plan(nest, memory_bytes))
        return made[-1]

    wasm = compile_c(source, level)
    judge = Judge(Pipeline(PIPELINE.nest, planned, PIPELINE.codes), wasm, memory_after_init(wasm))
    judgement = judge.judge(name, as_bits(judge.signature(name)[0], arguments))
    assert judgement.wrong == []
    return made[0] if made else None
