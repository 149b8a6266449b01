from __future__ import annotations

import threading
from itertools import starmap

import pytest
from hypothesis import HealthCheck, example, given, settings

from strategies import guest as gen
from tensorwasm.errors import InternalError, InvalidPointer, QuotaExceeded, UnknownImport
from tensorwasm.guest.engine import codec
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker

CALLS_F = '(module (import "h" "f" (func $f)) (func (export "go") (call $f)))'


def host(body, params=(), results=()):
    return HostFunction("h", "f", params, results, body)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '(module (import "wasi:cuda/host@0.2.0" "sync" (func)))',
            r"wasi:cuda/host@0.2.0.sync, which is of no interface that is here",
        ),
        ('(module (import "h" "g" (func)))', r"h.g, which does not exist in that interface"),
        ('(module (import "h" "f" (func (param i32))))', r"h.f as \(i32\) -> \(\); it is \(\) -> \(\)"),
        ('(module (import "h" "f" (global i32)))', r"the global h.f; only functions"),
        ('(module (import "env" "memory" (memory 1)))', r"the memory env.memory; only functions"),
        ('(module (import "env" "t" (table 1 funcref)))', r"the table env.t"),
        ('(module (import "wasi_snapshot_preview1" "fd_fly" (func)))', r"fd_fly, which does not exist"),
        ('(module (import "wasi_snapshot_preview1" "fd_close" (func)))', r"imports do not fit"),
        (
            '(module (import "wasi_unstable" "fd_close" (func (param i32) (result i32))))',
            r"those that are \(.*preview1",
        ),
        ('(module (import "a\\nb\\00" "\\07" (func)))', r"imports a\\nb\\x00\.\\x07, which"),
    ],
)
def test_an_import_that_is_not_there_is_named(engine, wat, text, message):
    linker = Linker(engine, [host(lambda _call: None)])
    with pytest.raises(UnknownImport, match=message) as caught:
        linker.prepare(compile_module(engine, wat(text)))
    assert caught.value.message.isprintable()


def test_wasi_can_be_withheld(engine, wat):
    module = compile_module(engine, wat('(module (import "wasi_snapshot_preview1" "sched_yield" (func (result i32))))'))
    assert Linker(engine).prepare(module).needs_wasi
    with pytest.raises(UnknownImport, match="enable WASI"):
        Linker(engine, wasi_preview1=False).prepare(module)


def test_two_host_functions_of_one_name_are_refused(engine):
    with pytest.raises(InternalError, match=r"two host functions are called h\.f"):
        Linker(engine, [host(print), host(repr)])


def test_a_module_of_another_engine_is_refused(engine, wat):
    other = Engine.shared(EngineConfig(slots=8))
    with pytest.raises(InternalError, match="another engine"):
        Linker(engine).prepare(compile_module(other, wat("(module)")))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(frame=gen.frames())
def test_values_cross_the_border_unchanged(spawn, frame):
    kinds, cells = [kind for kind, _ in frame], [cell for _, cell in frame]
    values = codec.decode(kinds, cells)
    instance = spawn(gen.identity_wat(kinds))
    assert codec.encode(kinds, instance.call("same", values)) == cells
    instance.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(frame=gen.frames(4), answer=gen.typed_cells())
def test_host_functions_get_and_give_typed_values(spawn, frame, answer):
    kinds, cells = [kind for kind, _ in frame], [cell for _, cell in frame]
    values = codec.decode(kinds, cells)
    (result_kind, result_cell) = answer
    [result] = codec.decode([result_kind], [result_cell])
    seen: list[object] = []

    def body(_call, *params):
        seen.extend(params)
        return result

    params = " ".join(f"(param {kind})" for kind in kinds)
    gets = " ".join(f"(local.get {index})" for index in range(len(kinds)))
    instance = spawn(
        f'(module (import "h" "f" (func $f {params} (result {result_kind})))'
        f'(func (export "go") {params} (result {result_kind}) (call $f {gets})))',
        host(body, tuple(kinds), (result_kind,)),
    )
    returned = instance.call("go", values)
    # Host functions take and give floats, whose NaN payload an f32 may lose on the way; the value stays a NaN.
    assert [repr(value) for value in seen] == [repr(value) for value in values]
    assert [repr(value) for value in returned] == [repr(result)]
    instance.close()


