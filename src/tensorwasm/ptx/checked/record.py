"""The record of a checked kernel: the ranges that it may access, and its report; and the function that writes it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.ptx.checked.accesses import CheckedAccess
from tensorwasm.ptx.model import Module, Position
from tensorwasm.ptx.parser import parse
from tensorwasm.values import Deadline

MAX_RANGES: Final = 1024
MARK: Final = b"tensor-wasm-chk\0"
"""Begins the record, which is the first of the module's variables."""
_REPORT: Final = struct.Struct("<16sIIQ6I")
"""Mark, bytes of the access that is reported (0: none), what `packed` says of it, address, block and thread."""
_BOUNDS: Final = struct.Struct("<II")
"""Bytes of shared memory, and how many ranges follow."""
_RANGE: Final = struct.Struct("<QQ")
_RANGES_AT: Final = _REPORT.size + _BOUNDS.size
RECORD_BYTES: Final = _RANGES_AT + _RANGE.size * MAX_RANGES

_MASK_AT: Final = 24
_SHARED_BIT: Final = 1 << 31
_HELPER: Final = """.version 7.0
.target sm_70
.address_size 64
.global .align 16 .b8 NAME_record[{size}] = {{{mark}}};
.func NAME_access(.param .b64 NAME_p0, .param .b32 NAME_p1, .param .b32 NAME_p2)
{{
.reg .b64 %a<8>; .reg .b32 %w<4>; .reg .pred %q, %found;
ld.param.b64 %a0, [NAME_p0]; ld.param.b32 %w0, [NAME_p1]; ld.param.b32 %w1, [NAME_p2];
setp.eq.u32 %found, %w0, 0; @%found bra out;
cvt.u64.u32 %a1, %w0; mov.u64 %a2, NAME_record;
setp.lt.s32 %q, %w1, 0; @%q bra shared;
add.u64 %a1, %a0, %a1; ld.global.u32 %w2, [%a2+60]; mov.u32 %w3, 0;
again: setp.ge.u32 %q, %w3, %w2; @%q bra done;
mul.wide.u32 %a5, %w3, 16; add.u64 %a5, %a2, %a5;
ld.global.u64 %a6, [%a5+64]; ld.global.u64 %a7, [%a5+72];
setp.ge.u64 %q, %a0, %a6; setp.le.and.u64 %q, %a1, %a7, %q; setp.ge.and.u64 %q, %a1, %a0, %q;
or.pred %found, %found, %q;
add.u32 %w3, %w3, 1; bra again;
shared: and.b64 %a0, %a0, 0xffffffff; add.u64 %a1, %a0, %a1;
ld.global.u32 %w2, [%a2+56]; cvt.u64.u32 %a5, %w2; setp.le.u64 %found, %a1, %a5;
done: shr.u32 %w3, %w1, 24; and.b32 %w3, %w3, 127; cvt.u32.u64 %w2, %a0; and.b32 %w3, %w3, %w2;
setp.eq.and.u32 %found, %w3, 0, %found; @%found bra out;
atom.global.cas.b32 %w3, [%a2+16], 0, %w0; setp.ne.u32 %q, %w3, 0; @%q bra told;
st.global.u32 [%a2+20], %w1; st.global.u64 [%a2+24], %a0;
mov.u32 %w3, %ctaid.x; st.global.u32 [%a2+32], %w3; mov.u32 %w3, %ctaid.y; st.global.u32 [%a2+36], %w3;
mov.u32 %w3, %ctaid.z; st.global.u32 [%a2+40], %w3; mov.u32 %w3, %tid.x; st.global.u32 [%a2+44], %w3;
mov.u32 %w3, %tid.y; st.global.u32 [%a2+48], %w3; mov.u32 %w3, %tid.z; st.global.u32 [%a2+52], %w3;
told: trap;
out: ret;
}}
"""
"""The record, and the function that each access calls: with its address, its bytes (0: none), and `packed`."""


@dataclass(frozen=True, slots=True)
class Site:
    """An access of the program.

    Attributes:
        mnemonic: of the instruction.
        position: of it in the PTX text.
        source: file and line that the text names for it (``.loc``), empty if none.
        size_bytes: how many are accessed at most.
        kind: ``load``, ``store`` or ``atomic``.
    """

    mnemonic: str
    position: Position
    source: str
    size_bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class AccessReport:
    """The first access that was outside: where in the program, address and bytes, and the thread.

    Attributes:
        shared: whether it is of shared memory; then the address is an offset of 32 bits in what the block has.
    """

    site: int
    shared: bool
    address: int
    size_bytes: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]


def helper(name: str, deadline: Deadline) -> Module:
    """Return the record and the function of a module whose names begin with ``name``."""
    mark = ", ".join(map(str, MARK))
    return parse(_HELPER.format(size=RECORD_BYTES, mark=mark).replace("NAME", name), deadline)


def packed(site: int, access: CheckedAccess, *, shared: bool) -> int:
    """Return what tells the function of an access: its site, how it is aligned, and whether it is of shared memory.

    A text has less than 2**24 accesses, since it has at most 2**23 bytes.
    """
    return site | (access.size_bytes - 1) << _MASK_AT | (_SHARED_BIT if shared else 0)


def new_record(ranges: Sequence[tuple[int, int]], shared_bytes: int = 0) -> bytes:
    """Return what a record begins with, as far as it is used: nothing reported, and where accesses have to lie.

    Ranges that touch are one; if they are more than `MAX_RANGES`, the last ones reach over what is between them.

    Args:
        ranges: of global memory, each its start and end.
        shared_bytes: what a block has of shared memory.
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and (start <= merged[-1][1] or len(merged) == MAX_RANGES):
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    head = _REPORT.pack(MARK, 0, 0, 0, *(0,) * 6) + _BOUNDS.pack(shared_bytes, len(merged))
    return head + b"".join(_RANGE.pack(*each) for each in merged)


def read_report(record: bytes, sites: Sequence[Site]) -> AccessReport | None:
    """Return what a record reports, None if nothing, or nothing that the checks can have written."""
    mark, size_bytes, told, address, *threads = _REPORT.unpack_from(record)
    site = told % (1 << _MASK_AT)
    if mark != MARK or site >= len(sites) or not 0 < size_bytes <= sites[site].size_bytes:
        return None
    return AccessReport(site, told >= _SHARED_BIT, address, size_bytes, tuple(threads[:3]), tuple(threads[3:]))
