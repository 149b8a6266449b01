"""The form of guarded kernels: what the guard writes, the verifier accepts and the runtime provides at each launch.

A guarded kernel shares a GPU context with kernels of other tenants. Every address that it accesses is confined to its
session's window, to its own part of shared memory or to its own part of local memory, whatever it computes, and it
stops by itself after its deadline. `docs/subjects/guarded-kernels.md` has the threat model.

Names that begin with `RESERVED` belong to the guard. Families of its registers, by what they may hold:

- ``%tw_l<n>`` 32 bits of any value.
- ``%tw_a<n>`` an address in the window: ``mov.b64 %tw_a1, {%tw_l1, %tw_hi}``.
- ``%tw_w<n>`` 64 bits of any value, wide kernels alone.
- ``%tw_h<n>`` the high half of an address in the window, wide kernels alone:
  ``lop3.b32 %tw_h1, %tw_l1, %tw_mask, %tw_hi, 0xEA``.
- ``%tw_s<n>`` an offset in shared memory that is below a bound.
- ``%tw_o<n>`` such an offset of a row of a matrix, with a 0 added that ptxas does not know.
- ``%tw_m<n>``, ``%tw_c<n>`` an address in the array in local or constant memory.
- ``%tw_i<n>`` an index below the length of a list of labels.
- ``%tw_n<n>`` how many turns of a loop are paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.ptx.layout import TYPE_BYTES
from tensorwasm.ptx.model import Directive, Int, Name, Operand, Variable, Vector

Width = Literal["narrow", "wide"]
"""Which windows a guarded kernel is for. ``narrow``: of 4 GiB, so that the high half of an address is always the
window's. ``wide``: of any power of two from 4 GiB on, which the launch says."""

RESERVED: Final = ("%tw_", "__tw_")
LEAST_VERSION: Final = (6, 2)
"""Of the PTX ISA: has all instructions that the guard writes."""

WINDOW_BYTES: Final = 1 << 32
"""Bytes of a narrow window. A window begins at a multiple of its size."""
MAX_DISPLACEMENT_BYTES: Final = 8 << 20
"""Greatest distance of an access from a fenced address; the slack on both sides of a window is longer."""
SHARED_BASE: Final = 1024
"""Where ptxas puts the first variable in shared memory: behind what CUDA reserves from sm_90 on."""
SHARED_ALIGN: Final = 1024
MAX_STATIC_SHARED_BYTES: Final = 48 << 10
MAX_LOCAL_BYTES: Final = 32 << 10
"""Bytes of local memory of one thread: the driver reserves them for every thread that the GPU can hold."""
MAX_CONST_BYTES: Final = 32 << 10
MAX_DATA_BYTES: Final = 16 << 20
"""Bytes of a module's variables, of which each session has a copy."""
MAX_PARAM_BYTES: Final = 4096
"""Bytes of a parameter or a result of a function."""
MAX_ACCESS_BYTES: Final = 16
MAX_FRAME_ALIGN: Final = 16

SHARED: Final = "__tw_shared"
LOCAL: Final = "__tw_local"
CONST: Final = "__tw_const"
LAUNCH: Final = "__tw_launch"
LAUNCH_BYTES: Final = 56
WIDE_LAUNCH_BYTES: Final = 64
"""Of a wide kernel, which has one field more."""
PASSED: Final = "__tw_pass_"
"""How the parameters of calls begin that hand the launch parameter over."""

LAUNCH_HIGH: Final = 0
"""Offset in the launch parameter: u32, the high half of the window's address."""
LAUNCH_DATA: Final = 4
"""u32: offset in the window of the variables of the kernel's module, which lie in its first 4 GiB."""
LAUNCH_DEADLINE: Final = 8
"""u64: the value of ``%globaltimer`` after which the launch stops."""
LAUNCH_FLAG: Final = 16
"""u64: address of the session's flag in device memory: a u64, the value of ``%globaltimer`` until which nobody needs to
look at `STATUS_REQUEST` again, `FLAG_STOPPED` once a thread has stopped and the others have to; what is behind it says
`FLAG_TOLD`."""
FLAG_BYTES: Final = 16
FLAG_STOPPED: Final = 1
FLAG_TOLD: Final = 8
"""Offset in the flag: u32, not 0 once a thread has written the status."""
LAUNCH_STATUS: Final = 24
"""u64: address of two u32 of the host's: a thread that stops writes one of `STOPPED` and `TRAPPED`, unless another was
seen to have done it; for the second see `STATUS_REQUEST`."""
STATUS_REQUEST: Final = 4
"""Offset behind the status: u32, which the host sets to tell kernels to stop."""
LAUNCH_LOOK: Final = 32
"""u64: the value of ``%globaltimer`` after which a block that begins looks at the flag and the deadline."""
LAUNCH_SHARED: Final = 40
"""u32: bytes of shared memory of the launch, a multiple of 16, where the kernel does not say them itself."""
LAUNCH_FRAME: Final = 44
"""u32: address of the kernel's array in local memory; only what a kernel passes to its functions has it."""
LAUNCH_DYNAMIC: Final = 48
"""u32: bytes of dynamic shared memory that the launch asked for."""
LAUNCH_ZERO: Final = 52
"""u32: 0, which ptxas does not know."""
LAUNCH_MASK: Final = 56
"""u32: which bits of the high half of an address may differ in the window; a u32 of 0 is behind it."""
AND_OR: Final = 0xEA
"""The table of ``lop3`` for ``(a & b) | c``."""

