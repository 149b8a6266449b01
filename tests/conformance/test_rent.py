"""Memory of the kind ``auto`` is registered at the same launch whether host functions are compiled or Python's."""

from __future__ import annotations

import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance.puppet import PAGES, Puppet
from fakes.argv import encode_argv
from strategies.kernels import VECTOR_ADD
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.device.limits import PIN_PRICE_BYTES, STAGE_SLOT_BYTES
from tensorwasm.gpu.staging import Placement
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.values import WASM_PAGE_BYTES

FIRST = 2048
LAST = PAGES * WASM_PAGE_BYTES
KIB = 1 << 10

places = st.integers(FIRST // 16, (LAST - 100 * KIB) // 16).map(lambda n: 16 * n)
windows = st.builds(WindowArg, places, st.integers(1, 25 * KIB).map(lambda n: 4 * n))
steps = st.tuples(st.integers(0, 2), st.tuples(windows, windows, windows), st.integers(1, 9))
WIDE = WindowArg(FIRST, 80 * KIB), WindowArg(100 * KIB, 80 * KIB), WindowArg(200 * KIB, 80 * KIB)
EXACT = WindowArg(128 * KIB, 64 * KIB), WindowArg(192 * KIB, 64 * KIB), WindowArg(256 * KIB, 64 * KIB)
LEAST = WindowArg(FIRST, 4), WindowArg(FIRST, 4), WindowArg(FIRST, 4)


class Judge:
    """Says from which launch on the memory is registered."""

    def __init__(self) -> None:
        self.staged = 0
        self.bought = False

    def buys(self, asked, size):
        used = Placement([HostWindow(window.offset, window.length_bytes) for window in asked], 0).used_bytes
        rents = used <= STAGE_SLOT_BYTES and self.staged + used <= size // 2 + PIN_PRICE_BYTES
        self.bought = self.bought or not rents
        self.staged += 0 if self.bought else used
        return self.bought


@settings(max_examples=12, deadline=None)
@given(st.lists(steps, min_size=1, max_size=4))
@example([(0, WIDE, 6), (2, LEAST, 3), (0, WIDE, 4)])
@example([(0, EXACT, 8), (0, LEAST, 1), (1, LEAST, 1)])
@example(
    [
        (0, (WindowArg(FIRST, 84 * KIB), WindowArg(100 * KIB, 84 * KIB), WindowArg(200 * KIB, 89 * KIB)), 1),
        (0, LEAST, 1),
    ]
)
def test_compiled_code_and_python_register_at_the_same_launch(device, program):
    with Puppet(device, memory="auto") as python, Puppet(device, memory="auto", compiled=True) as compiled:
        judge, both = Judge(), (python, compiled)
        kernels = [puppet.load(VECTOR_ADD, b"vector_add") for puppet in both]
        for grown, asked, times in program:
            argv = encode_argv([*asked, NumberArg("u32", struct.pack("<I", 1))])
            for puppet in both:
                puppet.grow(grown)
                puppet.put(FIRST, bytes(range(256)) * ((LAST - FIRST) // 256))
            for _ in range(times):
                answers = [
                    puppet.start(kernel, argv, block=(1, 1, 1)) for puppet, kernel in zip(both, kernels, strict=True)
                ]
                bought = judge.buys(asked, python.size)
                assert answers == [0, 0], (python.error(), compiled.error())
                assert [puppet.session.statistics().pinned_bytes > 0 for puppet in both] == [bought, bought]
            assert python.get(0, python.size) == compiled.get(0, compiled.size)
        launched = sum(times for _, _, times in program)
        assert compiled.session.statistics().kernels_launched == launched
        by_python = launched - compiled.session.layout.launched
        assert by_python <= 3 * len(program), "Python decides anew when a memory has grown, and when it is bought"
