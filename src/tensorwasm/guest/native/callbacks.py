"""Compiled code that calls Python: the fallbacks of host functions, and the epoch callback of one-shot calls.

An exception that Python code could not catch stays with the thread during a one-shot call, which ends with it; outside
one it is reported as by ctypes. The guest ends with a trap in both cases.
"""

from __future__ import annotations

from numba import int32

from tensorwasm.guest.native.checks import compiled, find_context, find_session
from tensorwasm.guest.native.intrinsics import call_i32, call_u64, call_void, load_u64, store_u64
from tensorwasm.guest.native.layout import CALL, ENV, INTERPRETER, ONE, SESSION, ZERO

FOUR = ONE + ONE + ONE + ONE


@compiled
def put(interpreter: int, arguments: int, index: int, value: int) -> bool:
    """Set an item of a new tuple to a number. Return whether memory sufficed."""
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
def call_python(interpreter: int, function: int, first: int, second: int, third: int, fourth: int) -> tuple[bool, int]:
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
def make_trap(env: int, caller: int, interpreter: int, function: int) -> int:
    """Return the trap of a Python function that raised; report its exception outside a one-shot call."""
    if load_u64(find_session(env, find_context(env, caller)) + SESSION.visited) == ZERO:
        call_void(load_u64(interpreter + INTERPRETER.report), (function,))
    text, text_bytes = load_u64(interpreter + INTERPRETER.text), load_u64(interpreter + INTERPRETER.text_bytes)
    return call_u64(load_u64(interpreter + INTERPRETER.trap_new), (text, text_bytes))


@compiled
def call_trampoline(env: int, function: int, caller: int, cells: int, count: int) -> int:
    """Call a Python trampoline with the GIL. Return its trap."""
    interpreter = load_u64(env + ENV.interpreter)
    held = call_i32(load_u64(interpreter + INTERPRETER.ensure), ())
    returned, trap = call_python(interpreter, function, env, caller, cells, count)
    if not returned:
        trap = make_trap(env, caller, interpreter, function)
    call_void(load_u64(interpreter + INTERPRETER.release), (int32(held),))
    return trap


def fallback_in_python(env: int, caller: int, cells: int, count: int) -> int:
    """Run a host function in Python."""
    return call_trampoline(env, load_u64(env + ENV.fallback_object), caller, cells, count)


def finish_in_python(env: int, caller: int, cells: int, count: int) -> int:
    """Wait in Python for work that compiled code has started."""
    return call_trampoline(env, load_u64(env + ENV.finish_object), caller, cells, count)


@compiled
def release_gil(call: int) -> None:
    """Release the GIL for the rest of a one-shot call, which takes it back at its end."""
    store_u64(call + CALL.thread, call_u64(load_u64(load_u64(call + CALL.interpreter) + INTERPRETER.save), ()))


def on_epoch(context: int, call: int, delta: int, kind: int) -> int:
    """Ask Python whether a one-shot call goes on; an exception ends it.

    A guest that still runs goes on without the GIL; taking that back costs a thousand times a shorter guest.
    """
    interpreter = load_u64(call + CALL.interpreter)
    held = call_i32(load_u64(interpreter + INTERPRETER.ensure), ())
    session, function = load_u64(call + CALL.layout), load_u64(call + CALL.on_epoch_object)
    returned, error = call_python(interpreter, function, context, session, delta, kind)
    if not returned:
        error = call_u64(load_u64(interpreter + INTERPRETER.error_new), (load_u64(interpreter + INTERPRETER.text),))
    call_void(load_u64(interpreter + INTERPRETER.release), (int32(held),))
    if load_u64(call + CALL.thread) == ZERO:
        release_gil(call)
    return error