LOOK_NS: Final = 500_000
"""How often one thread of a session looks at the host's request to stop, for it costs a way over the bus."""

STOPPED: Final = 1
TRAPPED: Final = 2

NOT_UNROLLED: Final = Directive("pragma", ('"nounroll"',))
"""The hint that ptxas leaves the turns of a loop as they are."""

WHOLE_WARP: Final = (1 << 32) - 1
"""The mask of all threads of a warp."""

WHOLE_WARP_ONLY: Final = frozenset({"mma", "wmma", "ldmatrix", "stmatrix"})
"""Opcodes that do nothing if a thread of the warp is missing, and leave in registers what another kernel left there."""

FUEL: Final = 1 << 16
"""Work between two polls, in the units of `tensorwasm.ptx.verifier.costs`."""

AGAIN: Final = "__tw_again_"
LOOK: Final = "__tw_look"
GO: Final = "__tw_go"
STOP: Final = "__tw_stop"
TRAP: Final = "__tw_trap"

HIGH: Final = Name("%tw_hi")
MASK: Final = Name("%tw_mask")
DATA: Final = Name("%tw_data")
FRAME: Final = Name("%tw_frame")
CONSTS: Final = Name("%tw_consts")
SHARED_TOP: Final = Name("%tw_top")
FUEL_USED: Final = Name("%tw_fuel")
FUEL_COMMON: Final = Name("%tw_common")
"""Fuel of loops that all threads of a warp leave together: apart, so that ptxas can see that they do."""
ZERO: Final = Name("%tw_zero")
TEST: Final = Name("%tw_q")
NOW: Final = Name("%tw_now")
LIMIT: Final = Name("%tw_limit")
UNTIL: Final = Name("%tw_until")
NEXT: Final = Name("%tw_next")
SEEN: Final = Name("%tw_seen")
AT: Final = Name("%tw_at")
STEP: Final = Name("%tw_step")
WORD: Final = Name("%tw_word")
SIZE: Final = Name("%tw_size")

_NARROW_REGISTERS: Final = (
    Variable("reg", "pred", TEST.name),
    *(Variable("reg", "b32", each.name) for each in (HIGH, DATA, FRAME, SHARED_TOP, FUEL_USED, FUEL_COMMON, ZERO)),
    *(Variable("reg", "b32", each.name) for each in (SEEN, AT, STEP, WORD, SIZE)),
    *(Variable("reg", "b64", each.name) for each in (CONSTS, NOW, LIMIT, UNTIL, NEXT)),
)
REGISTERS: Final[Mapping[Width, tuple[Variable, ...]]] = {
    "narrow": _NARROW_REGISTERS,
    "wide": (*_NARROW_REGISTERS, Variable("reg", "b32", MASK.name)),
}
"""Registers of each function that the templates below use."""

ADDRESS, OFFSET, ROW, LOCAL_ADDRESS, CONST_ADDRESS, INDEX, COUNTER, ANY = (f"%tw_{letter}" for letter in "asomcinl")
HIGH_HALF, WIDE_ANY = "%tw_h", "%tw_w"
FAMILIES: Final = {
    **dict.fromkeys((ADDRESS, CONST_ADDRESS), "b64"),
    **dict.fromkeys((OFFSET, ROW, LOCAL_ADDRESS, INDEX, COUNTER, ANY), "b32"),
    HIGH_HALF: "b32",
    WIDE_ANY: "b64",
}
"""Numbered registers of the guard, and their types."""
WIDE_FAMILIES: Final = frozenset({HIGH_HALF, WIDE_ANY})
"""Those that wide kernels alone have."""
FIRST_VALUES: Final[Mapping[str, Operand]] = {
    ADDRESS: Vector((FUEL_USED, HIGH)),
    OFFSET: Int(0),
    ROW: Int(0),
    LOCAL_ADDRESS: FRAME,
    CONST_ADDRESS: CONSTS,
    INDEX: Int(0),
    COUNTER: Int(0),
    ANY: Int(0),
    HIGH_HALF: HIGH,
    WIDE_ANY: Int(0),
}
"""What registers hold that confine accesses until a fence writes them; `FUEL_USED` is 0 then."""

PROGRAM_FAMILIES: Final = {1: "%p", 8: "%c", 16: "%h", 32: "%r", 64: "%d", 128: "%q"}
"""Numbered registers for the program's values, by their bits: predicates, and untyped registers."""

LAUNCH_PARAMS: Final[Mapping[Width, Variable]] = {
    "narrow": Variable("param", "b8", LAUNCH, align=8, shape=(LAUNCH_BYTES,)),
    "wide": Variable("param", "b8", LAUNCH, align=8, shape=(WIDE_LAUNCH_BYTES,)),
}


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays that hold a kernel's variables; its functions use them too.

    Attributes:
        shared_bytes: in shared memory, a multiple of 16; 0 if there is none or `dynamic`.
        dynamic: whether the launch says how large that array is.
        shared_reserve_bytes: what an access may reach beyond the greatest fenced offset, where it is `dynamic`.
        local_bytes: in local memory, 0 or a power of two from 16.
        const_bytes: in constant memory, 0 or a power of two from 16.
    """

    shared_bytes: int = 0
    dynamic: bool = False
    shared_reserve_bytes: int = 0
    local_bytes: int = 0
    const_bytes: int = 0


def register_bits(kind: str) -> int:
    """Return the bits of registers of a type; 1 for predicates."""
    return 1 if kind == "pred" else 8 * TYPE_BYTES[kind]
