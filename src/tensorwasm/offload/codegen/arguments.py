"""What a program's code is given: its arrays, cells and inputs, in one order for all of its kernels."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwasm.offload.codegen.assembly import spelled
from tensorwasm.offload.codegen.iterations import in_order, statements_of
from tensorwasm.offload.nest import Constant, Index, Input, ValueType, values_of
from tensorwasm.offload.opcodes import WIDTH_BITS
from tensorwasm.offload.program import Array, CellStorage, NestProgram


@dataclass(frozen=True, slots=True)
class ProgramArguments:
    """The arguments of a program's code, in their order.

    Attributes:
        arrays: a pointer to the first byte of each.
        cells: a pointer to the storage of each that is not a register.
        inputs: numbers and types of locals.
        results: numbers and types of locals whose values the code computes; see `known_results`.
        work: of the program.
    """

    arrays: tuple[Array, ...]
    cells: tuple[CellStorage, ...]
    inputs: tuple[tuple[int, ValueType], ...]
    results: tuple[tuple[int, ValueType], ...]
    work: int = 0

    def parameters(self, space: str = "") -> list[str]:
        """Return them as parameters of a function, pointers to an address space of LLVM's."""
        arrays = [f"ptr{space} noalias %a{array.number}" for array in self.arrays]
        cells = [f"ptr{space} noalias %c{storage.cell.number}" for storage in self.cells]
        return [*arrays, *cells, *(f"{spelled(kind)} %i{local}" for local, kind in self.inputs)]


def arguments_of(program: NestProgram) -> ProgramArguments:
    """Return what a program's code is given."""
    effects = [effect for statement, _ in statements_of(program.nest.body) for effect in statement.effects]
    values = in_order([*values_of(effects), *program.nest.results.values()])
    inputs = {value.local: value.type for value in values if isinstance(value, Input)}
    return ProgramArguments(
        program.arrays,
        tuple(storage for storage in program.cells if not storage.private),
        tuple(sorted(inputs.items())),
        tuple(
            (local, value.type)
            for local, value in sorted(program.nest.results.items())
            if not isinstance(value, Constant | Index)
        ),
        program.work,
    )


def known_results(program: NestProgram) -> dict[int, int]:
    """Return the bits of results that are numbers, by local."""
    found = {}
    for local, value in program.nest.results.items():
        match value:
            case Constant():
                found[local] = value.bits
            case Index():  # results are without counters
                found[local] = value.affine.constant & ((1 << WIDTH_BITS[value.type]) - 1)
    return found


def storage_bytes(storage: CellStorage) -> int:
    """Return the size of a cell's storage."""
    return storage.count * WIDTH_BITS[storage.cell.type] // 8
