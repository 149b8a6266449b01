"""Whole products through memory with wmma: load, multiply, store. What a fragment holds is the hardware's own business.

Source: PTX ISA 9.7.14.4.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from oracles import tensor
from strategies import matrices
from strategies.lanes import module
from tensorwasm.gpu.emulator.collective import forms

PRODUCTS = [name for name in forms() if name.startswith("wmma.mma")]
FRAGMENT = {"f64": "b64", "f32": "f32"}


def requirements(mnemonic: str) -> int:
    form = tensor.read_form(mnemonic)
    if form.a == "f16":
        return 70
    if form.a in {"s8", "u8"}:
        return 72
    return 75 if form.a in {"s4", "u4"} or form.rule == "xor" else 80


def shape_of(form: tensor.Form, role: str) -> tuple[int, int]:
    return {"a": (form.m, form.k), "b": (form.k, form.n)}.get(role, (form.m, form.n))


def registers_of(form: tensor.Form, role: str) -> int:
    type_ = getattr(form, role)
    if role in "ab" and type_ == "f16":
        return 8  # every element is held twice
    return tensor.registers_per_lane(*shape_of(form, role), type_, form)


def identifier(mnemonic: str) -> str:
    return mnemonic.replace(".", "_")


def product_entry(mnemonic: str, space: str = "global", store_layout: str = "row") -> str:
    """Return an entry that takes A, B, C, D and their four strides in elements."""
    form = tensor.read_form(mnemonic)
    shape = f"m{form.m}n{form.n}k{form.k}"
    fragments = {role: "{" + ", ".join(f"%{role}{i}" for i in range(registers_of(form, role))) + "}" for role in "abcd"}
    layouts = {"a": form.layouts[0], "b": form.layouts[1], "c": store_layout, "d": store_layout}
    suffix, convert = (".global", "cvta.to.global.u64") if space == "global" else ("", "mov.u64")
    lines = [
        f".reg .{FRAGMENT.get(getattr(form, role), 'b32')} %{role}<{registers_of(form, role)}>;" for role in "abcd"
    ]
    for i in range(4):
        lines += [
            f"ld.param.u64 %rd{i}, [p{i}];",
            f"{convert} %rd{i}, %rd{i};",
            f"ld.param.u32 %r{i}, [stride{i}];",
        ]
    for i, role in enumerate("abc"):
        load = f"wmma.load.{role}.sync.aligned.{layouts[role]}.{shape}{suffix}.{getattr(form, role)}"
        lines.append(f"{load} {fragments[role]}, [%rd{i}], %r{i};")
    lines.append(f"{mnemonic} {', '.join(fragments[role] for role in 'dabc')};")
    store = f"wmma.store.d.sync.aligned.{store_layout}.{shape}{suffix}.{form.d}"
    lines += [f"{store} [%rd3], {fragments['d']}, %r3;", "ret;"]
    params = ", ".join([*(f".param .u64 p{i}" for i in range(4)), *(f".param .u32 stride{i}" for i in range(4))])
    body = "\n    ".join([".reg .b64 %rd<4>; .reg .b32 %r<4>;", *lines])
    return f".visible .entry {identifier(mnemonic)}({params})\n{{\n    {body}\n}}\n"


@functools.cache
def product_module(target: int) -> str:
    """Return one module with every product of a target."""
    return module([product_entry(name) for name in PRODUCTS if requirements(name) == target], f"sm_{max(target, 70)}")


def to_memory(matrix, type_: str, layout: str, stride: int) -> np.ndarray:
    """Lay out element bits with ``stride`` elements from one row, or column, to the next; the gaps are 0x55."""
    lines = matrix if layout == "row" else [list(column) for column in zip(*matrix, strict=True)]
    width = tensor.BITS[type_]
    memory = np.full(len(lines) * stride * width // 8, 0x55, np.uint8)
    for index, line in enumerate(lines):
        bits = sum(value << (place * width) for place, value in enumerate(line))
        data = bits.to_bytes(len(line) * width // 8, "little")
        start = index * stride * width // 8
        memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memory


def from_memory(memory: np.ndarray, shape, type_: str, layout: str, stride: int):
    elements = memory.view(f"u{tensor.BITS[type_] // 8}").reshape(-1, stride)
    rows, columns = shape
    matrix = elements[:rows, :columns] if layout == "row" else elements[:columns, :rows].T
    return [[int(bits) for bits in row] for row in matrix]


def stride_of(shape, layout: str, padding: int) -> int:
    return shape[1 if layout == "row" else 0] + padding


def multiply(launcher, text: str, mnemonic: str, random, store_layout: str = "row", padding: int = 0):
    """Run a product of exact numbers; return the matrices A, B, C and D of values."""
    form = tensor.read_form(mnemonic)
    layouts = {"a": form.layouts[0], "b": form.layouts[1], "c": store_layout, "d": store_layout}
    strides = {role: stride_of(shape_of(form, role), layouts[role], padding) for role in "abcd"}
    sources, memory = {}, []
    for role in "abcd":
        rows, columns = shape_of(form, role)
        type_ = getattr(form, role)
        matrix = [[matrices.draw_exact(random, type_) for _ in range(columns)] for _ in range(rows)]
        memory.append(to_memory(matrix, type_, layouts[role], strides[role]))
        sources[role] = [[tensor.decode(bits, type_) for bits in row] for row in matrix]
    args = [*memory, *(np.uint32(strides[role]) for role in "abcd")]
    *_, stored = launcher.launch(text, identifier(mnemonic), args)
    bits = from_memory(stored, shape_of(form, "d"), form.d, store_layout, strides["d"])
    result = [[tensor.decode(element, form.d) for element in row] for row in bits]
    return sources["a"], sources["b"], sources["c"], result


def expect(form: tensor.Form, a, b, c):
    def finish(total):
        if form.d == "s32":
            return tensor.saturate(total) if "satfinite" in form.flags else tensor.wrap(total)
        return float(total)

    rule = "sum" if form.rule == "fma" else form.rule
    return [[finish(total) for total in row] for row in tensor.multiply(a, b, c, rule)]


@pytest.mark.hardware("H7")
@pytest.mark.parametrize("mnemonic", PRODUCTS)
def test_every_product_through_memory(launcher, mnemonic):
    target = requirements(mnemonic)
    launcher.require(target)
    *sources, result = multiply(launcher, product_module(target), mnemonic, np.random.default_rng(len(mnemonic)))
    assert result == expect(tensor.read_form(mnemonic), *sources)


TYPICAL = [
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32",
    "wmma.mma.sync.aligned.col.row.m8n32k16.f16.f16",
    "wmma.mma.sync.aligned.row.row.m16n16k8.f32.tf32.tf32.f32",
    "wmma.mma.sync.aligned.col.col.m32n8k16.s32.u8.u8.s32",
    "wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64",
]


@pytest.mark.parametrize("padding", [0, 16, 128])
@pytest.mark.parametrize("store_layout", ["row", "col"])
@pytest.mark.parametrize("space", ["global", "generic"])
@pytest.mark.parametrize("mnemonic", TYPICAL)
def test_layouts_strides_and_spaces(launcher, mnemonic, space, store_layout, padding):
    target = requirements(mnemonic)
    launcher.require(target)
    text = module([product_entry(mnemonic, space, store_layout)], f"sm_{max(target, 70)}")
    random = np.random.default_rng(len(mnemonic))
    *sources, result = multiply(launcher, text, mnemonic, random, store_layout, padding)
    assert result == expect(tensor.read_form(mnemonic), *sources)
