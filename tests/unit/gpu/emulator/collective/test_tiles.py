import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.lane_memory import FlatWarpMemory
from tensorwasm.errors import KernelFault, MalformedPtx
from tensorwasm.gpu.emulator.collective import compile_warp_op
from tensorwasm.ptx.model import Address, Instruction, Name, Vector


def compile_tiles(opcode, count, *, transposed, space="shared"):
    modifiers = ("sync", "aligned", "m8n8", f"x{count}", *(["trans"] if transposed else []), space, "b16")
    registers, address = Vector(tuple(Name(f"%r{i}") for i in range(count))), Address(Name("%rd1"))
    operands = (registers, address) if opcode == "ldmatrix" else (address, registers)
    return compile_warp_op(Instruction(opcode, modifiers, operands))


def scatter_rows(rng, warps):
    """Give every lane a row of 16 bytes of its own."""
    return (rng.permutation(warps * 32).reshape(warps, 32) * 16 + 256).astype(np.uint64)


def expected_register(memory, pointers, lane, matrix, *, transposed):
    """Return what a lane gets of one matrix, as the ISA numbers rows and columns."""
    halves = []
    for element in range(2):
        row, column = lane // 4, lane % 4 * 2 + element
        if transposed:
            row, column = column, row
        start = int(pointers[8 * matrix + row]) + 2 * column
        halves.append(int.from_bytes(memory.spaces["shared"][start : start + 2].tobytes(), "little"))
    return halves[0] | halves[1] << 16


@settings(max_examples=20, deadline=None)
@given(count=st.sampled_from([1, 2, 4]), transposed=st.booleans(), seed=st.integers(0, 2**32))
def test_loading_hands_each_lane_its_elements(count, transposed, seed):
    rng, memory = np.random.default_rng(seed), FlatWarpMemory()
    memory.spaces["shared"][:] = rng.integers(0, 256, len(memory.spaces["shared"]), np.uint8)
    pointers = scatter_rows(rng, 2)
    registers = compile_tiles("ldmatrix", count, transposed=transposed).run(memory, pointers)
    assert len(registers) == count
    for warp, lane, matrix in np.ndindex(2, 32, count):
        wanted = expected_register(memory, pointers[warp], lane, matrix, transposed=transposed)
        assert int(registers[matrix][warp, lane]) == wanted


@settings(max_examples=20, deadline=None)
@given(count=st.sampled_from([1, 2, 4]), transposed=st.booleans(), seed=st.integers(0, 2**32))
def test_storing_undoes_loading(count, transposed, seed):
    rng, memory = np.random.default_rng(seed), FlatWarpMemory()
    registers = [rng.integers(0, 2**32, (2, 32), np.uint32) for _ in range(count)]
    pointers = scatter_rows(rng, 2)
    assert compile_tiles("stmatrix", count, transposed=transposed).run(memory, pointers, *registers) is None
    loaded = compile_tiles("ldmatrix", count, transposed=transposed).run(memory, pointers)
    for before, after in zip(registers, loaded, strict=True):
        np.testing.assert_array_equal(before, after)


def test_lanes_beyond_the_rows_need_no_address():
    pointers = np.full((1, 32), (1 << 64) - 1, np.uint64)
    pointers[0, :8] = np.arange(8) * 16
    (register,) = compile_tiles("ldmatrix", 1, transposed=False).run(FlatWarpMemory(), pointers)
    assert not register.any()


def test_a_crooked_row_faults():
    pointers = np.arange(0, 512, 16, dtype=np.uint64)[None].copy()
    pointers[0, 3] += 8
    with pytest.raises(KernelFault, match=r"lane 3: .* not aligned to 16"):
        compile_tiles("ldmatrix", 1, transposed=False).run(FlatWarpMemory(), pointers)


def test_movmatrix_transposes():
    move = compile_warp_op(
        Instruction("movmatrix", ("sync", "aligned", "m8n8", "trans", "b16"), (Name("%r1"), Name("%r2")))
    )
    elements = np.arange(64, dtype=np.uint16)
    register = elements.reshape(8, 4, 2)
    source = (register[..., 0].astype(np.uint32) | register[..., 1].astype(np.uint32) << 16).reshape(1, 32)
    (result,) = move.run(FlatWarpMemory(), source)
    halves = np.stack([result & 0xFFFF, result >> 16], axis=-1).reshape(8, 8)
    np.testing.assert_array_equal(halves, elements.reshape(8, 8).T)


def test_modifiers_may_come_in_the_order_that_older_tools_write():
    operands = (Vector((Name("%r1"), Name("%r2"))), Address(Name("%rd1")))
    assert compile_warp_op(Instruction("ldmatrix", ("sync", "aligned", "x2", "m8n8", "shared", "b16"), operands))


def test_a_register_where_an_address_belongs_is_malformed():
    operands = (Vector((Name("%r1"), Name("%r2"))), Name("%rd1"))
    with pytest.raises(MalformedPtx, match="operands"):
        compile_warp_op(Instruction("ldmatrix", ("sync", "aligned", "m8n8", "x2", "shared", "b16"), operands))
