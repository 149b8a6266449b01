"""Checks that nothing is read through the parameters of calls that the kernel has not written.

ptxas passes parameters in registers, and what other kernels left there is read where an argument was not stored. So all
of each argument is stored in the run of code that ends with the call, all results are 0 when a function begins, and
they are read in the run that begins with the call.

Source: PTX ISA 7.1 (Function Declarations and Definitions), 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.12.5 (call).
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Address, Instruction, Label, Name, Statement, Variable
from tensorwasm.ptx.symbols import split_call
from tensorwasm.ptx.verifier.costs import ends_run
from tensorwasm.ptx.verifier.form import NotAccepted
from tensorwasm.ptx.verifier.kernel import KernelFacts, ReadFunction
from tensorwasm.ptx.verifier.memory_forms import store


class StoredParams:
    """The bytes of the parameters of calls that have been stored since a run of code began, statement by statement."""

    def __init__(self) -> None:
        self._stored: dict[str, int] = {}

    def add(self, statement: Statement) -> None:
        """Go on behind a statement."""
        if ends_run(statement):
            self._stored.clear()
        elif isinstance(statement, Instruction) and statement.opcode == "st" and statement.guard is None:
            address = statement.operands[0]
            if "param" in statement.modifiers and isinstance(address, Address) and isinstance(address.base, Name):
                try:
                    size = store(statement).accesses[0].size_bytes
                except NotAccepted:
                    return
                if address.offset >= 0:
                    bits = ((1 << size) - 1) << min(address.offset, 1 << 16)
                    self._stored[address.base.name] = self._stored.get(address.base.name, 0) | bits

    def holds(self, variable: Variable) -> bool:
        """Return whether all of a parameter has been stored."""
        whole = (1 << variable_bytes(variable)) - 1
        return self._stored.get(variable.name, 0) & whole == whole


def check_parameters(read: ReadFunction, kernel: KernelFacts) -> None:
    """Refuse a function that may read a parameter which was not written."""
    stored, results = StoredParams(), set[str]()
    own = {each.name for each in (*read.function.params, *read.function.returns)}
    for statement in read.body:
        kernel.watch.step()
        if isinstance(statement, Instruction) and statement.opcode == "call":
            results = _called(read, statement, stored, read.params)
            stored = StoredParams()
            continue
        stored.add(statement)
        if isinstance(statement, Label) or ends_run(statement):
            results.clear()
        elif (
            isinstance(statement, Instruction) and statement.opcode in ("ld", "ldu") and "param" in statement.modifiers
        ):
            address = statement.operands[1]
            base = address.base.name if isinstance(address, Address) and isinstance(address.base, Name) else ""
            if base not in own and base not in results:
                read.refuse("a parameter that may not have been written", statement)


def _called(read: ReadFunction, call: Instruction, stored: StoredParams, params: Mapping[str, Variable]) -> set[str]:
    """Check the arguments of a call; return its results."""
    _, taken, given = split_call(call)
    for operand in given:
        if not isinstance(operand, Name) or not stored.holds(params[operand.name]):
            read.refuse("an argument that may not have been written", call)
    if taken and call.guard is not None:
        read.refuse("a call that may not happen, with results", call)
    return {operand.name for operand in taken if isinstance(operand, Name)}
