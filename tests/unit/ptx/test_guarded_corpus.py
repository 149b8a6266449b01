"""What compilers write runs guarded, with the results that it has unguarded, to the bit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from cases import Buffer, cases
from fakes.emulation import Emulation
from oracles.guarding import GuardedText, guarded_text
from oracles.windows import OWN_AT, AddressWindow, races_allowed
from tensorwasm import ptx
from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.device.guarded_kernel import launch_parameter
from tensorwasm.values import NEVER, LaunchConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a window maps one file again and again")
FOLDER = Path(__file__).resolve().parents[3] / "bench" / "kernels"
MEMORY_BYTES = 8 << 20
DATA_AT = OWN_AT + MEMORY_BYTES - (1 << 20)
NEVER_NS = (1 << 64) - 1

REFUSED = {
    "numba-say": "generic addresses of const memory",
    "nvcc-cluster": "shared::cluster|barriers in shared memory",
    "nvcc-messages": "the function vprintf",
    "nvcc-pipeline": "barriers in shared memory",
    "nvcc-recursion": "is recursive",
    "nvcc-texture": "textures",
    "triton-matmul_sm90": "fence.proxy.async",
}
"""Texts of which a kernel is refused, and why."""


def test_all_but_a_few_kernels_are_accepted():
    refused, accepted = {}, 0
    for path in sorted(FOLDER.glob("c*/*.ptx")):
        for module in ptx.parse_variants(path.read_text(encoding="ascii")):
            for kernel in module.kernels():
                try:
                    guarded_text(ptx.render(ptx.extract(module, kernel.name)), kernel.name)
                    accepted += 1
                except UnsupportedPtx as error:
                    refused.setdefault(path.stem, []).append(str(error))
    assert refused.keys() == REFUSED.keys()
    for name, reasons in refused.items():
        assert all(any(word in reason for word in REFUSED[name].split("|")) for reason in reasons), (name, reasons)
    assert accepted >= 187


@pytest.fixture(scope="module")
def memory():
    emulation = Emulation(memory_bytes=1 << 28)
    window = AddressWindow(emulation, MEMORY_BYTES)
    yield emulation, window
    window.close()
    emulation.device.close()


def run(memory, case, text):
    """Launch a case in the window; return the bytes of the buffers that it writes."""
    emulation, window = memory
    window.clear()
    values, buffers, at = [], [], window.own.address
    for argument in case.arguments():
        if isinstance(argument, Buffer):
            data = np.ascontiguousarray(argument.array).reshape(-1).view(np.uint8)
            place = window.bytes_of(window.own)[at - window.own.address :][: data.size]
            place[:] = data
            buffers += [place] * argument.written
            values.append(at.to_bytes(8, "little"))
            at = -(-(at + data.size) // 256) * 256
        else:
            values.append(argument.tobytes())
    assert at - window.base < DATA_AT
    shared_bytes = case.shared_bytes
    if isinstance(text, GuardedText):
        shared_bytes = text.shared_bytes(case.shared_bytes)
        image = text.image(window.base + DATA_AT)
        window.bytes_of(window.own)[DATA_AT - OWN_AT :][: len(image)] = np.frombuffer(image, np.uint8)
        none = emulation.buffer([0] * 3)
        words = window.base, DATA_AT, NEVER_NS, none.address, none.address + 8
        values.append(launch_parameter(*words, shared_bytes, case.shared_bytes))
        text = text.text
        regions = [window.region, none]
    else:
        regions = [window.region]
    loaded = emulation.device.load(ptx.parse_variants(text)[0], NEVER)
    with races_allowed():
        config = LaunchConfig(case.grid, case.block, shared_bytes)
        emulation.device.launch(loaded, case.entry, config, values, regions, emulation.stream, NEVER)
        emulation.device.synchronize(emulation.stream, NEVER)
    emulation.device.unload(loaded)
    return [each.copy() for each in buffers]


@pytest.mark.parametrize(
    "case", [case for case in cases("small") if Path(case.path).stem not in REFUSED], ids=lambda case: case.name
)
def test_guarded_results_are_the_same_to_the_bit(memory, case):
    guarded = guarded_text(case.text(), case.entry)
    assert guarded.takes(case.block)
    for plain, kept in zip(run(memory, case, case.text()), run(memory, case, guarded), strict=True):
        assert (plain == kept).all()
