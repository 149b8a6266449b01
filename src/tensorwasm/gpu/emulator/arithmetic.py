"""Steps that run an `Op`: read the sources, compute all lanes at once, write the results."""

from __future__ import annotations

from tensorwasm.errors import MalformedPtx
from tensorwasm.gpu.emulator.builder import Builder
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.operands import Reader, Writer, own, read_register, write_register
from tensorwasm.gpu.emulator.ops import DTYPES, Lanes, Op
from tensorwasm.gpu.emulator.program import Step
from tensorwasm.ptx.model import Instruction, Operand


def bind_operands(
    builder: Builder, instruction: Instruction, results: tuple[str, ...], sources: tuple[str, ...]
) -> tuple[list[Writer], list[Reader]]:
    """Return writers and readers for an instruction's operands, vectors and pairs flattened.

    Raises:
        MalformedPtx: their number or their types do not fit.
    """
    operands: list[Operand] = [one for operand in instruction.operands for one in builder.names.elements(operand)]
    if len(operands) != len(results) + len(sources):
        raise MalformedPtx(f"{len(operands)} operands where {len(results) + len(sources)} are expected")
    if instruction.opcode != "cvt":
        for operand, ptx_type in zip(operands, (*results, *sources), strict=True):
            builder.names.require_width(operand, ptx_type)
    writers = [builder.names.writer(one, ptx_type) for one, ptx_type in zip(operands, results, strict=False)]
    readers = [
        builder.names.reader(one, ptx_type) for one, ptx_type in zip(operands[len(results) :], sources, strict=True)
    ]
    return writers, readers


def compile_arithmetic(builder: Builder, instruction: Instruction, op: Op) -> None:
    """Add the step of an instruction that every lane executes for itself.

    Raises:
        MalformedPtx: the operands do not fit.
    """
    results = op.results[:-1] if op.writes_carry else op.results
    sources = op.sources[:-1] if op.reads_carry else op.sources
    writers, readers = bind_operands(builder, instruction, results, sources)
    if op.writes_carry:
        writers.append(write_register(builder.names.carry(), "pred"))
    if op.reads_carry:
        readers.append(read_register(builder.names.carry(), DTYPES["pred"]))
    if len(writers) == 1:
        builder.step(_single(op, writers[0], readers))
    else:
        builder.step(_several(op, writers, readers))


def _single(op: Op, write: Writer, readers: list[Reader]) -> Step:
    run = op.run
    if len(readers) == 1:
        (read,) = readers

        def step_one(machine: Machine) -> None:
            source = read(machine)
            write(machine, own(_array(run(source)), (source,)))

        return step_one
    if len(readers) == 2:
        first, second = readers

        def step_two(machine: Machine) -> None:
            left, right = first(machine), second(machine)
            write(machine, own(_array(run(left, right)), (left, right)))

        return step_two

    def step(machine: Machine) -> None:
        sources = tuple(read(machine) for read in readers)
        write(machine, own(_array(run(*sources)), sources))

    return step


def _array(values: Lanes | tuple[Lanes, ...]) -> Lanes:
    return values[0] if isinstance(values, tuple) else values


def _several(op: Op, writers: list[Writer], readers: list[Reader]) -> Step:
    def step(machine: Machine) -> None:
        sources = tuple(read(machine) for read in readers)
        values = [own(value, sources) for value in op.run(*sources)]
        for write, value in zip(writers, values, strict=True):
            write(machine, value)

    return step
