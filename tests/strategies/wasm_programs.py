"""Programs that run: functions of random statements over a memory, globals, tables and segments, all private."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

ACTIVE_DATA, PASSIVE_DATA = (0, 1), (2, 3)
ACTIVE_ELEMENTS, PASSIVE_ELEMENTS = (0,), (1, 2)
FUNCTIONS = 4
LEAVES = 4
SLOTS = 6
PRIVATE = ("i32", "i64", "f32", "f64")
"""Globals 1 to 4, by type; global 0 is exported as ``seen``, 5 is a ``v128``, 6 a ``funcref``."""

_HEAD = """(module
  (memory (export "memory") 1 4)
  (table $t 6 funcref) (table $u 3 externref)
  (global $seen (export "seen") (mut i32) (i32.const 7))
  (global $i32 (mut i32) (i32.const -5)) (global $i64 (mut i64) (i64.const 1234567890123))
  (global $f32 (mut f32) (f32.const 1.5)) (global $f64 (mut f64) (f64.const -0.0))
  (global $v128 (mut v128) (v128.const i64x2 3 4)) (global $ref (mut funcref) (ref.func $leaf0))
  (data (i32.const 8) "active one") (data (i32.const 70) "active two") (data "passive one") (data "passive two")
  (elem (table $t) (i32.const 1) func $leaf0 $leaf1) (elem func $leaf2 $leaf3 $leaf0) (elem func $leaf1)
  (type $leaf (func (result i32)))
"""

small = st.integers(0, 6)
slots = st.integers(0, SLOTS)  # one of them is out of bounds
addresses = st.integers(0, 300)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)
data_segments = st.sampled_from(ACTIVE_DATA + PASSIVE_DATA)
element_segments = st.sampled_from(ACTIVE_ELEMENTS + PASSIVE_ELEMENTS)
leaves = st.integers(0, LEAVES - 1)


def said(template: str, **values: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries(values).map(lambda chosen: template.format(**chosen))


NUMERIC = (
    said("(i32.store (i32.const {at}) (i32.const {value}))", at=addresses, value=numbers),
    said("(i64.store8 (i32.const {at}) (i64.extend_i32_u (global.get $i32)))", at=addresses),
    said("(global.set $seen (i32.add (global.get $seen) (i32.load (i32.const {at}))))", at=addresses),
    said("(global.set $i32 (i32.mul (global.get $i32) (i32.const {value})))", value=numbers),
    said("(global.set $i64 (i64.rotl (global.get $i64) (i64.const {value})))", value=numbers),
    said("(global.set $f32 (f32.add (global.get $f32) (f32.const {value})))", value=numbers),
    said("(global.set $f64 (f64.sub (global.get $f64) (f64.const {value})))", value=numbers),
    said("(global.set $v128 (i32x4.add (global.get $v128) (i32x4.splat (i32.const {value}))))", value=numbers),
    said("(v128.store (i32.const {at}) (global.get $v128))", at=addresses),
    said("(f64.store (i32.const {at}) (f64.promote_f32 (global.get $f32)))", at=addresses),
    said("(global.set $seen (memory.grow (i32.const {by})))", by=st.integers(0, 1)),
    said("(data.drop {segment})", segment=data_segments),
    said("(elem.drop {segment})", segment=element_segments),
    said(
        "(memory.init {segment} (i32.const {at}) (i32.const {start}) (i32.const {length}))",
        segment=data_segments,
        at=addresses,
        start=small,
        length=small,
    ),
)
TABLES = (
    said("(table.set $t (i32.const {slot}) (ref.func $leaf{leaf}))", slot=slots, leaf=leaves),
    said("(table.set $t (i32.const {slot}) (global.get $ref))", slot=slots),
    said("(global.set $ref (table.get $t (i32.const {slot})))", slot=slots),
    said("(global.set $seen (table.grow $t (ref.null func) (i32.const {by})))", by=st.integers(0, 1)),
    said("(global.set $seen (call_indirect $t (type $leaf) (i32.const {slot})))", slot=slots),
    said(
        "(table.init $t {segment} (i32.const {at}) (i32.const {start}) (i32.const {length}))",
        segment=element_segments,
        at=slots,
        start=small,
        length=small,
    ),
)


def _function(number: int, statements: list[str]) -> str:
    nested = "\n".join(
        f"(if (i32.and (global.get $seen) (i32.const 1)) (then {statement}))" if index % 3 == 2 else statement
        for index, statement in enumerate(statements)
    )
    return f'(func (export "f{number}") (result i32) (local i32) (local i64 i64) {nested} (global.get $seen))'


@dataclass(frozen=True)
class Program:
    """A module's text, and the exported functions to call in turn."""

    text: str
    calls: tuple[str, ...]


@st.composite
def programs(draw, *, with_tables: bool = True):
    """Draw a program whose private state is in memory, globals and dropped segments, and in tables if asked."""
    statements = st.lists(st.one_of(*NUMERIC, *(TABLES if with_tables else ())), max_size=6)
    functions = [_function(number, draw(statements)) for number in range(FUNCTIONS)]
    leaves = [f"(func $leaf{number} (result i32) (i32.const {100 + number}))" for number in range(LEAVES)]
    start = "(func $start (global.set $i32 (i32.add (global.get $i32) (i32.const 1)))) (start $start)"
    text = _HEAD + "\n".join([*leaves, *functions, start]) + ")"
    calls = draw(st.lists(st.sampled_from([f"f{number}" for number in range(FUNCTIONS)]), max_size=12))
    return Program(text, tuple(calls))
