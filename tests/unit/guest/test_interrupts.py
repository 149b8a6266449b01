from __future__ import annotations

import _thread
import itertools
import signal
import threading
from collections.abc import Callable

import pytest

from tensorwasm.errors import InternalError
from tensorwasm.guest.imports.host_function import HostFunction

PATIENCE_S = 20.0
WAT = """(module (import "h" "f" (func $f (result i32)))
  (func (export "once") (result i32) (call $f))
  (func (export "spin") (drop (call $f)) (loop (br 0)))
  (func (export "calls") (loop (br_if 0 (i32.eq (i32.const 1) (call $f)))) unreachable))"""


def host(body):
    return HostFunction("h", "f", (), ("i32",), body)


@pytest.mark.parametrize("export", ["spin", "calls"])
def test_ctrl_c_ends_a_guest_on_the_main_thread(spawn, capfd, interrupt_handler, export):
    entered = threading.Event()

    def body(_call) -> int:
        entered.set()
        return 1

    instance = spawn(WAT, host(body))

    def interrupt() -> None:
        entered.wait(PATIENCE_S)
        _thread.interrupt_main()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        instance.call(export)
    interrupter.join()
    assert instance.call("once") == [1]
    assert "ignored" not in capfd.readouterr().err


def test_ctrl_c_raises_inside_the_body_of_a_host_function(spawn, interrupt_handler):
    after = []

    def body(_call) -> int:
        _thread.interrupt_main()
        after.append(sum(range(100)))
        return 1

    with pytest.raises(KeyboardInterrupt):
        spawn(WAT, host(body)).call("once")
    assert not after


def test_ctrl_c_passes_through_a_sandbox_within_a_sandbox(spawn, interrupt_handler):
    def interrupt(_call) -> int:
        _thread.interrupt_main()
        return 1

    inner = spawn(WAT, host(interrupt))
    with pytest.raises(KeyboardInterrupt):
        spawn(WAT, host(lambda _call: inner.call("once")[0])).call("once")


def test_a_handler_that_does_not_raise_disturbs_nothing(spawn):
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:

        def body(_call) -> int:
            _thread.interrupt_main()
            return 1

        assert spawn(WAT, host(body)).call("once") == [1]
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_a_guest_is_not_begun_where_callbacks_could_not_begin(spawn, capfd):
    instance = spawn(WAT, host(lambda _call: 1))
    outcomes = set()

    def descend(depth: int, at_the_bottom: Callable[[], None]) -> None:
        if depth:
            descend(depth - 1, at_the_bottom)
        else:
            at_the_bottom()

    def call() -> None:
        try:
            outcomes.add(tuple(instance.call("once")))
        except (RecursionError, InternalError) as error:
            outcomes.add(type(error))

    def fits(depth: int) -> bool:
        try:
            descend(depth, lambda: None)
        except RecursionError:
            return False
        return True

    too_deep = next(depth for depth in itertools.count() if not fits(depth))
    for depth in range(too_deep - 100, too_deep):
        try:
            descend(depth, call)
        except RecursionError:
            outcomes.add("too deep for this test itself")
    assert outcomes <= {(1,), RecursionError, InternalError, "too deep for this test itself"}
    assert RecursionError in outcomes
    assert "ignored" not in capfd.readouterr().err
    assert instance.call("once") == [1]
