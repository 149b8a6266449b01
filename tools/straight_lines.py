"""Run random straight-line programs on a card and on the emulator, and compare every register to the bit.

``python tools/straight_lines.py --report FILE [--keep FILE]``. Modules are distributed over all processors. A program
that differs is run once more as ptxas assembles it without optimising (``-O0``). If card and emulator agree then, the
compiler's optimiser is the reason (docs/ptx-differences.md); if not, there is none. The report counts the programs and
has each that differs, reduced to the statements that matter. The exit code is 1 if a difference has no reason, or if
the time is up before all have run. ``--keep`` writes the card's answers to the first programs, those of ``-O0`` where
the optimiser is wrong; `tests/conformance/test_straight_lines.py` compares the emulator with them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np

from conformance.straight import answers, columns, differences
from oracles.straight import KEPT, MODULE, Kept, checksums, digest
from strategies.straight_lines import Program, module, program, records
from tensorwasm import settings
from tensorwasm.errors import DeviceLost
from tensorwasm.gpu.cuda.assembler import find_assembler
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.opening import open_device

SHRUNK_A_MODULE = 4
SHRINKING_S = 20.0
OPTIMISER = "ptxas optimises it wrongly: right with -O0"
"""The only reason that a difference may have."""
devices: list[Device] = []
"""The card and the emulator, in a process that compares."""


# ------------------------------------------------------------------------------- in a process that compares


@dataclass(frozen=True, slots=True)
class Compared:
    """One program on both devices.

    Attributes:
        registers: that differ, or the error of either device.
        checksums: one for each register after the card's run; none if it failed.
    """

    registers: tuple[str, ...]
    checksums: tuple[int, ...] = ()


def prepare(choice: str, ptxas: str) -> None:
    """Open the devices of a process; ``ptxas`` is the assembler of the first."""
    os.environ["TENSOR_WASM_PTXAS"] = ptxas
    devices[:] = [open_device(choice)[0], open_device("emulator")[0]]


def compare(given: Sequence[Program | int]) -> list[Compared]:
    """Run programs, some of them given by number, as one module on both devices.

    Raises:
        TensorWasmError: a kernel failed, and the device may be lost.
    """
    programs = [program(one) if isinstance(one, int) else one for one in given]
    card, emulated = (answers(device, programs) for device in devices)
    return [
        Compared(differences(left, right), () if isinstance(left, str) else tuple(checksums(columns(left))))
        for left, right in zip(card, emulated, strict=True)
    ]


# ------------------------------------------------------------------------------------------ in the main process

Comparison = Callable[[Sequence[Program | int]], list[Compared]]


class Comparer:
    """Compares in a process of its own, which is replaced when the GPU is lost."""

    def __init__(self, start: Callable[[], Executor]) -> None:
        self._start = start
        self._pool = start()

    def __call__(self, given: Sequence[Program | int]) -> list[Compared]:
        """Compare; a program that loses the GPU is found by halving the programs, and reported by its error.

        Raises:
            DeviceLost: the programs lost the GPU together, but not when they ran in two halves.
        """
        try:
            return self._pool.submit(compare, given).result()
        except (DeviceLost, BrokenProcessPool) as error:
            self.close()
            self._pool = self._start()
            if len(given) == 1:
                return [Compared((f"{type(error).__name__}: {error}", "answered"))]
            middle = len(given) // 2
            found = [*self(given[:middle]), *self(given[middle:])]
            if all(one.checksums for one in found):
                raise
            return found

    def close(self) -> None:
        """End the process once it is idle."""
        self._pool.shutdown(wait=False)


def process(choice: str, ptxas: str) -> Executor:
    """Start a process that compares."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare, (choice, ptxas))


@dataclass(frozen=True, slots=True)
class Difference:
    """A program on which card and emulator differ.

    Attributes:
        program: its number.
        registers: that differ, or the error of either device.
        reason: of the difference, empty if there is none.
        statements: of the program, reduced if there was time.
    """

    program: int
    registers: tuple[str, ...]
    reason: str
    statements: tuple[str, ...]


@dataclass(slots=True)
class Result:
    """The result of one module; ``checksums`` are the right ones of every program, if all are known."""

    numbers: range
    differences: list[Difference] = field(default_factory=list)
    checksums: list[tuple[int, ...]] = field(default_factory=list)


def judge(numbers: range, optimised: Comparison, plain: Comparison) -> Result:
    """Compare one module, and the programs that differ once more without the optimiser."""
    found = optimised(numbers)
    wrong = [at for at, one in enumerate(found) if one.registers]
    again = dict(zip(wrong, plain([numbers[at] for at in wrong]), strict=True)) if wrong else {}
    result = Result(numbers)
    for place, at in enumerate(wrong):
        one = program(numbers[at])
        less = shrink(one, optimised) if place < SHRUNK_A_MODULE else one
        agrees = not again[at].registers and (less is one or not plain([less])[0].registers)
        lines = tuple(line for statement in less.statements for line in statement)
        result.differences.append(Difference(one.number, found[at].registers, OPTIMISER if agrees else "", lines))
    if not any(one.registers for one in again.values()):
        result.checksums = [again.get(at, one).checksums for at, one in enumerate(found)]
    return result


