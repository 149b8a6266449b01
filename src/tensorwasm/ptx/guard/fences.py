"""Second step of the guard: every access goes through a register that only fences write.

A register that is the base of an access gets a fenced twin for each kind of access; the twin is computed wherever the
register is written, so that it is right at every use, however the use is reached, and so that the compiler finds it
next to the address's own computation. What `tensorwasm.ptx.verifier.alignment` proves aligned is not aligned again.

Source: PTX ISA 5.1 (State Spaces), 6.4.1 (Addresses as Operands), 9.7.9.8 (ld), 9.7.13 (atom, red).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.guard.arrays import Place
from tensorwasm.ptx.guard.displacements import Lowest, lowest_displacements
from tensorwasm.ptx.guard.flat import FlatFunction
from tensorwasm.ptx.guard.known_values import known_values
from tensorwasm.ptx.guard.lower import Context, Lowered
from tensorwasm.ptx.guard.registers import is_register, register_width, written
from tensorwasm.ptx.guarded import (
    AND_OR,
    CONST,
    CONSTS,
    DATA,
    FRAME,
    HIGH,
    LOCAL,
    MASK,
    MAX_ACCESS_BYTES,
    MAX_DISPLACEMENT_BYTES,
    SHARED,
    SHARED_TOP,
    ZERO,
)
from tensorwasm.ptx.layout import ELEMENT_BYTES
from tensorwasm.ptx.model import Address, Instruction, Int, Name, Operand, Statement, TargetList, Vector
from tensorwasm.ptx.templates import instruction
from tensorwasm.ptx.verifier.costs import sums
from tensorwasm.ptx.verifier.form import MemoryAccess, NotAccepted
from tensorwasm.ptx.verifier.forms import form
from tensorwasm.ptx.verifier.memory_forms import MAX_MATRIX_STRIDE
from tensorwasm.ptx.verifier.ranges import MOST_STEPS, Ranges, number
from tensorwasm.ptx.verifier.turns import MOST_WORK, find_turns
from tensorwasm.watch import Watch

_FAMILIES: Final = {"global": "a", "shared": "s", "row": "o", "local": "m", "const": "c"}
_MOST_SHARED_DISPLACEMENT: Final = 4096


class _Fence(NamedTuple):
    """What is fenced: a register as the base of accesses of one kind.

    Attributes:
        align: bytes that the base plus ``added`` is aligned to by the fence, 1 for no alignment.
    """

    base: Name
    space: str
    align: int
    added: int


@dataclass(slots=True)
class Fenced:
    """A function whose accesses are confined.

    Attributes:
        counts: registers used of each of the guard's families.
        reserve_bytes: what accesses may reach beyond the greatest fenced offset in shared memory.
        shared: whether shared memory is accessed.
        staying: branches of loops, by their index in the body, that no thread may leave early.
    """

    body: list[Statement] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    reserve_bytes: int = 0
    shared: bool = False
    staying: set[int] = field(default_factory=set)


def fence(flat: FlatFunction, lowered: Lowered, context: Context, aligned: dict[str, int], watch: Watch) -> Fenced:
    """Return the function with every address fenced.

    Args:
        flat: the function as it was.
        lowered: with explicit state spaces.
        context: of the kernel.
        aligned: bytes that each register's values are proved to be multiples of.
        watch: of the deadline.

    Raises:
        UnsupportedPtx: an access that cannot be confined.
        InvokeTimeout: the deadline passed.
    """
    return _Fences(flat, lowered, context, aligned).run(watch)


class _Fences:
    def __init__(self, flat: FlatFunction, lowered: Lowered, context: Context, aligned: dict[str, int]) -> None:
        self._flat = flat
        self._lowered = lowered
        self._context = context
        self._aligned = aligned
        self._made = Fenced(counts={**dict.fromkeys("asomclhw", 0), "i": lowered.indices})
        self._out = self._made.body
        self._twins: dict[_Fence, Name] = {}
        self._of: dict[str, list[_Fence]] = {}
        self._lowest = 0
        self._at = 0

    def run(self, watch: Watch) -> Fenced:
        """Fence all accesses, then compute the twins where their registers are written."""
        self._constants = known_values(self._lowered.body, watch)
        self._ranges = _ranges(self._flat, self._lowered.body, watch)
        lowest, none = lowest_displacements(self._lowered.body, watch), Lowest()
        accesses: list[Statement] = []
        for index, statement in enumerate(watch.over(self._lowered.body)):
            self._out, self._lowest = [], lowest.get(index, none).displacement
            self._at = index
            accesses.append(self._confined(statement))
            accesses[-1:-1] = self._out
        self._out = self._made.body
        for statement in watch.over(accesses):
            self._out.append(statement)
            if isinstance(statement, Instruction) and self._of:
                for name in written(statement):
                    for each in self._of.get(name, ()):
                        self._compute(each)
        return self._made

    def _place(self, base: Name) -> Place | None:
        if is_register(base.name):
            return None
        return self._context.places.find(self._flat.function.name, base.name)

    def _new(self, family: str) -> Name:
        number = self._made.counts[family]
        self._made.counts[family] = number + 1
        return Name(f"%tw_{family}{number}")

    def _emit(self, mnemonic: str, *operands: Operand) -> None:
        self._out.append(instruction(mnemonic, *operands))

    # ------------------------------------------------------------------------------------------- accesses

    def _confined(self, statement: Statement) -> Statement:
        if not isinstance(statement, Instruction) or not any(isinstance(each, Address) for each in statement.operands):
            return statement
        try:
            return self._access(statement)
        except UnsupportedPtx as error:
            raise UnsupportedPtx(error.message, *statement.position) from None

    def _access(self, statement: Instruction) -> Instruction:
        statement = self._with_stride(statement)
        operands = list(statement.operands)
        try:
            accesses = form(statement).accesses
        except NotAccepted as why:
            raise UnsupportedPtx(str(why)) from None
        for access in accesses:
            address = operands[access.operand]
            confine = _SPACES.get(access.space)
            if confine is not None and isinstance(address, Address):
                operands[access.operand] = confine(self, address, access)
        modifiers, when = statement.modifiers, statement.guard
        return Instruction(statement.opcode, modifiers, tuple(operands), when, statement.position)

    def _with_stride(self, statement: Instruction) -> Instruction:
        """Return an access to a matrix with its stride as a number, where it is known, or else bounded."""
        operands = statement.operands
        stride = operands[2] if statement.opcode == "wmma" and len(operands) == 3 else None
        if not isinstance(stride, Name):
            return statement
        known = self._constants.get(stride.name)
        made: Operand = Int(known or 0)
        if known is None:
            low, made = self._new("l"), self._new("i")
            element = 16 // min(16 // ELEMENT_BYTES.get(statement.modifiers[-1], 1), 16)
            self._emit("and.b32", low, stride, Int(-(16 // element)))
            self._emit("min.u32", made, low, Int(MAX_MATRIX_STRIDE))
        operands = (*operands[:2], made)
        return Instruction(statement.opcode, statement.modifiers, operands, statement.guard, statement.position)

    def _offset(self, address: Address, space: str) -> int | None:
        """Return the offset of an address in its state space's array, None if only the kernel knows it."""
        base = address.base
        if isinstance(base, Int):
            return base.value + address.offset - (self._context.shared_base if space == "shared" else 0)
        place = self._place(base)
        if place is None:
            known = self._constants.get(base.name)
            return None if known is None else known + address.offset
        if place.space != space:
            raise UnsupportedPtx(f"{base.name} is in {place.space} memory, not {space}")
        return place.offset + address.offset

    def _twin(self, base: Name, space: str, align: int, added: int) -> Name:
        proved = added % align == 0 and self._aligned.get(base.name, 1) >= align
        if proved and (space == "global" or (space in ("shared", "row") and not self._masks_shared())):
            align = 1
        wanted = _Fence(base, space, align, added)
        found = self._twins.get(wanted)
        if found is None:
            found = self._twins[wanted] = self._new(_FAMILIES[space])
            self._of.setdefault(base.name, []).append(wanted)
            if not is_register(base.name):
                raise UnsupportedPtx(f"{base.name} as an address")
        return found

    def global_(self, address: Address, access: MemoryAccess) -> Address:
        """Confine an address of global memory to the window."""
        base, displacement, align = address.base, address.offset, access.align
        if isinstance(base, Int) or self._place(base) is not None:
            low, made = self._new("l"), self._new("a")
            offset = Int((self._offset(address, "global") or 0) & 0xFFFFFFFF)
            self._emit("mov.u32", low, offset) if isinstance(base, Int) else self._emit("add.u32", low, DATA, offset)
            self._emit("mov.b64", made, Vector((self._cleared(low, align), HIGH)))
            return Address(made)
        inside = displacement % align == 0 and abs(displacement) <= MAX_DISPLACEMENT_BYTES
        added = 0 if inside else displacement
        return Address(self._twin(base, "global", align, added), displacement - added)

    def shared(self, address: Address, access: MemoryAccess) -> Address:
        """Confine an address of shared memory to the kernel's array."""
        base, displacement, start = address.base, address.offset, self._context.shared_base
        align, space = access.align, "row" if access.row else "shared"
        self._made.shared = True
        offset = self._offset(address, "shared")
        if offset is None and isinstance(base, Name):
            if self._is_proved(base, displacement, access):
                return Address(base, start + displacement)
            outside = displacement - self._lowest
            inside = outside % align == 0 and 0 <= outside <= _MOST_SHARED_DISPLACEMENT
            added = self._lowest if inside else displacement
            self._reserve(displacement - added + access.size_bytes)
            return Address(self._twin(base, space, align, added), start + displacement - added)
        return self._known(offset or 0, space, access)

    def _is_proved(self, base: Name, displacement: int, access: MemoryAccess) -> bool:
        """Return whether an access of shared memory is certainly aligned, and begins in the kernel's variables."""
        size, align = self._context.places.shared_bytes, access.align
        if self._context.arrays.dynamic or access.row or displacement % align or register_width(base) != 32:
            return False
        if self._aligned.get(base.name, 1) < align:
            return False
        offsets = number(self._ranges.at(base, self._at, 32), 32, "u")
        if offsets.low + displacement < 0 or offsets.high + displacement > size:
            return False
        self._reserve(offsets.high + displacement + access.size_bytes - size)
        return True

    def _reserve(self, end: int) -> None:
        self._made.reserve_bytes = max(self._made.reserve_bytes, end)

    def local(self, address: Address, access: MemoryAccess) -> Address:
        """Confine an address of local memory to the kernel's array."""
        offset = self._offset(address, "local")
        if offset is None and isinstance(address.base, Name):
            return Address(self._twin(address.base, "local", access.align, address.offset))
        return self._known(offset or 0, "local", access)

    def const(self, address: Address, access: MemoryAccess) -> Address:
        """Confine an address of constant memory to the kernel's array."""
        offset = self._offset(address, "const")
        if offset is None and isinstance(address.base, Name):
            return Address(self._twin(address.base, "const", access.align, address.offset))
        return self._known(offset or 0, "const", access)

    def _known(self, offset: int, space: str, access: MemoryAccess) -> Address:
        """Return the address of a known offset in an array, fenced if it is outside."""
        places, arrays = self._context.places, self._context.arrays
        array, size = {
            "shared": (SHARED, places.shared_bytes),
            "row": (SHARED, 0),
            "local": (LOCAL, arrays.local_bytes if self._flat.function.entry else 0),
            "const": (CONST, arrays.const_bytes),
        }[space]
        if offset % access.align == 0 and 0 <= offset <= size - access.size_bytes:
            return Address(Name(array), offset)
        low, made = self._new("l"), self._new(_FAMILIES[space])
        self._emit("mov.u32", low, Int(offset & 0xFFFFFFFF))
        self._fence(made, low, space, access.align)
        if array == SHARED:
            self._reserve(access.size_bytes)
        return Address(made, self._context.shared_base if array == SHARED else 0)

    # --------------------------------------------------------------------------------------------- fences

    def _compute(self, wanted: _Fence) -> None:
        """Write the twin of a register that has just been written."""
        base, space, align, added = wanted
        low, high, twin = base, HIGH, self._twins[wanted]
        if register_width(base) == 64 and space == "global" and self._context.width == "wide":
            low, high = self._halves(base, added)
            added = 0
        elif register_width(base) == 64:
            low = self._new("l")
            self._emit("cvt.u32.u64", low, base)
        elif register_width(base) != 32:
            raise UnsupportedPtx(f"{base.name} as an address")
        if added:
            total = self._new("l")
            self._emit("add.u32", total, low, Int(added & 0xFFFFFFFF))
            low = total
        self._fence(twin, low, space, align, high)

    def _halves(self, base: Name, added: int) -> tuple[Name, Name]:
        """Return the low half of an address, and the high half confined to a wide window."""
        if added:
            total = self._new("w")
            self._emit("add.s64", total, base, Int(added))
            base = total
        low, high, made = self._new("l"), self._new("l"), self._new("h")
        self._emit("mov.b64", Vector((low, high)), base)
        self._emit("lop3.b32", made, high, MASK, HIGH, Int(AND_OR))
        return low, made

    def _fence(self, twin: Name, low: Name, space: str, align: int, high: Name = HIGH) -> None:
        places, arrays = self._context.places, self._context.arrays
        if space == "global":
            self._emit("mov.b64", twin, Vector((self._cleared(low, align), high)))
        elif space == "shared":
            whole = places.shared_bytes
            if self._masks_shared():
                self._emit("and.b32", twin, low, Int((whole - 1) & -align))
                return
            most = SHARED_TOP if arrays.dynamic else Int(-(-whole // MAX_ACCESS_BYTES) * MAX_ACCESS_BYTES)
            self._emit("min.u32", twin, self._cleared(low, align), most)
        elif space == "row":
            made = self._new("s")
            self._fence(made, low, "shared", align)
            self._emit("add.u32", twin, made, ZERO)
        else:
            size, start, one = arrays.local_bytes, FRAME, list[Operand]()
            if space == "const":
                size, start, one = arrays.const_bytes, CONSTS, [Int(1)]
            if not size:
                raise UnsupportedPtx(f"{space} memory of a kernel that declares none")
            made = self._new("s")
            self._emit("and.b32", made, low, Int((size - 1) & -align))
            self._emit("add.u32" if space == "local" else "mad.wide.u32", twin, made, *one, start)

    def _masks_shared(self) -> bool:
        """Return whether a mask bounds offsets in shared memory."""
        whole = self._context.places.shared_bytes
        return not self._context.arrays.dynamic and whole >= MAX_ACCESS_BYTES and whole & (whole - 1) == 0

    def _cleared(self, low: Name, align: int) -> Name:
        """Return a register with the low bits cleared that an alignment wants clear."""
        if align == 1:
            return low
        made = self._new("l")
        self._emit("and.b32", made, low, Int(-align))
        return made


_SPACES: Final[dict[str, Callable[[_Fences, Address, MemoryAccess], Address]]] = {
    "global": _Fences.global_,
    "shared": _Fences.shared,
    "local": _Fences.local,
    "const": _Fences.const,
}


def _ranges(flat: FlatFunction, body: list[Statement], watch: Watch) -> Ranges:
    """Return the ranges of a function's registers: those that the verifier finds, when loops do more work, too."""
    lists = {each.label: each.targets for each in body if isinstance(each, TargetList)}
    steps, work = MOST_STEPS // 4, MOST_WORK // 4
    return find_turns(flat.function, body, lists, sums(body, {}), watch, most_steps=steps, most_work=work).ranges
