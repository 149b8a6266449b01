"""Checks that every instruction of a function is in the list, and every access confined.

A register of the guard's families is written by fences alone and begins with a value that a fence could have given, so
that whatever it holds is confined, however a use of it is reached. Its bound is the greatest that any of its fences
gives; how aligned it is, is the least (`tensorwasm.ptx.verifier.alignment`).

Source: PTX ISA 5.1 (State Spaces), 6.4.1 (Addresses as Operands).
"""

from __future__ import annotations

from typing import Final

from tensorwasm.ptx import guarded as rules
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Address, Instruction, Int, Name, Operand, Vector, names
from tensorwasm.ptx.verifier.alignment import aligned_registers
from tensorwasm.ptx.verifier.costs import branch_targets
from tensorwasm.ptx.verifier.form import AcceptedForm, MemoryAccess, NotAccepted
from tensorwasm.ptx.verifier.forms import form
from tensorwasm.ptx.verifier.kernel import KernelFacts, ReadFunction
from tensorwasm.ptx.verifier.ranges import number
from tensorwasm.ptx.verifier.reading import is_program_register

_UNBOUNDED: Final = 1 << 32
_TOP: Final = -1
"""Stands for the bound `tensorwasm.ptx.guarded.SHARED_TOP`."""
_MOST_BOUND: Final = 1 << 31
_ARRAYS: Final = {"shared": rules.SHARED, "local": rules.LOCAL, "const": rules.CONST}


def check_confinement(read: ReadFunction, kernel: KernelFacts) -> None:
    """Refuse a function that has an instruction outside of the list, or an access that may not be confined."""
    _Confinement(read, kernel).check()


