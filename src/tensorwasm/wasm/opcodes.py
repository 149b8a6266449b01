"""The table of instructions: code, name, and the kinds of the immediates behind the code.

Rows are runs: the first code, the kinds of immediates, and names by ascending code; ``-`` is a code without an
instruction. Codes above 0xFF have the prefix 0xFC or 0xFD in their upper half.

Source: Wasm core 2.0, 5.4; the proposals tail call, memory64, multi-memory, relaxed SIMD and exception handling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NUMERIC_PREFIX: Final = 0xFC
VECTOR_PREFIX: Final = 0xFD
PREFIXES: Final = (NUMERIC_PREFIX, VECTOR_PREFIX)

_FC: Final = NUMERIC_PREFIX << 16
_FD: Final = VECTOR_PREFIX << 16

_RUNS: Final[tuple[tuple[int, str, str], ...]] = (
    (0x00, "", "unreachable nop"),
    (0x02, "block", "block loop if"),
    (0x05, "", "else"),
    (0x08, "index", "throw"),
    (0x0A, "", "throw_ref"),
    (0x0B, "", "end"),
    (0x0C, "index", "br br_if"),
    (0x0E, "labels", "br_table"),
    (0x0F, "", "return"),
    (0x10, "index", "call"),
    (0x11, "index index", "call_indirect"),
    (0x12, "index", "return_call"),
    (0x13, "index index", "return_call_indirect"),
    (0x1A, "", "drop select"),
    (0x1C, "types", "select_t"),
    (0x1F, "block catches", "try_table"),
    (0x20, "index", "local.get local.set local.tee global.get global.set table.get table.set"),
    (0x28, "memarg", "i32.load i64.load f32.load f64.load"),
    (0x2C, "memarg", "i32.load8_s i32.load8_u i32.load16_s i32.load16_u"),
    (0x30, "memarg", "i64.load8_s i64.load8_u i64.load16_s i64.load16_u i64.load32_s i64.load32_u"),
    (0x36, "memarg", "i32.store i64.store f32.store f64.store i32.store8 i32.store16"),
    (0x3C, "memarg", "i64.store8 i64.store16 i64.store32"),
    (0x3F, "index", "memory.size memory.grow"),
    (0x41, "i32", "i32.const"),
    (0x42, "i64", "i64.const"),
    (0x43, "f32", "f32.const"),
    (0x44, "f64", "f64.const"),
    (0x45, "", "i32.eqz i32.eq i32.ne i32.lt_s i32.lt_u i32.gt_s i32.gt_u i32.le_s i32.le_u i32.ge_s i32.ge_u"),
    (0x50, "", "i64.eqz i64.eq i64.ne i64.lt_s i64.lt_u i64.gt_s i64.gt_u i64.le_s i64.le_u i64.ge_s i64.ge_u"),
    (0x5B, "", "f32.eq f32.ne f32.lt f32.gt f32.le f32.ge f64.eq f64.ne f64.lt f64.gt f64.le f64.ge"),
    (0x67, "", "i32.clz i32.ctz i32.popcnt i32.add i32.sub i32.mul i32.div_s i32.div_u i32.rem_s i32.rem_u"),
    (0x71, "", "i32.and i32.or i32.xor i32.shl i32.shr_s i32.shr_u i32.rotl i32.rotr"),
    (0x79, "", "i64.clz i64.ctz i64.popcnt i64.add i64.sub i64.mul i64.div_s i64.div_u i64.rem_s i64.rem_u"),
    (0x83, "", "i64.and i64.or i64.xor i64.shl i64.shr_s i64.shr_u i64.rotl i64.rotr"),
    (0x8B, "", "f32.abs f32.neg f32.ceil f32.floor f32.trunc f32.nearest f32.sqrt"),
    (0x92, "", "f32.add f32.sub f32.mul f32.div f32.min f32.max f32.copysign"),
    (0x99, "", "f64.abs f64.neg f64.ceil f64.floor f64.trunc f64.nearest f64.sqrt"),
    (0xA0, "", "f64.add f64.sub f64.mul f64.div f64.min f64.max f64.copysign"),
    (0xA7, "", "i32.wrap_i64 i32.trunc_f32_s i32.trunc_f32_u i32.trunc_f64_s i32.trunc_f64_u"),
    (0xAC, "", "i64.extend_i32_s i64.extend_i32_u i64.trunc_f32_s i64.trunc_f32_u i64.trunc_f64_s i64.trunc_f64_u"),
    (0xB2, "", "f32.convert_i32_s f32.convert_i32_u f32.convert_i64_s f32.convert_i64_u f32.demote_f64"),
    (0xB7, "", "f64.convert_i32_s f64.convert_i32_u f64.convert_i64_s f64.convert_i64_u f64.promote_f32"),
    (0xBC, "", "i32.reinterpret_f32 i64.reinterpret_f64 f32.reinterpret_i32 f64.reinterpret_i64"),
    (0xC0, "", "i32.extend8_s i32.extend16_s i64.extend8_s i64.extend16_s i64.extend32_s"),
    (0xD0, "reference", "ref.null"),
    (0xD1, "", "ref.is_null"),
    (0xD2, "index", "ref.func"),
    (_FC | 0x00, "", "i32.trunc_sat_f32_s i32.trunc_sat_f32_u i32.trunc_sat_f64_s i32.trunc_sat_f64_u"),
    (_FC | 0x04, "", "i64.trunc_sat_f32_s i64.trunc_sat_f32_u i64.trunc_sat_f64_s i64.trunc_sat_f64_u"),
    (_FC | 0x08, "index index", "memory.init"),
    (_FC | 0x09, "index", "data.drop"),
    (_FC | 0x0A, "index index", "memory.copy"),
    (_FC | 0x0B, "index", "memory.fill"),
    (_FC | 0x0C, "index index", "table.init"),
    (_FC | 0x0D, "index", "elem.drop"),
    (_FC | 0x0E, "index index", "table.copy"),
    (_FC | 0x0F, "index", "table.grow table.size table.fill"),
    (_FD | 0x00, "memarg", "v128.load v128.load8x8_s v128.load8x8_u v128.load16x4_s v128.load16x4_u"),
    (_FD | 0x05, "memarg", "v128.load32x2_s v128.load32x2_u"),
    (_FD | 0x07, "memarg", "v128.load8_splat v128.load16_splat v128.load32_splat v128.load64_splat v128.store"),
    (_FD | 0x0C, "bytes16", "v128.const i8x16.shuffle"),
    (_FD | 0x0E, "", "i8x16.swizzle i8x16.splat i16x8.splat i32x4.splat i64x2.splat f32x4.splat f64x2.splat"),
    (_FD | 0x15, "lane", "i8x16.extract_lane_s i8x16.extract_lane_u i8x16.replace_lane"),
    (_FD | 0x18, "lane", "i16x8.extract_lane_s i16x8.extract_lane_u i16x8.replace_lane"),
    (_FD | 0x1B, "lane", "i32x4.extract_lane i32x4.replace_lane i64x2.extract_lane i64x2.replace_lane"),
    (_FD | 0x1F, "lane", "f32x4.extract_lane f32x4.replace_lane f64x2.extract_lane f64x2.replace_lane"),
    (_FD | 0x23, "", "i8x16.eq i8x16.ne i8x16.lt_s i8x16.lt_u i8x16.gt_s i8x16.gt_u"),
    (_FD | 0x29, "", "i8x16.le_s i8x16.le_u i8x16.ge_s i8x16.ge_u"),
    (_FD | 0x2D, "", "i16x8.eq i16x8.ne i16x8.lt_s i16x8.lt_u i16x8.gt_s i16x8.gt_u"),
    (_FD | 0x33, "", "i16x8.le_s i16x8.le_u i16x8.ge_s i16x8.ge_u"),
    (_FD | 0x37, "", "i32x4.eq i32x4.ne i32x4.lt_s i32x4.lt_u i32x4.gt_s i32x4.gt_u"),
    (_FD | 0x3D, "", "i32x4.le_s i32x4.le_u i32x4.ge_s i32x4.ge_u"),
    (_FD | 0x41, "", "f32x4.eq f32x4.ne f32x4.lt f32x4.gt f32x4.le f32x4.ge"),
    (_FD | 0x47, "", "f64x2.eq f64x2.ne f64x2.lt f64x2.gt f64x2.le f64x2.ge"),
    (_FD | 0x4D, "", "v128.not v128.and v128.andnot v128.or v128.xor v128.bitselect v128.any_true"),
    (_FD | 0x54, "memarg lane", "v128.load8_lane v128.load16_lane v128.load32_lane v128.load64_lane"),
    (_FD | 0x58, "memarg lane", "v128.store8_lane v128.store16_lane v128.store32_lane v128.store64_lane"),
    (_FD | 0x5C, "memarg", "v128.load32_zero v128.load64_zero"),
    (_FD | 0x5E, "", "f32x4.demote_f64x2_zero f64x2.promote_low_f32x4"),
    (_FD | 0x60, "", "i8x16.abs i8x16.neg i8x16.popcnt i8x16.all_true i8x16.bitmask"),
    (_FD | 0x65, "", "i8x16.narrow_i16x8_s i8x16.narrow_i16x8_u f32x4.ceil f32x4.floor f32x4.trunc f32x4.nearest"),
    (_FD | 0x6B, "", "i8x16.shl i8x16.shr_s i8x16.shr_u i8x16.add i8x16.add_sat_s i8x16.add_sat_u"),
    (_FD | 0x71, "", "i8x16.sub i8x16.sub_sat_s i8x16.sub_sat_u f64x2.ceil f64x2.floor"),
    (_FD | 0x76, "", "i8x16.min_s i8x16.min_u i8x16.max_s i8x16.max_u f64x2.trunc i8x16.avgr_u"),
    (_FD | 0x7C, "", "i16x8.extadd_pairwise_i8x16_s i16x8.extadd_pairwise_i8x16_u"),
    (_FD | 0x7E, "", "i32x4.extadd_pairwise_i16x8_s i32x4.extadd_pairwise_i16x8_u"),
    (_FD | 0x80, "", "i16x8.abs i16x8.neg i16x8.q15mulr_sat_s i16x8.all_true i16x8.bitmask"),
    (_FD | 0x85, "", "i16x8.narrow_i32x4_s i16x8.narrow_i32x4_u"),
    (_FD | 0x87, "", "i16x8.extend_low_i8x16_s i16x8.extend_high_i8x16_s"),
    (_FD | 0x89, "", "i16x8.extend_low_i8x16_u i16x8.extend_high_i8x16_u"),
    (_FD | 0x8B, "", "i16x8.shl i16x8.shr_s i16x8.shr_u i16x8.add i16x8.add_sat_s i16x8.add_sat_u"),
    (_FD | 0x91, "", "i16x8.sub i16x8.sub_sat_s i16x8.sub_sat_u f64x2.nearest i16x8.mul"),
    (_FD | 0x96, "", "i16x8.min_s i16x8.min_u i16x8.max_s i16x8.max_u - i16x8.avgr_u"),
    (_FD | 0x9C, "", "i16x8.extmul_low_i8x16_s i16x8.extmul_high_i8x16_s"),
    (_FD | 0x9E, "", "i16x8.extmul_low_i8x16_u i16x8.extmul_high_i8x16_u"),
    (_FD | 0xA0, "", "i32x4.abs i32x4.neg - i32x4.all_true i32x4.bitmask - -"),
    (_FD | 0xA7, "", "i32x4.extend_low_i16x8_s i32x4.extend_high_i16x8_s"),
    (_FD | 0xA9, "", "i32x4.extend_low_i16x8_u i32x4.extend_high_i16x8_u"),
    (_FD | 0xAB, "", "i32x4.shl i32x4.shr_s i32x4.shr_u i32x4.add - - i32x4.sub - - - i32x4.mul"),
    (_FD | 0xB6, "", "i32x4.min_s i32x4.min_u i32x4.max_s i32x4.max_u i32x4.dot_i16x8_s"),
    (_FD | 0xBC, "", "i32x4.extmul_low_i16x8_s i32x4.extmul_high_i16x8_s"),
    (_FD | 0xBE, "", "i32x4.extmul_low_i16x8_u i32x4.extmul_high_i16x8_u"),
    (_FD | 0xC0, "", "i64x2.abs i64x2.neg - i64x2.all_true i64x2.bitmask - -"),
    (_FD | 0xC7, "", "i64x2.extend_low_i32x4_s i64x2.extend_high_i32x4_s"),
    (_FD | 0xC9, "", "i64x2.extend_low_i32x4_u i64x2.extend_high_i32x4_u"),
    (_FD | 0xCB, "", "i64x2.shl i64x2.shr_s i64x2.shr_u i64x2.add - - i64x2.sub - - - i64x2.mul"),
    (_FD | 0xD6, "", "i64x2.eq i64x2.ne i64x2.lt_s i64x2.gt_s i64x2.le_s i64x2.ge_s"),
    (_FD | 0xDC, "", "i64x2.extmul_low_i32x4_s i64x2.extmul_high_i32x4_s"),
    (_FD | 0xDE, "", "i64x2.extmul_low_i32x4_u i64x2.extmul_high_i32x4_u"),
    (_FD | 0xE0, "", "f32x4.abs f32x4.neg - f32x4.sqrt f32x4.add f32x4.sub f32x4.mul f32x4.div"),
    (_FD | 0xE8, "", "f32x4.min f32x4.max f32x4.pmin f32x4.pmax"),
    (_FD | 0xEC, "", "f64x2.abs f64x2.neg - f64x2.sqrt f64x2.add f64x2.sub f64x2.mul f64x2.div"),
    (_FD | 0xF4, "", "f64x2.min f64x2.max f64x2.pmin f64x2.pmax"),
    (_FD | 0xF8, "", "i32x4.trunc_sat_f32x4_s i32x4.trunc_sat_f32x4_u f32x4.convert_i32x4_s f32x4.convert_i32x4_u"),
    (_FD | 0xFC, "", "i32x4.trunc_sat_f64x2_s_zero i32x4.trunc_sat_f64x2_u_zero"),
    (_FD | 0xFE, "", "f64x2.convert_low_i32x4_s f64x2.convert_low_i32x4_u"),
    (_FD | 0x100, "", "i8x16.relaxed_swizzle i32x4.relaxed_trunc_f32x4_s i32x4.relaxed_trunc_f32x4_u"),
    (_FD | 0x103, "", "i32x4.relaxed_trunc_f64x2_s_zero i32x4.relaxed_trunc_f64x2_u_zero"),
    (_FD | 0x105, "", "f32x4.relaxed_madd f32x4.relaxed_nmadd f64x2.relaxed_madd f64x2.relaxed_nmadd"),
    (_FD | 0x109, "", "i8x16.relaxed_laneselect i16x8.relaxed_laneselect"),
    (_FD | 0x10B, "", "i32x4.relaxed_laneselect i64x2.relaxed_laneselect"),
    (_FD | 0x10D, "", "f32x4.relaxed_min f32x4.relaxed_max f64x2.relaxed_min f64x2.relaxed_max"),
    (_FD | 0x111, "", "i16x8.relaxed_q15mulr_s i16x8.relaxed_dot_i8x16_i7x16_s i32x4.relaxed_dot_i8x16_i7x16_add_s"),
)


@dataclass(frozen=True, slots=True)
class Opcode:
    """One instruction's form.

    Attributes:
        prefix: 0xFC or 0xFD, or 0 for a code of one byte.
        code: the byte, or the number after the prefix.
        name: that of the text format, except ``select_t``, which is ``select`` with types.
        immediates: their kinds in order, those of `tensorwasm.wasm.instructions`.
    """

    prefix: int
    code: int
    name: str
    immediates: tuple[str, ...]


OPCODES: Final = tuple(
    Opcode(code >> 16, code & 0xFFFF, name, tuple(kinds.split()))
    for first, kinds, names in _RUNS
    for code, name in enumerate(names.split(), first)
    if name != "-"
)
BY_NAME: Final = {opcode.name: opcode for opcode in OPCODES}
