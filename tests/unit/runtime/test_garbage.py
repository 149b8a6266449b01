"""A call with a device leaves nothing to the cyclic garbage collector, which processes that serve seldom run."""

from __future__ import annotations

import gc

import pytest

from fakes.napping import NAPPING
from tensorwasm import Runtime
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.values import MemoryKind

SOON_S = 60.0


@pytest.fixture
def garbage():
    """Return a function that returns what only the collector has found since the test began, of our types."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def find():
        gc.collect()
        return sorted({type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("tensorwasm")})

    yield find
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.fixture(scope="module")
def function():
    with Runtime("emulator") as runtime:
        function = runtime.load(NAPPING)
        for _ in range(2):  # makes what is made once
            function.invoke("copy", grants=("cuda",))
            function.submit("copy", grants=("cuda",)).result(SOON_S)
        yield function


@pytest.mark.parametrize("memory", ["staged", "pinned"])
def test_a_call_on_a_thread(function, garbage, memory: MemoryKind):
    for _ in range(3):
        function.invoke("copy", grants=("cuda",), memory_kind=memory)
    assert garbage() == []


@pytest.mark.parametrize("memory", ["staged", "pinned"])
@pytest.mark.skipif(not may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")
def test_a_call_as_a_fiber(function, garbage, memory: MemoryKind):
    for _ in range(3):
        function.submit("copy", grants=("cuda",), memory_kind=memory).result(SOON_S)
    assert garbage() == []
