"""The benchmark ``emulator``: how fast it loads and executes real kernels; results are verified."""

from __future__ import annotations

import random
import re
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

from tensorwasm.bench.figures import Figure, Report, measure, sampled, time_once
from tensorwasm.bench.harness import read_example
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


def measure_emulator(_choice: str = "emulator") -> Report:
    """Measure real kernels and the loading of PTX on the emulator, whatever device is chosen."""
    with closing(open_device("emulator")[0]) as device:
        with Session(device) as session:
            figures = _kernels(session)
        return Report("emulator", device.info.name, (*figures, *_load(device)))


def _kernels(session: Session) -> tuple[Figure, ...]:
    """Measure kernels on small integers, for which any order of summation gives the same f32."""
    draw = random.Random(1)  # noqa: S311 - inputs of a benchmark, the same in every run
    counts = (ADDED, ADDED, EDGE * EDGE, EDGE * EDGE)
    a, b, m, n = (array("f", (draw.randrange(-8, 9) for _ in range(count))) for count in counts)
    add = LaunchConfig((-(-ADDED // 256), 1, 1), (256, 1, 1))
    product = LaunchConfig((EDGE // 16, EDGE // 16, 1), (16, 16, 1))

    def dot(index: int) -> float:
        row, column = divmod(index, EDGE)
        return sum(m[row * EDGE + k] * n[k * EDGE + column] for k in range(EDGE))

    added = _execute(session, "vector_add", add, (a, b), ADDED, (ADDED,), lambda index: a[index] + b[index])
    multiplied = _execute(session, "matmul", product, (m, n), EDGE * EDGE, (EDGE,) * 3, dot)
    return (
        sampled("vector_add, 1,000,000 f32", "s", added, bar=1.0),
        sampled("tiled matmul, 128x128x128", "s", multiplied, bar=5.0),
    )


def _execute(
    session: Session,
    name: str,
    config: LaunchConfig,
    inputs: Sequence[array[float]],
    outputs: int,
    sizes: Sequence[int],
    expected: Callable[[int], float],
) -> tuple[float, ...]:
    """Return the seconds of launches of an example's kernel.

    Its arguments are a buffer for each f32 array, one for so many elements of the f32 result, and u32 sizes.
    ``expected`` maps an element's index to the exact result.
    """
    kernel = session.kernels.load(read_example(f"{name}/{name}.sm_80.ptx"), name, Deadline())
    handles = [session.buffers.allocate(4 * count) for count in (*map(len, inputs), outputs)]
    for handle, values in zip(handles, inputs, strict=False):
        session.buffers.write(handle, values.tobytes(), Deadline())
    numbers = [Scalar(size.to_bytes(4, "little")) for size in sizes]
    arguments: list[Argument] = [*(BufferOffset(handle, 0) for handle in handles), *numbers]
    taken = measure(lambda: session.kernels.launch(kernel, config, lambda: arguments, None, Deadline()), SAMPLES)
    got = array("f", bytes(4 * outputs))
    session.buffers.read(handles[-1], memoryview(got).cast("B"), Deadline())
    if any(got[index] != expected(index) for index in range(0, outputs, max(1, outputs // 4096))):
        raise InternalError(f"{name}: the emulator's result is wrong")
    for handle in handles:
        session.buffers.free(handle, Deadline())
    return taken


def _load(device: Device) -> Iterator[Figure]:
    """Yield processor time for a megabyte of PTX: to read it, and to make all of it, or one kernel, ready to run."""
    head, entry, kernel = read_example("matmul/matmul.sm_80.ptx").decode("ascii").partition(".visible .entry")
    copies = (re.sub(r"\bmatmul", f"matmul{index}", kernel) for index in range(64))
    text = head + "\n".join(entry + copy for copy in copies)  # many kernels as a compiler writes them
    one = extract(parse(text), "matmul0")

    def load(module: Module) -> None:
        device.unload(device.load(module, Deadline()))

    subjects: dict[str, Callable[[], object]] = {
        "PTX parsed, per MB": lambda: parse(text),
        "PTX parsed and all kernels loaded, per MB": lambda: load(parse(text)),
        "one kernel of a parsed module loaded, per MB of the module": lambda: load(one),
    }
    for name, work in subjects.items():
        yield sampled(name, "s", [time_once(work, time.process_time) / (len(text) / 1e6) for _ in range(SAMPLES)])
