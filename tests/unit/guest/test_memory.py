from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorwasm.errors import InvalidPointer
from tensorwasm.guest.imports.host_function import HostFunction

SIZE = 2 << 16
EDGES = [0, 1, SIZE - 1, SIZE, SIZE + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64]
offsets = st.sampled_from(EDGES + [-edge for edge in EDGES]) | st.integers(0, SIZE)


@pytest.fixture
def memory(spawn):
    return spawn('(module (memory (export "memory") 2))').memory


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(offset=offsets, length=offsets)
@pytest.mark.rule("1-regions")
def test_a_region_is_readable_exactly_when_it_lies_inside(memory, offset, length):
    inside = offset >= 0 and length >= 0 and offset + length <= SIZE
    for access in (memory.read, memory.view):
        if inside:
            assert len(access(offset, length)) == length
        else:
            with pytest.raises(InvalidPointer):
                access(offset, length)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(offset=st.integers(0, SIZE), data=st.binary(max_size=100))
def test_written_values_are_read_back(memory, offset, data):
    if offset + len(data) > SIZE:
        with pytest.raises(InvalidPointer):
            memory.write(offset, data)
        return
    memory.write(offset, memoryview(data))
    assert memory.read(offset, len(data)) == data
    assert bytes(memory.view(offset, len(data))) == data


def test_a_view_writes_through_and_other_layouts_are_copied(memory):
    memory.view(8, 4)[:] = b"abcd"
    assert memory.read(8, 4) == b"abcd"
    memory.write(8, memoryview(b"\1\0\2\0").cast("H"))
    assert memory.read(8, 4) == b"\1\0\2\0"


def test_the_address_stays_when_the_memory_grows(spawn):
    seen = []

    def body(call) -> None:
        seen.append((call.memory.address, call.memory.size_bytes))

    instance = spawn(
        """(module (import "h" "f" (func $f)) (memory (export "memory") 1)
             (func (export "go") (call $f) (drop (memory.grow (i32.const 2000))) (call $f)))""",
        HostFunction("h", "f", (), (), body),
    )
    instance.call("go")
    (before, small), (after, large) = seen
    assert before == after == instance.memory.address
    assert (small, large) == (1 << 16, 2001 << 16)
    instance.memory.write((2001 << 16) - 1, b"x")


def test_an_empty_memory_has_no_byte(spawn):
    memory = spawn('(module (memory (export "memory") 0))').memory
    assert memory.size_bytes == 0
    assert memory.read(0, 0) == b""
    with pytest.raises(InvalidPointer):
        memory.read(0, 1)