class _Confinement:
    def __init__(self, read: ReadFunction, kernel: KernelFacts) -> None:
        self._read = read
        self._kernel = kernel
        self._bounds: dict[str, int] = {}
        self._forms: list[tuple[int, Instruction, AcceptedForm]] = []
        self._aligned: dict[str, int] = {}

    def check(self) -> None:
        """Check all statements: first what each is, then, when all fences are known, what it accesses."""
        read, params = self._read, dict[str, int]()
        for at, statement in enumerate(read.body):
            if isinstance(statement, Instruction) and at not in read.trusted:
                self._instruction(at, statement)
        if read.function.entry:
            params = {each.name: each.pointer[1] for each in read.function.params if each.pointer is not None}
        self._aligned = aligned_registers(read.body, params, self._kernel.watch)
        for at, instruction, made in self._forms:
            self._check_accesses(at, instruction, made)

    # ----------------------------------------------------------------------------------------- instructions

    def _instruction(self, at: int, instruction: Instruction) -> None:
        read = self._read
        guard = instruction.guard
        if guard is not None and not is_program_register(guard.predicate):
            read.refuse("a register of the guard", instruction)
        target = instruction.operands[0] if instruction.operands else None
        if instruction.opcode == "brx":  # reads its first operand, which the guard bounded
            self._indexed_branch(at, instruction)
        elif isinstance(target, Name) and target.name in read.reserved:
            self._fence(instruction, target)
        elif isinstance(target, Vector) and self._is_split(instruction, target):
            return
        elif instruction.opcode not in ("bra", "call"):
            self._listed(at, instruction)

    def _indexed_branch(self, at: int, branch: Instruction) -> None:
        targets = branch_targets(branch, self._read.lists)
        if branch.modifiers != ("idx",) or len(branch.operands) != 2 or branch.operands[1] == Name(targets[0]):
            self._read.refuse("a branch through a list", branch)
        if any(name.startswith(rules.RESERVED) for name in targets):
            self._read.refuse("a branch into the guard's code", branch)
        self._forms.append((at, branch, AcceptedForm(bounds=((0, len(targets) - 1, 1),))))

    def _listed(self, at: int, instruction: Instruction) -> None:
        read = self._read
        try:
            made = form(instruction)
        except NotAccepted as why:
            read.refuse(str(why), instruction)
        for index, operand in enumerate(instruction.operands):
            if isinstance(operand, Address) or any(index == each for each, _, _ in made.bounds):
                continue
            for name in names(operand):
                if name in read.reserved and (index in made.writes or name not in read.readable):
                    read.refuse("a register of the guard", instruction)
                if name.startswith("__tw_") or name in read.params or name in self._kernel.names:
                    read.refuse("an address", instruction)
        self._forms.append((at, instruction, made))

    # --------------------------------------------------------------------------------------------- fences

    def _fence(self, instruction: Instruction, target: Name) -> None:
        """Accept an instruction that writes a register of the guard, if its family is written so."""
        bound = None if instruction.guard is not None else self._fence_bound(_family(target.name), instruction)
        if bound is None:
            self._read.refuse("what writes a register of the guard is no fence", instruction)
        known = self._bounds.get(target.name, bound)
        mixed = known != bound and _TOP in (known, bound)
        self._bounds[target.name] = _UNBOUNDED if mixed else max(known, bound)

    def _is_split(self, instruction: Instruction, target: Vector) -> bool:
        """Return whether an instruction divides an address into halves, registers that may hold anything."""
        source = instruction.operands[-1]
        whole = isinstance(source, Name) and (_family(source.name) == rules.WIDE_ANY or is_program_register(source))
        halves = [each.name for each in target.elements if isinstance(each, Name) and each.component is None]
        ours = [name for name in halves if name in self._read.reserved and _family(name) == rules.ANY]
        form = (instruction.opcode, instruction.modifiers, len(instruction.operands), instruction.guard)
        two = len(ours) == len(target.elements) == 2 and form == ("mov", ("b64",), 2, None)
        return self._kernel.width == "wide" and whole and two

    def _fence_bound(self, family: str, instruction: Instruction) -> int | None:
        """Return the greatest value that a fence may give, None if the instruction is no fence of the family."""
        sources = instruction.operands[1:]
        if not sources or not self._is_source(family, sources[0]):
            return None
        words = ".".join((instruction.opcode, *instruction.modifiers))
        bound: int | None = None
        match family, words, sources[1:]:
            case rules.ANY, "cvt.u32.u64" | "mov.u32", ():
                bound = _UNBOUNDED
            case rules.ANY, "add.u32" | "and.b32", (Int(),):
                bound = _UNBOUNDED
            case rules.ADDRESS, "mov.b64", ():
                bound = _UNBOUNDED
            case (rules.HIGH_HALF, "lop3.b32", (rules.MASK, rules.HIGH, Int(rules.AND_OR))) | (
                rules.WIDE_ANY,
                "add.s64",
                (Int(),),
            ):
                bound = _UNBOUNDED
            case (rules.OFFSET, "and.b32" | "min.u32", (Int(value),)) | (rules.INDEX, "min.u32", (Int(value),)):
                bound = value if 0 <= value < _MOST_BOUND else None
            case rules.OFFSET, "min.u32", (rules.SHARED_TOP,):
                bound = _TOP if self._kernel.arrays.dynamic else None
            case (
                (rules.LOCAL_ADDRESS, "add.u32", (rules.FRAME,))
                | (rules.ROW, "add.u32", (rules.ZERO,))
                | (
                    rules.CONST_ADDRESS,
                    "mad.wide.u32",
                    (Int(1), rules.CONSTS),
                )
            ):
                source = sources[0]
                bound = self._bounds.get(source.name) if isinstance(source, Name) else None
        return bound

    def _is_source(self, family: str, source: Operand) -> bool:
        """Return whether a fence of a family may read an operand first."""
        match family, source:
            case rules.ADDRESS, Vector((Name() as low, rules.HIGH)):
                return self._is_value(low)
            case rules.ADDRESS, Vector((Name() as low, Name(name, None))):
                wide = self._kernel.width == "wide" and name in self._read.reserved
                return wide and _family(name) == rules.HIGH_HALF and self._is_value(low)
            case ((rules.LOCAL_ADDRESS | rules.CONST_ADDRESS | rules.ROW), Name(name)):
                return _family(name) == rules.OFFSET
            case (rules.ANY, Int() | rules.DATA) | (rules.INDEX, Int()):
                return True
        return isinstance(source, Name) and self._is_value(source)

    def _is_value(self, register: Name) -> bool:
        """Return whether a register may hold anything: one of the program, or of the guard's for that."""
        return _family(register.name) == rules.ANY or is_program_register(register)

    # -------------------------------------------------------------------------------------------- accesses

    def _check_accesses(self, at: int, instruction: Instruction, made: AcceptedForm) -> None:
        read, operands = self._read, instruction.operands
        addresses = {each.operand for each in made.accesses}
        if any(isinstance(operand, Address) and index not in addresses for index, operand in enumerate(operands)):
            read.refuse("an address that is not accessed", instruction)
        for access in made.accesses:
            address = operands[access.operand]
            if not isinstance(address, Address) or address.coordinates or not self._is_inside(at, address, access):
                read.refuse("an access that is not confined", instruction)
        for index, most, align in made.bounds:
            operand = operands[index]
            name = operand.name if isinstance(operand, Name) else ""
            known = self._bounds.get(name, 0 if name in read.reserved else _UNBOUNDED)
            if _family(name) != rules.INDEX or known > most or self._aligned.get(name, align) < align:
                read.refuse("an index that is not bounded", instruction)

    def _is_inside(self, at: int, address: Address, access: MemoryAccess) -> bool:
        """Return whether an access is confined to the kernel's part of its state space, and aligned."""
        base, offset = address.base, address.offset
        if not isinstance(base, Name) or base.component is not None or offset % access.align:
            return False
        if access.space == "param":
            return self._is_param(base.name, offset, access)
        if base.name in _ARRAYS.values():
            return _ARRAYS.get(access.space) == base.name and not access.row and self._is_in_array(access, offset)
        if self._aligned.get(base.name, 16) < access.align:
            return False
        if base.name not in self._read.reserved:
            return access.space == "shared" and not access.row and self._is_in_range(at, base, offset, access)
        return self._is_fenced(base.name, offset, access)

    def _is_param(self, name: str, offset: int, access: MemoryAccess) -> bool:
        if (name, offset) == (rules.LAUNCH, rules.LAUNCH_DYNAMIC):
            return access.size_bytes == 4
        variable = None if name.startswith(rules.RESERVED) else self._read.params.get(name)
        return variable is not None and 0 <= offset <= variable_bytes(variable) - access.size_bytes

    def _is_in_array(self, access: MemoryAccess, offset: int) -> bool:
        """Return whether an access at a known place is in the array of its state space."""
        kernel, arrays, end = self._kernel, self._kernel.arrays, offset + access.size_bytes
        if access.space == "shared" and arrays.dynamic:
            kernel.least_shared_bytes = max(kernel.least_shared_bytes, end)
            return offset >= 0 and end <= rules.MAX_STATIC_SHARED_BYTES
        if access.space == "local" and not self._read.function.entry:
            return False  # the array is the kernel's
        sizes = {"shared": arrays.shared_bytes, "local": arrays.local_bytes, "const": arrays.const_bytes}
        return offset >= 0 and end <= sizes[access.space]

    def _is_in_range(self, at: int, base: Name, offset: int, access: MemoryAccess) -> bool:
        """Return whether an access of shared memory through a register of the program is inside of the array."""
        kernel, turns = self._kernel, self._read.turns
        if turns is None or kernel.arrays.dynamic or not is_program_register(base) or not base.name.startswith("%r"):
            return False
        offsets, start = number(turns.ranges.at(base, at, 32), 32, "u"), offset - kernel.shared_base
        return offsets.low + start >= 0 and offsets.high + start + access.size_bytes <= kernel.arrays.shared_bytes

    def _is_fenced(self, name: str, offset: int, access: MemoryAccess) -> bool:
        """Return whether an access through a register of the guard is confined."""
        kernel, arrays = self._kernel, self._kernel.arrays
        bound, end = self._bounds.get(name, 0), offset + access.size_bytes
        match access.space, _family(name):
            case "global", rules.ADDRESS:
                return abs(offset) <= rules.MAX_DISPLACEMENT_BYTES
            case "shared", rules.OFFSET | rules.ROW as family if (family == rules.ROW) == access.row:
                reach = end - kernel.shared_base
                within = bound in (_TOP, 0) and reach <= arrays.shared_reserve_bytes
                if not arrays.dynamic:
                    within = bound != _TOP and bound + reach <= arrays.shared_bytes
                return within and offset >= kernel.shared_base
            case "local", rules.LOCAL_ADDRESS:
                return offset == 0 and bound != _TOP and bound + end <= arrays.local_bytes
            case "const", rules.CONST_ADDRESS:
                return offset == 0 and bound != _TOP and bound + end <= arrays.const_bytes
        return False


def _family(name: str) -> str:
    """Return the family of a numbered register of the guard, empty for any other name."""
    family = name.rstrip("0123456789")
    return family if family in rules.FAMILIES and family != name else ""
