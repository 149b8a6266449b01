import pytest

from tensorwasm.errors import (
    CapacityExhausted,
    GuestTrap,
    InternalError,
    InvalidSnapshot,
    InvokeTimeout,
    NotCapturable,
)
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.values import Deadline, Limits

GUEST = """
(module
  (import "host" "seven" (func $seven (result i32)))
  (import "host" "eight" (func $eight (result i32)))
  (type $number (func (result i32)))
  (func $one (export "f2") (result i32) (i32.const 1))
  (func $two (export "f3") (result i32) (i32.const 2))
  (export "f0" (func $seven))
  (export "f1" (func $eight))
  (memory (export "memory") 2)
  (table (export "table") 6 100 funcref)
  (elem (i32.const 1) $seven $one $two $eight)
  (global (export "v128") (mut v128) (v128.const i64x2 1 -2))
  (global (export "i32") (mut i32) (i32.const -5))
  (global (export "i64") (mut i64) (i64.const -5))
  (global (export "f32") (mut f32) (f32.const nan:0x200001))
  (global (export "f64") (mut f64) (f64.const -0x1p-3))
  (global $ref (export "ref") (mut funcref) (ref.func $two))
  (global (export "null") (mut funcref) (ref.null func))
  (global (export "constant") i32 (i32.const 9))
  (func (export "call") (param i32) (result i32) (call_indirect (type $number) (local.get 0)))
  (func (export "call-ref") (result i32)
    (table.set (i32.const 0) (global.get $ref))
    (call_indirect (type $number) (i32.const 0))))
"""
BITS = {"i32": 32, "i64": 64, "f32": 32, "f64": 64, "v128": 128}
NAMES = ("f0", "f1", "f2", "f3")
ANSWERS = {"f0": 7, "f1": 8, "f2": 1, "f3": 2}


@pytest.fixture
def guest(spawn):
    return spawn(
        GUEST,
        HostFunction("host", "seven", (), ("i32",), lambda _: 7),
        HostFunction("host", "eight", (), ("i32",), lambda _: 8),
        limits=Limits(table_elements=50),
    )


@pytest.fixture
def exports(guest):
    with guest.resting() as found:
        yield found


def test_functions_are_known_by_the_same_number_wherever_they_are(exports):
    numbers = {name: exports.function(name) for name in NAMES}
    assert len(set(numbers.values())) == 4
    assert exports.read_table("table") == [0, *(numbers[name] for name in ("f0", "f2", "f3", "f1")), 0]
    assert exports.read_global("ref", "funcref") == numbers["f3"]
    assert exports.read_global("null", "funcref") == 0


def test_globals_are_read_to_the_bit(exports):
    read = {kind: exports.read_global(kind, kind) for kind in BITS}
    assert read == {
        "i32": 0xFFFF_FFFB,
        "i64": 0xFFFF_FFFF_FFFF_FFFB,
        "f32": 0x7FA0_0001,
        "f64": 0xBFC0_0000_0000_0000,
        "v128": 0xFFFF_FFFF_FFFF_FFFE_0000_0000_0000_0001,
    }


def test_globals_keep_every_bit_that_is_set(exports):
    for kind, width in BITS.items():
        for bits in (0, 1, (1 << width) - 1, 1 << (width - 1), 0x7FA0_0001, 0x5555_5555):
            exports.write_global(kind, kind, bits)
            assert exports.read_global(kind, kind) == bits


@pytest.mark.parametrize(("kind", "bits"), [("i32", 1 << 32), ("i64", -1), ("f32", 1 << 32), ("v128", 1 << 128)])
def test_bits_that_do_not_fit_are_refused(exports, kind, bits):
    before = exports.read_global(kind, kind)
    with pytest.raises(InvalidSnapshot):
        exports.write_global(kind, kind, bits)
    assert exports.read_global(kind, kind) == before


def test_a_guest_calls_what_its_tables_and_globals_were_made_to_point_to(guest):
    with guest.resting() as exports:
        elements = dict(enumerate(NAMES, start=10))
        exports.write_table("table", {1: None, **elements}, 14)
        exports.point_global("ref", "f1")
        assert len(exports.read_table("table")) == 14
        assert exports.read_table("table")[9:] == [0, *map(exports.function, NAMES)]
    for index, name in elements.items():
        assert guest.call("call", [index]) == [ANSWERS[name]]
    with pytest.raises(GuestTrap, match="indirect_call_to_null"):
        guest.call("call", [1])
    assert guest.call("call-ref") == [8]
    with guest.resting() as exports:
        exports.point_global("ref", None)
        assert exports.read_global("ref", "funcref") == 0


def test_a_table_grows_within_the_limits_only(exports):
    exports.write_table("table", {}, 50)
    with pytest.raises(CapacityExhausted):
        exports.write_table("table", {}, 51)
    assert len(exports.read_table("table")) == 50


def test_memory_is_found(exports, guest):
    assert exports.memory("memory") == (guest.memory.address, 2 << 16)


def test_a_missing_export_or_one_of_another_kind_is_an_internal_error_that_names_it(exports):
    for find in (exports.memory, exports.function, exports.read_table):
        with pytest.raises(InternalError, match="not there"):
            find("nothing")
        with pytest.raises(InternalError, match="another kind"):
            find("i32")
    with pytest.raises(InternalError, match="i64"):
        exports.read_global("i32", "i64")
    with pytest.raises(InternalError, match="refused"):
        exports.write_global("constant", "i32", 1)


def test_calls_and_access_to_exports_exclude_each_other(spawn):
    seen: list[BaseException] = []

    def look(_: object) -> int:
        try:
            with guest.resting():
                pass
        except NotCapturable as error:
            seen.append(error)
        return 0

    guest = spawn(
        '(module (import "h" "f" (func $f (result i32))) (func (export "run") (result i32) (call $f)))',
        HostFunction("h", "f", (), ("i32",), look),
    )
    guest.call("run")
    assert "call is in progress" in seen[0].message
    with guest.resting(), pytest.raises(InvokeTimeout):
        guest.call("run", deadline=Deadline.after(0.01))
    assert guest.call("run") == [0]


def test_a_closed_sandbox_is_not_looked_into(guest):
    guest.close()
    with pytest.raises(NotCapturable, match="closed"), guest.resting():
        pass