def shrink(one: Program, optimised: Comparison) -> Program:
    """Remove statements while the program still differs: halves first, then quarters, down to single ones."""
    until = time.monotonic() + SHRINKING_S
    size = len(one.statements) // 2
    while size:
        at = 0
        while at < len(one.statements) and time.monotonic() < until:
            less = one.without(at, size)
            if optimised([less])[0].registers:
                one = less
            else:
                at += size
        size //= 2
    return one


def run(options: argparse.Namespace, ptxas: str, plain: str) -> Iterator[Result | str]:
    """Yield the result or the error of each module as it ends, until the time is up."""
    until = time.monotonic() + options.seconds
    starts = range(0, options.count, MODULE)
    own, made = threading.local(), []

    def begin() -> None:
        own.comparers = [Comparer(partial(process, options.device, assembler)) for assembler in (ptxas, plain)]
        made.extend(own.comparers)

    def work(start: int) -> Result:
        return judge(range(start, min(start + MODULE, options.count)), *own.comparers)

    pool = ThreadPoolExecutor(options.processes, initializer=begin)
    given: dict[Future[Result], int] = {pool.submit(work, start): start for start in starts}
    try:
        for done in as_completed(given, timeout=until - time.monotonic()):
            error = done.exception()
            if error is None:
                yield done.result()
            else:
                yield f"programs from {given[done]}: {''.join(traceback.format_exception_only(error)).strip()}"
    except TimeoutError:
        late = [start for one, start in given.items() if not one.done()]
        yield f"the time was up before {len(late)} modules had run: programs from {', '.join(map(str, late[:20]))}"
    pool.shutdown(wait=False, cancel_futures=True)
    for comparer in made:
        comparer.close()


def main() -> int:
    """Compare; return 0 if every program ran and every difference has a reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--keep", type=Path, help=f"file for the device's answers to the first {KEPT} programs")
    parser.add_argument("--count", type=int, default=100_000, help="programs")
    parser.add_argument("--device", default="cuda", help="the device that is compared with the emulator")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=510.0, help="how long modules are waited for")
    options = parser.parse_args()
    assembler = find_assembler(settings.current().ptxas, os.environ)
    if assembler is None:
        parser.error("ptxas is not installed")
    device, _ = open_device(options.device)
    name = f"{device.info.name}, driver {device.info.driver}" if device.info.driver else device.info.name
    device.close()
    start, results, errors = time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "ptxas")
        plain.write_text(f'#!/bin/sh\nexec "{assembler.path}" -O0 "$@"\n')
        plain.chmod(0o700)
        for outcome in run(options, assembler.path, str(plain)):
            show(outcome)
            (errors if isinstance(outcome, str) else results).append(outcome)
            if len(results) % 25 == 0:
                print(f"{len(results) * MODULE} programs in {time.monotonic() - start:.0f} s", flush=True)
    found = sorted((one for result in results for one in result.differences), key=lambda one: one.program)
    compared = sum(len(result.numbers) for result in results)
    unexplained = sum(not one.reason for one in found)
    report = {
        "device": name,
        "ptxas": ".".join(map(str, assembler.release)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "programs": compared,
        "seconds": round(time.monotonic() - start, 1),
        "without_reason": unexplained,
        "errors": errors,
        "differences": [asdict(one) for one in found],
    }
    options.report.write_text(json.dumps(report, indent=1) + "\n")
    if options.keep:
        keep(options.keep, name, results)
    print(
        f"{compared} programs in {report['seconds']} s: {len(found)} differ, {unexplained} without a reason", flush=True
    )
    return 0 if compared == options.count and not unexplained and not errors else 1


def show(outcome: Result | str) -> None:
    """Print an error, or the programs that differ."""
    if isinstance(outcome, str):
        print(outcome, flush=True)
        return
    for one in outcome.differences:
        print(f"program {one.program} differs in {', '.join(one.registers)}: {one.reason or 'no reason'}", flush=True)


def keep(path: Path, name: str, results: list[Result]) -> None:
    """Write the device's answers to the first programs, if all of them are right."""
    first = sorted((one for one in results if one.numbers.stop <= KEPT), key=lambda one: one.numbers.start)
    if sum(len(one.checksums) for one in first) != KEPT:
        print(f"nothing kept: not all of the first {KEPT} programs have right answers", flush=True)
        return
    texts = []
    for result in first:
        given = np.concatenate([records(number) for number in result.numbers])
        texts.append(digest(module([program(number) for number in result.numbers]), given))
    values = np.array([row for result in first for row in result.checksums], np.uint32)
    Kept(name, tuple(texts), values).write(path)


if __name__ == "__main__":
    sys.exit(main())
