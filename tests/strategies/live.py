"""Generators for live instances: a guest with every kind of state, and programs of calls to it."""

from __future__ import annotations

from hypothesis import strategies as st

Step = tuple[str, tuple[int | float, ...]]
"""An export and its arguments."""

GUEST = """
(module
  (import "wasi:tensor/host" "input-len" (func $input-len (result i32)))
  (import "wasi:tensor/host" "read-input" (func $read-input (param i32 i32) (result i32)))
  (type $number (func (result i32)))
  (memory (export "memory") 2 40)
  (table $t 6 30 funcref)
  (table $u 3 3 funcref)
  (global $i32 (mut i32) (i32.const 7))
  (global $i64 (mut i64) (i64.const -1))
  (global $f32 (mut f32) (f32.const nan:0x200001))
  (global $f64 (mut f64) (f64.const -0))
  (global $v128 (mut v128) (v128.const i64x2 1 2))
  (global $ref (mut funcref) (ref.func $three))
  (func $one (result i32) (i32.const 1))
  (func $two (result i32) (global.set $i32 (i32.add (global.get $i32) (i32.const 2))) (global.get $i32))
  (func $three (result i32) (i32.load (i32.const 8)))
  (elem (table $t) (i32.const 1) func $one $two $input-len)
  (elem (table $u) (i32.const 0) funcref (ref.func $two) (ref.null func))
  (elem $spare func $three $two $one)
  (data (i32.const 100) "active data")
  (data (i32.add (i32.const 100) (i32.const 200)) "more of it, where a sum says")
  (data $late "passive data, copied late")
  (data $never "never dropped")
  (start $start)
  (func $start
    (i32.store (i32.const 2000) (i32.add (i32.load (i32.const 2000)) (i32.const 1)))
    (global.set $i64 (i64.const 77)))
  (func (export "load") (param i32) (result i64) (i64.load (local.get 0)))
  (func (export "store") (param i32 i64) (i64.store (local.get 0) (local.get 1)))
  (func (export "fill") (param i32 i32 i32) (memory.fill (local.get 0) (local.get 1) (local.get 2)))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "size") (result i32) (memory.size))
  (func (export "late") (param i32 i32 i32) (memory.init $late (local.get 0) (local.get 1) (local.get 2)))
  (func (export "never") (param i32 i32 i32) (memory.init $never (local.get 0) (local.get 1) (local.get 2)))
  (func (export "drop-late") (data.drop $late))
  (func (export "spare") (param i32 i32 i32) (table.init $t $spare (local.get 0) (local.get 1) (local.get 2)))
  (func (export "drop-spare") (elem.drop $spare))
  (func (export "table-grow") (param i32) (result i32) (table.grow $t (ref.func $one) (local.get 0)))
  (func (export "table-size") (result i32) (table.size $t))
  (func (export "table-null") (param i32) (table.set $t (local.get 0) (ref.null func)))
  (func (export "table-two") (param i32) (table.set $t (local.get 0) (ref.func $two)))
  (func (export "table-ref") (param i32) (table.set $t (local.get 0) (global.get $ref)))
  (func (export "table-cross") (param i32 i32 i32)
    (table.copy $u $t (local.get 0) (local.get 1) (local.get 2)))
  (func (export "call") (param i32) (result i32) (call_indirect $t (type $number) (local.get 0)))
  (func (export "call-u") (param i32) (result i32) (call_indirect $u (type $number) (local.get 0)))
  (func (export "keep-ref") (param i32) (global.set $ref (table.get $t (local.get 0))))
  (func (export "set-i32") (param i32) (global.set $i32 (local.get 0)))
  (func (export "set-i64") (param i64) (global.set $i64 (local.get 0)))
  (func (export "scale") (param f64) (result f64)
    (global.set $f64 (f64.mul (f64.add (global.get $f64) (f64.const 1)) (local.get 0)))
    (global.set $f32 (f32.demote_f64 (global.get $f64)))
    (global.get $f64))
  (func (export "vector") (result i64)
    (global.set $v128 (i64x2.add (global.get $v128) (v128.const i64x2 0x123456789 -3)))
    (i64.xor (i64x2.extract_lane 0 (global.get $v128)) (i64x2.extract_lane 1 (global.get $v128))))
  (func (export "f32-bits") (result i32) (i32.reinterpret_f32 (global.get $f32)))
  (func (export "f64-bits") (result i64) (i64.reinterpret_f64 (global.get $f64)))
  (func (export "i64") (result i64) (global.get $i64))
  (func (export "read") (param i32 i32) (result i32) (call $read-input (local.get 0) (local.get 1)))
  (func (export "trap-midway") (param i32)
    (i32.store (local.get 0) (i32.const 0xdead)) (global.set $i32 (i32.const 13)) (unreachable)))
"""

_addresses = st.one_of(
    st.integers(0, 3000),
    st.integers(0, 3).map(lambda page: page * 65536 - 8 if page else 0),
    st.integers(2 << 16, (2 << 16) + 70_000),
    st.sampled_from([4095, 4096, 65_535, (1 << 32) - 1]),
)
_small = st.integers(0, 8)
_lengths = st.sampled_from([0, 1, 5, 13, 25, 26, 4096, 70_000])
_bits = st.integers(0, (1 << 64) - 1)

STEPS: dict[str, st.SearchStrategy[tuple[int | float, ...]]] = {
    "load": st.tuples(_addresses),
    "store": st.tuples(_addresses, _bits),
    "fill": st.tuples(_addresses, st.sampled_from([0, 0, 1, 255]), _lengths),
    "grow": st.tuples(st.sampled_from([0, 1, 3, 39])),
    "size": st.just(()),
    "late": st.tuples(_addresses, _small, _lengths),
    "never": st.tuples(_addresses, _small, _lengths),
    "drop-late": st.just(()),
    "spare": st.tuples(_small, st.integers(0, 3), st.integers(0, 3)),
    "drop-spare": st.just(()),
    "table-grow": st.tuples(st.sampled_from([0, 1, 7, 30])),
    "table-size": st.just(()),
    "table-null": st.tuples(_small),
    "table-two": st.tuples(_small),
    "table-ref": st.tuples(_small),
    "table-cross": st.tuples(st.integers(0, 3), _small, st.integers(0, 3)),
    "call": st.tuples(_small),
    "call-u": st.tuples(st.integers(0, 3)),
    "keep-ref": st.tuples(_small),
    "set-i32": st.tuples(st.integers(0, (1 << 32) - 1)),
    "set-i64": st.tuples(_bits),
    "scale": st.tuples(st.floats(width=64)),
    "vector": st.just(()),
    "f32-bits": st.just(()),
    "f64-bits": st.just(()),
    "i64": st.just(()),
    "read": st.tuples(_addresses, _lengths),
    "trap-midway": st.tuples(_addresses),
}


def steps() -> st.SearchStrategy[Step]:
    """One call, of any export with about the same chance."""
    return st.sampled_from(sorted(STEPS)).flatmap(lambda name: STEPS[name].map(lambda args: (name, args)))


def programs(max_size: int = 30) -> st.SearchStrategy[list[Step]]:
    """Calls, one after the other."""
    return st.lists(steps(), max_size=max_size)
