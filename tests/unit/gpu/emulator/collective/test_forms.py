"""The inventory, held against the assembler that decides what a form is."""

import re
import shutil
import subprocess

import pytest

from oracles import tensor as oracle
from tensorwasm.gpu.emulator.collective import compile_lane_op, compile_warp_op, forms, key, lane_catalog, warp_catalog
from tensorwasm.ptx.model import Address, Instruction, Int, Name, Not, Vector

REGISTERS = {"b32": "%r", "u32": "%r", "b64": "%l", "f32": "%f", "f64": "%d", "pred": "%p"}
IN_VECTORS = {"b32", "b64", "f32", "f64"}
WIDE_TYPES = {"f32": "f32", "f64": "f64"}


def vector_lengths(mnemonic, op):
    """Return the lengths of the vectors that the flat registers of an op are written in, results first."""
    opcode = mnemonic.split(".")[0]
    if opcode == "mma" or mnemonic.startswith("wmma.mma"):
        form = oracle.read_form(mnemonic)
        if opcode == "wmma" and form.a == "f16":
            return [len(op.results), 8, 8, len(op.sources) - 16]
        sizes = ((form.m, form.k, form.a), (form.k, form.n, form.b), (form.m, form.n, form.c))
        counts = [oracle.registers_per_lane(rows, columns, type_, form) for rows, columns, type_ in sizes]
        return [len(op.results), *counts]
    if opcode in {"wmma", "ldmatrix", "stmatrix"}:
        return [len(op.results) or sum(type_ in IN_VECTORS for type_ in op.sources)]
    return []


def register_classes(mnemonic):
    """Return the register class of each vector: f32 and f64 matrices have their own."""
    opcode = mnemonic.split(".")[0]
    if opcode == "mma" or mnemonic.startswith("wmma.mma"):
        form = oracle.read_form(mnemonic)
        return [WIDE_TYPES.get(type_, "b32") for type_ in (form.d, form.a, form.b, form.c)]
    types = [word for word in mnemonic.split(".") if word in oracle.BITS]
    return [WIDE_TYPES.get(types[-1], "b32") if types else "b32"]


def operands_of(mnemonic, op):
    """Return operands of an op as model nodes, with vectors where the ISA has them."""
    lengths, classes = vector_lengths(mnemonic, op), register_classes(mnemonic)
    operands, flat, number = [], [*op.results, *op.sources], 0
    while flat:
        type_ = flat[0]
        if type_ in IN_VECTORS and lengths:
            length, register = lengths.pop(0), REGISTERS[classes.pop(0)]
            operands.append(Vector(tuple(Name(f"{register}{number + i}") for i in range(length))))
            flat, number = flat[length:], number + length
            continue
        operands.append(scalar(mnemonic, type_, len(operands), number))
        flat, number = flat[1:], number + 1
    return tuple(operands)


def scalar(mnemonic, type_, place, number):
    if type_ == "u64":
        return Address(Name("%r90" if ".shared" in mnemonic and not (".global" in mnemonic and place) else "%l90"))
    if mnemonic.startswith("cp.async.wait_group") or (
        mnemonic.startswith("cp.async.c") and place == 2 and type_ == "u32"
    ):
        return Int(16 if ".global" in mnemonic else 1)
    return Name(f"{REGISTERS[type_]}{number}")


def render(operand):
    if isinstance(operand, Vector):
        return "{" + ", ".join(map(render, operand.elements)) + "}"
    if isinstance(operand, Address):
        return f"[{render(operand.base)}]"
    return str(operand.value) if isinstance(operand, Int) else operand.name


def every_op():
    """Yield each mnemonic with each of its ops and their operands."""
    for catalog in (warp_catalog(), lane_catalog()):
        for name in catalog.names:
            opcode, *modifiers = name.split(".")
            for op in catalog.ops[key((opcode, *modifiers))]:
                yield name, op, operands_of(name, op)


def type_of(operand):
    if isinstance(operand, Not) or (isinstance(operand, Name) and operand.name.startswith("%p")):
        return "pred"
    return "b32" if isinstance(operand, Name) else None


def test_every_form_compiles_to_the_op_that_lists_it():
    for name, op, operands in every_op():
        opcode, *modifiers = name.split(".")
        instruction = Instruction(opcode, tuple(modifiers), operands)
        found = compile_warp_op(instruction) or compile_lane_op(instruction, type_of)
        assert found is op, name


def test_no_form_is_listed_twice():
    assert len(forms()) == len(set(forms()))


def test_the_inventory_covers_every_family():
    families = {re.match(r"[a-z_]+(\.(load|store|mma|async))?", name)[0] for name in forms()}
    assert families == {
        "mma", "wmma.load", "wmma.store", "wmma.mma", "ldmatrix", "stmatrix", "movmatrix", "cp.async", "mbarrier",
    }  # fmt: skip


HEADER = """.version 8.7
.target sm_90
.address_size 64
.visible .entry forms() {
.reg .b32 %r<96>; .reg .f32 %f<96>; .reg .f64 %d<96>; .reg .b64 %l<96>; .reg .pred %p<8>;
mov.u32 %r90, 0; mov.u64 %l90, 0;
"""


@pytest.mark.skipif(
    shutil.which("ptxas") is None, reason="ptxas is not installed: the forms are NOT checked against it"
)
def test_the_assembler_takes_every_form(tmp_path):
    lines = [f"{name} {', '.join(map(render, operands))};" for name, _, operands in every_op()]
    source = tmp_path / "forms.ptx"
    source.write_text(HEADER + "\n".join(lines) + "\nret;\n}\n", "ascii")
    ptxas = subprocess.run(
        ["ptxas", "-arch=sm_90", "-O0", str(source), "-o", str(tmp_path / "forms.cubin")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    start = HEADER.count("\n")
    refused = {int(line) for line in re.findall(r"line (\d+); error", ptxas.stderr)}
    assert [lines[number - start - 1] for number in sorted(refused) if number > start] == []
    assert ptxas.returncode == 0, ptxas.stderr[:2000]
