"""What compilers write, and random programs, run checked: they give the same to the bit, and nothing is reported."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from cases import Buffer, cases
from strategies.straight_lines import LANES, RECORD, module, program, records
from tensorwasm import ptx
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.cuda.assembler import find_assembler
from tensorwasm.gpu.device.admission import admit
from tensorwasm.gpu.device.arguments import BufferOffset, Scalar
from tensorwasm.gpu.device.guarded_kernel import guard_kernel
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.ptx.checked import instrument
from tensorwasm.values import MIB, NEVER, LaunchConfig

FOLDER = Path(__file__).resolve().parents[3] / "bench" / "kernels"
PATHS = sorted(FOLDER.glob("c*/*.ptx"))
REFUSED = {"numba-say": 1, "nvcc-cluster": 2, "nvcc-messages": 1, "nvcc-pipeline": 2, "nvcc-recursion": 1}
REFUSED |= {"nvcc-texture": 1, "triton-matmul_sm90": 1}
"""Kernels that are not guarded, by their texts: see `test_guarded_corpus`."""
ORDERED = {"nvcc-bfs"}
"""Cases with a list whose order is that in which threads come to it."""
FAILING = ("DeviceRadixSortOnesweepKernel",)
"""Kernels on which releases 12.9 to 13.5 of ptxas fail for sm_90 once they call a function with an atomic operation:
"Register allocation failed with register count of '7'"."""
REGISTERS = 1 << 16
"""Registers that the threads of a block share."""
PROGRAMS = 40


@pytest.fixture(scope="module")
def devices():
    """Provide sessions' devices: guarded, and checked as well."""
    device = EmulatorDevice()
    if not device.windows.available:
        pytest.skip("this system has no windows of addresses")
    both = []
    for checked in (False, True):
        accounts = Accounts(MemoryLedger())
        accounts.register("ann", 256 * MIB, 64 * MIB)
        both.append(SharedDevice(device, accounts, Gate(4), guarded=True, checked=checked))
    yield both
    for shared in both:
        shared.close()
    device.close()


def run(shared, text, launches):
    """Launch kernels of a text, each with its arguments; return the bytes of all of their buffers."""
    found = []
    with shared.open_session("ann", memory_kind="staged") as session:
        for entry, config, arguments in launches:
            loaded, given, held = session.kernels.load(text.encode(), entry, NEVER), [], []
            params = ptx.signature(ptx.extract(ptx.parse_variants(text)[0], entry), entry).params
            for argument, param in zip(arguments, params, strict=True):
                if param.pointer and not isinstance(argument, Buffer):  # a null pointer that is not used
                    given.append(BufferOffset(session.buffers.allocate(16), 0))
                elif isinstance(argument, Buffer):
                    held.append((session.buffers.allocate(argument.array.nbytes), argument.array.nbytes))
                    session.buffers.write(held[-1][0], argument.array.tobytes(), NEVER)
                    given.append(BufferOffset(held[-1][0], 0))
                else:
                    given.append(Scalar(argument.tobytes()))
            session.kernels.launch(loaded, config, lambda given=given: given, None, NEVER)
            for handle, size_bytes in held:
                into = bytearray(size_bytes)
                session.buffers.read(handle, memoryview(into), NEVER)
                found.append(bytes(into))
                session.buffers.free(handle, NEVER)
            session.kernels.unload(loaded, NEVER)
    return found


@pytest.mark.parametrize(
    "case", [case for case in cases("small") if Path(case.path).stem not in REFUSED], ids=lambda case: case.name
)
def test_results_are_the_same_to_the_bit(devices, case):
    config = LaunchConfig(case.grid, case.block, case.shared_bytes)
    plain, checked = (run(shared, case.text(), [(case.entry, config, case.arguments())]) for shared in devices)
    if case.name in ORDERED:
        plain, checked = ([sorted(memoryview(each).cast("I")) for each in both] for both in (plain, checked))
    assert plain == checked


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_is_accepted_guarded_is_accepted_checked(path):
    refused = {"narrow": 0, "wide": 0}
    for variant in ptx.parse_variants(path.read_text(encoding="ascii")):
        for entry in variant.kernels():
            checked, _ = instrument(ptx.extract(variant, entry.name))
            for width in refused:
                try:
                    guard_kernel(checked, width=width)
                except UnsupportedPtx:
                    refused[width] += 1
    assert refused == dict.fromkeys(refused, REFUSED.get(path.stem, 0))


@pytest.fixture(scope="module")
def assembler():
    found = find_assembler("", os.environ)
    if found is None:
        pytest.skip("NO PTXAS: nothing compiles the checked kernels")
    return found


def compiled(assembler, module):
    """Return a guarded kernel for a GPU on which its variant may run, None if ptxas refuses it."""
    target = module.target[0]
    architecture = target if target in ("sm_90a", "sm_100") else "sm_90"
    try:
        made = assembler.compile_kernel(ptx.render(module), architecture, NEVER)
    except MalformedPtx:
        return None
    admit(made)
    return made


def most_threads(kernel):
    """Return how many threads a block of a kernel has at most."""
    bounds = [each.arguments for each in kernel.directives if each.name in ("maxntid", "reqntid")]
    return math.prod(map(int, bounds[0])) if bounds else 1024


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_ptxas_takes_a_checked_kernel_if_it_takes_a_guarded_one(assembler, path):
    for variant in ptx.parse_variants(path.read_text(encoding="ascii")):
        for entry in variant.kernels():
            extracted = ptx.extract(variant, entry.name)
            try:
                checked, _ = guard_kernel(instrument(extracted)[0])
            except UnsupportedPtx:
                assert path.stem in REFUSED
                continue
            found = compiled(assembler, checked)
            if found is not None:
                assert found.registers * most_threads(entry) <= REGISTERS
            elif not any(name in entry.name for name in FAILING):
                assert compiled(assembler, guard_kernel(extracted)[0]) is None


def is_guarded(text, entry):
    try:
        guard_kernel(ptx.extract(ptx.parse(text), entry))
    except UnsupportedPtx:
        return False
    return True


def test_random_programs_are_not_reported_and_answer_the_same(devices):
    programs = [program(at) for at in range(PROGRAMS)]
    programs = [one for one in programs if is_guarded(module([one]), f"p{one.number}")]
    assert len(programs) >= PROGRAMS // 4
    config, launches = LaunchConfig((1, 1, 1), (LANES, 1, 1)), []
    for one in programs:
        given = records(one.number)
        launches.append((f"p{one.number}", config, [Buffer(given), Buffer(np.zeros(given.shape, RECORD))]))
    plain, checked = (run(shared, module(programs), launches) for shared in devices)
    assert plain == checked
    assert all(map(any, checked[1::2]))
