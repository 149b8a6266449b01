"""How fast the emulator loads and executes real kernels; results are verified."""

from __future__ import annotations

import random
import re
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.bench.examples import read_example
from tensorwasm.bench.figures import Figure, Report, measure, summarise
from tensorwasm.errors import InternalError
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, Scalar
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.opening import open_device
from tensorwasm.gpu.session import Session
from tensorwasm.ptx.model import Module
from tensorwasm.ptx.parser import parse
from tensorwasm.ptx.reachability import extract
from tensorwasm.values import Deadline, LaunchConfig

SAMPLES: Final = 5
ADDED: Final = 1_000_000
EDGE: Final = 128
COPIES: Final = 64
"""Kernels in the text that is read and loaded."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel on given inputs.

    Attributes:
        name: of the figure.
        kernel: the example and entry.
        config: geometry.
        inputs: f32 arrays, one buffer each.
        outputs: elements of the f32 result, whose buffer follows the inputs.
        sizes: u32 arguments that follow the buffers.
        judge: element index to the exact f32 result.
        bar_s: seconds at most.
    """

    name: str
    kernel: str
    config: LaunchConfig
    inputs: tuple[array[float], ...]
    outputs: int
    sizes: tuple[int, ...]
    judge: Callable[[int], float]
    bar_s: float


def cases() -> tuple[Case, ...]:
    """Return the cases. Inputs are small integers, so that any order of summation gives the same f32."""
    draw = random.Random(1)  # noqa: S311 - inputs of a benchmark, the same in every run

    def fill(count: int) -> array[float]:
        return array("f", (draw.randrange(-8, 9) for _ in range(count)))

    a, b, m, n = fill(ADDED), fill(ADDED), fill(EDGE * EDGE), fill(EDGE * EDGE)
    add = LaunchConfig((-(-ADDED // 256), 1, 1), (256, 1, 1))
    product = LaunchConfig((EDGE // 16, EDGE // 16, 1), (16, 16, 1))

    def dot(index: int) -> float:
        row, column = divmod(index, EDGE)
        return sum(m[row * EDGE + k] * n[k * EDGE + column] for k in range(EDGE))

    return (
        Case("vector_add, 1,000,000 f32", "vector_add", add, (a, b), ADDED, (ADDED,), lambda i: a[i] + b[i], 1.0),
        Case("tiled matmul, 128x128x128", "matmul", product, (m, n), EDGE * EDGE, (EDGE,) * 3, dot, 5.0),
    )


def measure_emulator(_choice: str = "emulator") -> Report:
    """Measure every case on the emulator, whatever device is chosen."""
    device, _ = open_device("emulator")
    try:
        with Session(device) as session:
            figures = tuple(_measure(session, case) for case in cases())
        return Report("emulator", device.info.name, figures + _measure_loading(device))
    finally:
        device.close()


def many_kernels() -> str:
    """Return a module of `COPIES` kernels as a compiler writes them, each under a name of its own."""
    source = read_example("matmul/matmul.sm_80.ptx").decode("ascii")
    head, entry, kernel = source.partition(".visible .entry")
    copies = (re.sub(r"\bmatmul", f"matmul{index}", kernel) for index in range(COPIES))
    return head + "\n".join(entry + copy for copy in copies)


def _measure_loading(device: Device) -> tuple[Figure, ...]:
    """Measure processor time for a megabyte of PTX: to read it, and to make all of it, or one kernel, ready to run."""
    text = many_kernels()
    module = parse(text)
    one = extract(module, "matmul0")

    def load(what: Module) -> None:
        device.unload(device.load(what, Deadline()))

    works: dict[str, Callable[[], object]] = {
        "PTX parsed, per MB": lambda: parse(text),
        "PTX parsed and all kernels loaded, per MB": lambda: load(parse(text)),
        "one kernel of a parsed module loaded, per MB of the module": lambda: load(one),
    }
    return tuple(_per_megabyte(name, work, len(text) / 1e6) for name, work in works.items())


def _per_megabyte(name: str, work: Callable[[], object], megabytes: float) -> Figure:
    taken = []
    for _ in range(SAMPLES):
        start = time.process_time()
        work()
        taken.append((time.process_time() - start) / megabytes)
    value, spread, samples = summarise(taken)
    return Figure(name, "s", value, spread, samples)


def _measure(session: Session, case: Case) -> Figure:
    kernel = session.kernels.load(read_example(f"{case.kernel}/{case.kernel}.sm_80.ptx"), case.kernel, Deadline())
    handles = [session.buffers.allocate(4 * len(values)) for values in case.inputs] + [
        session.buffers.allocate(4 * case.outputs)
    ]
    for handle, values in zip(handles, case.inputs, strict=False):
        session.buffers.write(handle, values.tobytes(), Deadline())
    numbers = [Scalar(size.to_bytes(4, "little")) for size in case.sizes]
    arguments: Sequence[Argument] = [*(BufferOffset(handle, 0) for handle in handles), *numbers]
    taken = measure(lambda: session.kernels.launch(kernel, case.config, lambda: arguments, None, Deadline()), SAMPLES)
    got = array("f", bytes(4 * case.outputs))
    session.buffers.read(handles[-1], memoryview(got).cast("B"), Deadline())
    step = max(1, case.outputs // 4096)
    if any(got[index] != case.judge(index) for index in range(0, case.outputs, step)):
        raise InternalError(f"{case.name}: the emulator's result is wrong")
    for handle in handles:
        session.buffers.free(handle, Deadline())
    value, spread, samples = summarise(taken)
    return Figure(case.name, "s", value, spread, samples, bar=case.bar_s)