def test_our_own_error_ends_the_call_as_it_is(spawn):
    error = QuotaExceeded("too much")

    def body(_call):
        raise error

    instance = spawn(CALLS_F, host(body))
    with pytest.raises(QuotaExceeded) as caught:
        instance.call("go")
    assert caught.value is error
    with pytest.raises(QuotaExceeded):
        instance.call("go")


def test_any_other_exception_is_a_bug_of_the_host(spawn):
    instance = spawn(CALLS_F, host(lambda _call: 1 // 0))
    with pytest.raises(InternalError, match=r"host function h\.f failed: ZeroDivisionError") as caught:
        instance.call("go")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_a_request_to_stop_the_program_passes_through(spawn, signal):
    def body(_call):
        raise signal

    with pytest.raises(signal):
        spawn(CALLS_F, host(body)).call("go")


@pytest.mark.parametrize("answer", [None, "1", 1.5, object()])
def test_a_result_of_the_wrong_type_is_a_bug_of_the_host(spawn, answer):
    wat = '(module (import "h" "f" (func $f (result i32))) (func (export "go") (result i32) (call $f)))'
    with pytest.raises(InternalError, match="TypeError"):
        spawn(wat, host(lambda _call: answer, (), ("i32",))).call("go")


def test_the_start_function_may_call_the_host_and_its_memory(spawn):
    seen = []
    spawn(
        '(module (import "h" "f" (func $f)) (memory (export "memory") 1) (data (i32.const 4) "hi") (start $f))',
        host(lambda call: seen.append(call.memory.read(4, 2))),
    )
    assert seen == [b"hi"]


def test_services_reach_the_host_function_of_their_own_sandbox(engine, wat):
    seen = []
    linker = Linker(engine, [host(lambda call: seen.append((call.service("name"), call.service("other"))))])
    prepared = linker.prepare(compile_module(engine, wat(CALLS_F)))
    with Instance(prepared, services={"name": 1}) as one, Instance(prepared, services={"name": 2}) as two:
        one.call("go")
        two.call("go")
        one.call("go")
    assert seen == [(1, None), (2, None), (1, None)]


def test_a_guest_without_memory_has_none(spawn):
    instance = spawn(CALLS_F, host(lambda call: call.memory))
    with pytest.raises(InvalidPointer, match="exports no memory"):
        instance.call("go")
    confusing = '(module (import "h" "f" (func $f)) (func (export "memory")) (func (export "go") (call $f)))'
    with pytest.raises(InvalidPointer, match="is not a memory"):
        spawn(confusing, host(lambda call: call.memory)).call("go")


def test_errors_of_16_threads_never_mix(engine, wat):
    def body(call):
        raise QuotaExceeded(str(call.service("id")))

    prepared = Linker(engine, [host(body)]).prepare(compile_module(engine, wat(CALLS_F)))
    mixed: list[str] = []
    barrier = threading.Barrier(16)

    def work(number: int) -> None:
        with Instance(prepared, services={"id": number}) as instance:
            barrier.wait()
            for _ in range(200):
                try:
                    instance.call("go")
                except QuotaExceeded as error:
                    if error.message != str(number):
                        mixed.append(error.message)
                else:
                    mixed.append("no error")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mixed == []


def quiet(kind, bits):
    """Return the bits of a result that crosses Python, whose floats hold no signalling NaN of 32 bits."""
    return bits | 1 << 22 if kind == "f32" and bits & 0x7FFFFFFF > 0x7F800000 else bits


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(frame=gen.frames())
@example(frame=[("f32", 0x7F800001)])
def test_a_host_function_may_return_several_values(spawn, frame):
    kinds, cells = [kind for kind, _ in frame], [cell for _, cell in frame]
    values = codec.decode(kinds, cells)
    results = f"(result i64 i64 {' '.join(kinds)})"
    text = f'(module (import "h" "f" (func $f {results})) (func (export "go") {results} call $f))'
    instance = spawn(text, host(lambda _call: (-5, 6, *values), results=("i64", "i64", *kinds)))
    assert codec.encode(["i64", "i64", *kinds], instance.call("go")) == [(1 << 64) - 5, 6, *starmap(quiet, frame)]
    instance.close()
