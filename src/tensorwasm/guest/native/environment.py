"""What compiled host functions are given besides the guest's call: addresses, so that nothing in them is a constant.

wasmtime hands a host function the ``env`` that it was defined with; here that is the address of an `Environment`. This
module needs no Numba: whoever links without compiled code still knows what there could be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.guest.engine import capi
from tensorwasm.guest.imports.host_function import ValType

SPIN_NS: Final = 5_000_000
"""A wait that sleeps comes back 0.1 to 0.4 ms late, which is a tenth of a kernel of this length."""


class Environment(ctypes.Structure):
    """Addresses for one import, each a C function.

    Attributes:
        twin: the import in Python, of the very same signature. It gets whatever compiled code does not finish, before
            that code has had any effect.
        finish: of the same signature too. It waits in Python for what compiled code has started, and writes the answer.
        caller_context: ``wasmtime_caller_context``, and so on.
        sched_yield: lets another thread have the processor, if one wants it.
        spin_ns: longest that a kernel or a copy is waited for before Python takes over; 0 does not even ask.
        compare: ``memcmp``.
        interpreter: address of the `Interpreter`, for twins that compiled code calls in Python; 0 for others.
        twin_object, finish_object: Python's functions then.
    """

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "twin",
            "finish",
            "caller_context",
            "context_get_data",
            "memory_data",
            "memory_data_size",
            "clock_gettime",
            "sched_yield",
            "spin_ns",
            "compare",
            "interpreter",
            "twin_object",
            "finish_object",
        )
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """A compiled host function.

    Attributes:
        address: of the C function ``(env, caller, cells, count) -> trap``.
        params: Wasm types that it expects.
        finish: body that waits for what the function has started, None if it starts nothing.
    """

    address: int
    params: tuple[ValType, ...]
    finish: Callable[..., int] | None = None


Entries = Mapping[tuple[str, str], Entry]
"""Compiled host functions by import module and field."""

NO_ENTRIES: Final[Entries] = {}


def address_of(function: Any) -> int:
    """Return the address of a ctypes function or callback."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_libc: Final = ctypes.CDLL(None)
_clock: Final = address_of(_libc.clock_gettime)
_yield: Final = address_of(_libc.sched_yield)
_compare: Final = address_of(_libc.memcmp)


def make_environment(twin: int, finish: int, spin_ns: int = SPIN_NS) -> Environment:
    """Return the addresses for one import; whoever defines the import keeps them alive.

    Args:
        twin: the import in Python.
        finish: what waits for it in Python, 0 if nothing has to.
        spin_ns: see `Environment`.
    """
    return Environment(
        twin=twin,
        finish=finish,
        caller_context=capi.address_of("wasmtime_caller_context"),
        context_get_data=capi.address_of("wasmtime_context_get_data"),
        memory_data=capi.address_of("wasmtime_memory_data"),
        memory_data_size=capi.address_of("wasmtime_memory_data_size"),
        clock_gettime=_clock,
        sched_yield=_yield,
        spin_ns=spin_ns,
        compare=_compare,
    )


@dataclass(frozen=True, slots=True)
class PythonCallbacks:
    """Addresses of compiled code that calls Python, for whoever links: see `tensorwasm.guest.native.fallback`."""

    twin: int
    finish: int
    on_epoch: int
