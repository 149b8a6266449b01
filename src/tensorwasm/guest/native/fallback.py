"""Compiled code that calls Python: the twins of host functions, and the epoch callback of visits.

What Python raises before it can catch anything is left with the thread during a visit, which ends with it; anywhere
else it is reported as ctypes would, and the guest ends with a trap all the same.
"""

from __future__ import annotations

from numba import int32

from tensorwasm.guest.native.checks import compiled, find_context, find_pad
from tensorwasm.guest.native.intrinsics import call_i32, call_u64, call_void, load_u64, store_u64
from tensorwasm.guest.native.layout import ENV, INTERPRETER, ONE, ORDER, PAD, ZERO

FOUR = ONE + ONE + ONE + ONE


@compiled
def put(interpreter: int, arguments: int, index: int, value: int) -> bool:
    """Set an item of a new tuple to a number. Return whether that could be made."""
    made = call_u64(load_u64(interpreter + INTERPRETER.to_object), (value,))
    if made == ZERO:
        return False
    call_i32(load_u64(interpreter + INTERPRETER.tuple_set), (arguments, index, made))
    return True


@compiled
def pack(interpreter: int, first: int, second: int, third: int, fourth: int) -> int:
    """Return a tuple of numbers, or 0."""
    arguments = call_u64(load_u64(interpreter + INTERPRETER.tuple_new), (FOUR,))
    if arguments == ZERO:
        return ZERO
    if (
        put(interpreter, arguments, ZERO, first)
        and put(interpreter, arguments, ONE, second)
        and put(interpreter, arguments, ONE + ONE, third)
        and put(interpreter, arguments, ONE + ONE + ONE, fourth)
    ):
        return arguments
    call_void(load_u64(interpreter + INTERPRETER.forget), (arguments,))
    return ZERO


@compiled
def call(interpreter: int, function: int, first: int, second: int, third: int, fourth: int) -> tuple[bool, int]:
    """Call a Python function with four numbers, holding the GIL. Return whether it returned, and its number."""
    forget = load_u64(interpreter + INTERPRETER.forget)
    arguments = pack(interpreter, first, second, third, fourth)
    if arguments == ZERO:
        return False, ZERO
    answer = call_u64(load_u64(interpreter + INTERPRETER.call), (function, arguments))
    call_void(forget, (arguments,))
    if answer == ZERO:
        return False, ZERO
    number = ZERO
    if answer != load_u64(interpreter + INTERPRETER.none):
        number = call_u64(load_u64(interpreter + INTERPRETER.to_number), (answer,))
    call_void(forget, (answer,))
    return True, number


@compiled
def refuse(env: int, caller: int, interpreter: int, function: int) -> int:
    """Return a trap for what could not even begin."""
    if load_u64(find_pad(env, find_context(env, caller)) + PAD.visited) == ZERO:
        call_void(load_u64(interpreter + INTERPRETER.report), (function,))
    text, text_bytes = load_u64(interpreter + INTERPRETER.text), load_u64(interpreter + INTERPRETER.text_bytes)
    return call_u64(load_u64(interpreter + INTERPRETER.trap_new), (text, text_bytes))


@compiled
def enter(env: int, function: int, caller: int, cells: int, count: int) -> int:
    """Call a trampoline. Return its trap."""
    interpreter = load_u64(env + ENV.interpreter)
    held = call_i32(load_u64(interpreter + INTERPRETER.ensure), ())
    returned, trap = call(interpreter, function, env, caller, cells, count)
    if not returned:
        trap = refuse(env, caller, interpreter, function)
    call_void(load_u64(interpreter + INTERPRETER.release), (int32(held),))
    return trap


def twin_in_python(env: int, caller: int, cells: int, count: int) -> int:
    """Be a host function that Python is."""
    return enter(env, load_u64(env + ENV.twin_object), caller, cells, count)


def finish_in_python(env: int, caller: int, cells: int, count: int) -> int:
    """Wait in Python for what compiled code has started."""
    return enter(env, load_u64(env + ENV.finish_object), caller, cells, count)


@compiled
def let_go(order: int) -> None:
    """Give the GIL up for the rest of a visit, which takes it back when it has ended."""
    store_u64(order + ORDER.thread, call_u64(load_u64(load_u64(order + ORDER.interpreter) + INTERPRETER.save), ()))


def on_epoch(context: int, order: int, delta: int, kind: int) -> int:
    """Ask Python whether a visit goes on. What Python raises before it can catch anything ends it.

    A guest that is still there after a tick goes on without the GIL. So a short one pays nothing for it: beside a busy
    thread of Python's, winning it back takes a thousand times as long as the guest.
    """
    interpreter = load_u64(order + ORDER.interpreter)
    held = call_i32(load_u64(interpreter + INTERPRETER.ensure), ())
    pad, function = load_u64(order + ORDER.pad), load_u64(order + ORDER.on_epoch_object)
    returned, error = call(interpreter, function, context, pad, delta, kind)
    if not returned:
        text = load_u64(interpreter + INTERPRETER.text)
        error = call_u64(load_u64(interpreter + INTERPRETER.error_new), (text,))
    call_void(load_u64(interpreter + INTERPRETER.release), (int32(held),))
    if load_u64(order + ORDER.thread) == ZERO:
        let_go(order)
    return error
