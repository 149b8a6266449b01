"""Exceptions in their final form: thrown, caught, uncaught, without end, and across a save."""

from pathlib import Path

import pytest
from wasmtime import wat2wasm

from tensorwasm import Runtime
from tensorwasm.errors import GuestTrap, InvalidArgs, NotCapturable, NotSupported, UnknownImport
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.values import MIB, Limits

SOON_S = 60.0
GUESTS = Path(__file__).parents[2] / "golden/wasm/guests"
TEXT = """(module (memory (export "memory") 1) (global $n (mut i32) (i32.const 0))
  (tag $e (param i32)) (tag $f) (tag $g (param exnref i64 i64 i64 i64))
  (func (export "catch") (param i32) (result i32)
    (block $h (result i32) (try_table (catch $e $h) (throw $e (local.get 0))) (i32.const -1)))
  (func $again (param i32) (local $x exnref)
    (block $h (result exnref) (try_table (catch_all_ref $h) (throw $e (local.get 0))) (return))
    (local.set $x) (global.set $n (i32.add (global.get $n) (i32.const 1))) (throw_ref (local.get $x)))
  (func (export "rethrow") (param i32) (result i32)
    (block $h (result i32) (try_table (catch $e $h) (call $again (local.get 0))) (i32.const -1)))
  (func (export "uncaught") (throw $f))
  (func (export "chain") (param i32) (result i32) (local $x exnref)
    (loop $l
      (block $h (result exnref i64 i64 i64 i64 exnref)
        (try_table (catch_ref $g $h)
          (throw $g (local.get $x) (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4))) unreachable)
      (local.set $x) drop drop drop drop drop
      (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
    (i32.const 7))
  (func (export "count") (result i32) (global.get $n))
  (func (export "grow") (result i32)
    (drop (memory.grow (i32.const 3))) (i32.store (i32.const 200000) (i32.const 9)) (memory.size))
  (func (export "load") (result i32) (i32.load (i32.const 200000)))
  (func (export "give") (result exnref) (ref.null exn)))"""
THROWS = bytes(wat2wasm(TEXT))


@pytest.fixture(scope="module", params=["off", "on"])
def runtime(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSOR_WASM_NATIVE", request.param)
        with Runtime("emulator", limits=Limits(wall_s=20, memory_bytes=16 * MIB)) as made:
            yield made


@pytest.fixture(scope="module")
def function(runtime):
    return runtime.load(THROWS, "throws")


def ways(function):
    yield lambda export, args=(): function.invoke(export, args)
    if may_have_fibers():
        yield lambda export, args=(): function.submit(export, args).result(SOON_S)
    with function.open() as live:
        yield live.call


def test_an_exception_is_caught_and_thrown_again(function):
    for call in ways(function):
        assert call("catch", (5,)).values == (5,)
        assert call("rethrow", (6,)).values == (6,)


def test_an_uncaught_exception_is_a_trap_of_its_own(function):
    for call in ways(function):
        with pytest.raises(GuestTrap, match="nothing caught") as uncaught:
            call("uncaught")
        assert uncaught.value.trap == "uncaught_exception"
        assert call("catch", (5,)).values == (5,)


def test_exceptions_without_end_are_bounded_by_the_limit_of_memory(function):
    for call in ways(function):
        assert call("chain", (1000,)).values == (7,)
        with pytest.raises(GuestTrap, match="GC heap out of memory"):
            call("chain", (3_000_000,))


def test_as_many_sandboxes_throw_as_there_are_slots():
    with Runtime("emulator", slots=24) as runtime:
        function = runtime.load(THROWS)
        alive = [function.open() for _ in range(runtime._engine.free_slots)]
        for live in alive:
            assert live.call("catch", (5,)).values == (5,)
            live.close()


def test_a_saved_state_goes_on(runtime, function, tmp_path):
    with function.open() as live:
        live.call("rethrow", (1,))
        assert live.call("grow").values == (4,)
        runtime.snapshot(live, tmp_path / "first.tws")
    for _ in range(2):
        with runtime.restore(tmp_path / "first.tws", function) as live:
            assert live.call("load").values == (9,)
            assert live.call("rethrow", (2,)).values == (2,)
            assert live.call("count").values == (2,)
            runtime.snapshot(live, tmp_path / "second.tws")
    assert runtime.invoke(tmp_path / "second.tws", function, "count").values == (2,)
    assert runtime.invoke(tmp_path / "second.tws", function, "load").values == (9,)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("(global (mut exnref) (ref.null exn))", "global 0, of type exnref"),
        ("(table 2 exnref)", "table 0, of type exnref"),
    ],
)
def test_an_instance_that_keeps_exceptions_cannot_be_saved(runtime, text, what):
    function = runtime.load(bytes(wat2wasm(f'(module {text} (func (export "main")))')))
    assert function.invoke().values == ()
    with pytest.raises(NotCapturable, match=what):
        function.open()


@pytest.mark.parametrize("memory", ["managed", "vmm"])
def test_memory_of_the_device_is_refused_by_name(function, memory):
    with pytest.raises(NotSupported, match="exceptions"):
        function.invoke("catch", (5,), grants=["cuda"], memory_kind=memory)
    with pytest.raises(NotSupported, match="exceptions"), function.open(grants=["cuda"], memory_kind=memory):
        pass


def test_kernels_and_exceptions_get_along(function):
    assert function.invoke("rethrow", (5,), grants=["cuda"]).values == (5,)


def test_an_exception_does_not_cross_the_border(function):
    with pytest.raises(InvalidArgs, match="a exnref cannot be passed"):
        function.invoke("give")


def test_an_imported_tag_is_an_unknown_import(runtime):
    with pytest.raises(UnknownImport, match=r"the tag env\.e"):
        runtime.load(bytes(wat2wasm('(module (import "env" "e" (tag (param i32))) (func (export "main")))')))


@pytest.mark.parametrize("depth", [0, 1, 50])
def test_setjmp_and_longjmp_of_clang(runtime, depth):
    function = runtime.load((GUESTS / "longjmp.wasm").read_bytes(), "longjmp")
    for call in ways(function):
        assert call("jump", (depth,)).values == (7,)
