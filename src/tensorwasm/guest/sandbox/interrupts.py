"""Signals that arrive while a guest runs on the main thread.

Python runs signal handlers on the main thread, between two bytecodes. At the beginning of a callback from C, nothing
can catch what a handler raises (`KeyboardInterrupt`): ctypes prints it and returns garbage, which wasmtime would use as
a pointer. So while a guest runs, every handler is wrapped: what it raises is kept, the guest is stopped at its next
clock check, and the call raises it. In the body of a host function, where raising is safe, handlers raise directly.

Handlers of real-time signals are not wrapped: they must not raise while a guest runs on the main thread.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the functions of `signal` without its enums, which cost forty times as much
import signal
import threading
from collections.abc import Callable, Mapping
from itertools import islice
from types import FrameType
from typing import Any, Final

from tensorwasm.guest.sandbox.state import GuestState

_FIRST_REAL_TIME: Final = 32
_NUMBERS: Final = tuple(sorted(int(number) for number in signal.valid_signals() if number < _FIRST_REAL_TIME))


def shielded(state: GuestState, function: Callable[..., Any], *args: object) -> Any:
    """Call a C function that runs a guest; what a signal's handler raises meanwhile becomes ``state.error``."""
    if threading.get_ident() != threading.main_thread().ident:
        return function(*args)
    handlers = _find_handlers()
    changed = 0

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            handlers[number](number, frame)
        except BaseException as error:
            if state.interruptible:
                raise
            state.error = error  # raised when the call returns

    def restore() -> None:
        for number, handler in islice(handlers.items(), changed):
            _signal.signal(number, handler)

    try:
        for number in handlers:
            changed += 1
            _signal.signal(number, handle)
        return function(*args)
    finally:
        try:
            restore()
        except BaseException:
            restore()  # a handler that was back already raised; the others must come back too
            raise


_Handlers = Mapping[int, Callable[[int, FrameType | None], Any]]
_seen: tuple[list[object], _Handlers] = [], {}
"""Every signal's handler when one was last looked for, and which of them are Python's. Handlers seldom change."""


def _find_handlers() -> _Handlers:
    global _seen  # noqa: PLW0603 - the main thread alone comes here
    found = [*map(_signal.getsignal, _NUMBERS)]
    if found != _seen[0]:
        handlers = {number: handler for number, handler in zip(_NUMBERS, found, strict=True) if callable(handler)}
        _seen = found, handlers
    return _seen[1]
