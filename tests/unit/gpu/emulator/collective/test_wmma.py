"""Whole products through memory: what a program can see of ``wmma``, whose fragments it cannot look into."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.lane_memory import FlatWarpMemory
from oracles import tensor as oracle
from tensorwasm.errors import KernelFault
from tensorwasm.gpu.emulator.collective import compile_warp_op, forms
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.ptx.model import Address, Instruction, Name, Vector

PRODUCTS = [name for name in forms() if name.startswith("wmma.mma")]
A, B, C, D = 0x1000, 0x11000, 0x21000, 0x31000


def instruction(mnemonic, *operands):
    opcode, *modifiers = mnemonic.split(".")
    return Instruction(opcode, tuple(modifiers), operands)


def vector(count):
    return Vector(tuple(Name(f"%r{i}") for i in range(count)))


def transfer(mnemonic, count, *, stride):
    address = Address(Name("%rd1"))
    operands = (address, vector(count)) if ".store." in mnemonic else (vector(count), address)
    return compile_warp_op(instruction(mnemonic, *operands, *([Name("%r9")] if stride else [])))


def registers(form, role):
    type_ = getattr(form, role)
    rows, columns = {"a": (form.m, form.k), "b": (form.k, form.n)}.get(role, (form.m, form.n))
    if role in "ab" and type_ == "f16":
        return 8
    return oracle.registers_per_lane(rows, columns, type_, form)


def write_matrix(memory, space, address, matrix, type_, layout, stride):
    """Store element bits as a C program would: ``stride`` elements from one row (or column) to the next."""
    lines = matrix if layout == "row" else [list(column) for column in zip(*matrix, strict=True)]
    width = oracle.BITS[type_]
    for index, line in enumerate(lines):
        bits = sum(value << (place * width) for place, value in enumerate(line))
        data = bits.to_bytes(len(line) * width // 8, "little")
        start = address + index * stride * width // 8
        memory.spaces[space][start : start + len(data)] = np.frombuffer(data, np.uint8)


def read_matrix(memory, space, address, shape, type_, layout, stride):
    rows, columns = shape
    size = oracle.BITS[type_] // 8
    places = itertools.product(range(rows), range(columns))
    offsets = [(i * stride + j if layout == "row" else j * stride + i) * size for i, j in places]
    data = memory.spaces[space].tobytes()
    flat = [int.from_bytes(data[address + o : address + o + size], "little") for o in offsets]
    return [flat[i * columns : (i + 1) * columns] for i in range(rows)]


def draw(rng, shape, type_):
    rows, columns = shape
    return [[draw_bits(rng, type_) for _ in range(columns)] for _ in range(rows)]


def draw_bits(rng, type_):
    value = float(rng.integers(-64, 65)) / 4
    return {
        "f64": lambda: int(np.float64(value + rng.random()).view(np.uint64)),
        "f32": lambda: int(np.float32(value).view(np.uint32)),
        "tf32": lambda: int(np.float32(value).view(np.uint32)),
        "bf16": lambda: int(np.float32(value).view(np.uint32)) >> 16,
        "f16": lambda: int(np.float16(value).view(np.uint16)),
    }.get(type_, lambda: int(rng.integers(0, 1 << oracle.BITS[type_])))()


def multiply(mnemonic, rng, space="global", store_layout="row", padding=0):
    """Run load, mma and store; return the stored matrix and the sources."""
    form, memory = oracle.read_form(mnemonic), FlatWarpMemory()
    shape = f"m{form.m}n{form.n}k{form.k}"
    sizes = {"a": (form.m, form.k), "b": (form.k, form.n), "c": (form.m, form.n)}
    layouts = {"a": form.layouts[0], "b": form.layouts[1], "c": store_layout}
    suffix = "" if space == "generic" else f".{space}"
    fragments, sources = [], []
    for role, address in (("a", A), ("b", B), ("c", C)):
        type_, layout = getattr(form, role), layouts[role]
        matrix = draw(rng, sizes[role], type_)
        stride = sizes[role][1 if layout == "row" else 0] + padding
        write_matrix(memory, space, address, matrix, type_, layout, stride)
        name = f"wmma.load.{role}.sync.aligned.{layout}.{shape}{suffix}.{type_}"
        op = transfer(name, registers(form, role), stride=bool(padding))
        bases, strides = np.full((1, 32), address, np.uint64), np.full((1, 32), stride, np.uint32)
        fragments += op.run(memory, bases, *([strides] if padding else []))
        sources.append(matrix)
    counts = [registers(form, role) for role in "dabc"]
    op = compile_warp_op(instruction(mnemonic, *map(vector, counts)))
    results = op.run(memory, *typed(op.sources, fragments))
    stride = sizes["c"][1 if store_layout == "row" else 0] + padding
    op = transfer(f"wmma.store.d.sync.aligned.{store_layout}.{shape}{suffix}.{form.d}", counts[0], stride=bool(padding))
    strides = [np.full((1, 32), stride, np.uint32)] if padding else []
    op.run(memory, np.full((1, 32), D, np.uint64), *typed(op.sources[1:], results), *strides)
    return read_matrix(memory, space, D, sizes["c"], form.d, store_layout, stride), sources


def typed(types, registers):
    """View raw registers in the types that an op declares."""
    return [register.view(DTYPES[type_]) for type_, register in zip(types, registers, strict=False)]


def expect(form, sources):
    a, b, c = (values(matrix, getattr(form, role)) for matrix, role in zip(sources, "abc", strict=True))
    finish = {
        "s32": oracle.saturate if "satfinite" in form.flags else oracle.wrap,
        "f64": float,
        "f32": lambda x: oracle.round_to(x, "f32"),
        "f16": lambda x: oracle.round_to(x, "f16"),
    }[form.d]
    return [[finish(x) for x in row] for row in oracle.multiply(a, b, c, form.rule)]


def values(matrix, type_):
    return [[oracle.decode(bits, type_) for bits in row] for row in matrix]


@pytest.mark.parametrize("mnemonic", [n for n in PRODUCTS if not {"rz", "rm", "rp"} & set(n.split("."))])
def test_every_product_through_memory(mnemonic):
    form = oracle.read_form(mnemonic)
    result, sources = multiply(mnemonic, np.random.default_rng(len(mnemonic)))
    assert values(result, form.d) == expect(form, sources)


@settings(max_examples=40, deadline=None)
@given(
    mnemonic=st.sampled_from([n for n in PRODUCTS if not {"rz", "rm", "rp"} & set(n.split("."))]),
    space=st.sampled_from(["global", "shared", "generic"]),
    store_layout=st.sampled_from(["row", "col"]),
    padding=st.sampled_from([0, 128, 256]),
    seed=st.integers(0, 2**32),
)
def test_layouts_strides_and_spaces(mnemonic, space, store_layout, padding, seed):
    form = oracle.read_form(mnemonic)
    result, sources = multiply(mnemonic, np.random.default_rng(seed), space, store_layout, padding)
    assert values(result, form.d) == expect(form, sources)


def test_a_stored_accumulator_is_what_was_loaded():
    memory = FlatWarpMemory()
    load = transfer("wmma.load.c.sync.aligned.col.m16n16k16.global.f32", 8, stride=True)
    store = transfer("wmma.store.d.sync.aligned.row.m16n16k16.global.f32", 8, stride=True)
    memory.spaces["global"][A : A + 1024] = np.random.default_rng(0).integers(0, 256, 1024, np.uint8)
    fragment = load.run(memory, np.full((1, 32), A, np.uint64), np.full((1, 32), 16, np.uint32))
    store.run(memory, np.full((1, 32), D, np.uint64), *fragment, np.full((1, 32), 16, np.uint32))
    matrices = [memory.spaces["global"][start : start + 1024].view(np.uint32).reshape(16, 16) for start in (A, D)]
    np.testing.assert_array_equal(matrices[0].T, matrices[1])


def test_elementwise_work_on_a_fragment_reaches_every_element():
    """What ``fragment.x[i] *= 2`` does, on f16 multiplicands that the registers repeat."""
    mnemonic = "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32"
    memory = FlatWarpMemory()
    ones = np.full(256, 1, np.float16)
    memory.spaces["global"][A : A + 512] = ones.view(np.uint8)
    load = transfer("wmma.load.a.sync.aligned.row.m16n16k16.global.f16", 8, stride=False)
    fragment = load.run(memory, np.full((1, 32), A, np.uint64))
    doubled = [(register.view(np.float16) * np.float16(2)).view(np.uint32) for register in fragment]
    op = compile_warp_op(instruction(mnemonic, *map(vector, (8, 8, 8, 8))))
    result = op.run(memory, *doubled, *fragment, *[np.zeros((1, 32), np.uint32)] * 8)
    assert all((register.view(np.float32) == 32).all() for register in result)


@pytest.mark.parametrize(
    ("bases", "strides", "reason"),
    [
        (np.arange(32, dtype=np.uint64)[None] * 32, np.full((1, 32), 16, np.uint32), "disagree"),
        (np.full((1, 32), A, np.uint64), np.arange(32, dtype=np.uint32)[None] * 8, "disagree"),
        (np.full((1, 32), A + 8, np.uint64), np.full((1, 32), 16, np.uint32), "aligned to 16 bytes"),
        (np.full((1, 32), A, np.uint64), np.full((1, 32), 12, np.uint32), "aligned to 16 bytes"),
    ],
)
def test_undefined_addresses_fault(bases, strides, reason):
    op = transfer("wmma.load.a.sync.aligned.row.m16n16k16.global.f16", 8, stride=True)
    with pytest.raises(KernelFault, match=reason):
        op.run(FlatWarpMemory(), bases, strides)
