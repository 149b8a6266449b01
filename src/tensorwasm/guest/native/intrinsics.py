"""Operations of compiled code on addresses: load, store, copy, fill, call, and two atomic exchanges.

Every address and offset is a uint64; mixed with a signed number it would go through a double. Loads and stores need no
alignment, atomic operations need 8 bytes.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Intrinsic = Any  # callable from compiled code only


def _loader(kind: Any) -> Intrinsic:
    width = ir.IntType(kind.bitwidth)

    @intrinsic
    def load(_typing: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], width.as_pointer()), align=1)

        return kind(types.uint64), generate

    return load


def _storer(kind: Any) -> Intrinsic:
    width = ir.IntType(kind.bitwidth)

    @intrinsic
    def store(_typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            builder.store(args[1], builder.inttoptr(args[0], width.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, kind), generate

    return store


def _caller(result: Any) -> Intrinsic:
    width = ir.VoidType() if result == types.void else ir.IntType(result.bitwidth)

    @intrinsic
    def call(_typing: Any, function: Any, arguments: Any) -> Any:
        if not isinstance(arguments, types.BaseTuple):
            return None

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            values = [builder.extract_value(args[1], at) for at in range(len(arguments))]
            kind = ir.FunctionType(width, [value.type for value in values])
            answer = builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)
            return context.get_dummy_value() if result == types.void else answer

        return result(types.uint64, arguments), generate

    return call


load_u8: Final = _loader(types.uint8)
load_u32: Final = _loader(types.uint32)
load_u64: Final = _loader(types.uint64)
store_u8: Final = _storer(types.uint8)
store_u32: Final = _storer(types.uint32)
store_u64: Final = _storer(types.uint64)

call_void: Final = _caller(types.void)
"""``call_void(address, (arguments, ...))``: call a C function with parameters of the arguments' types."""
call_u8: Final = _caller(types.uint8)
call_i32: Final = _caller(types.int32)
call_u64: Final = _caller(types.uint64)


@intrinsic
def copy_bytes(_typing: Any, to: Any, source: Any, size_bytes: Any) -> Any:
    """Copy bytes between addresses that do not overlap."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        move = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, ir.IntType(64)])
        ends = [builder.inttoptr(address, pointer) for address in args[:2]]
        builder.call(move, [*ends, args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), generate


@intrinsic
def fill_bytes(_typing: Any, to: Any, value: Any, size_bytes: Any) -> Any:
    """Set bytes to a value."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        fill = builder.module.declare_intrinsic("llvm.memset", [pointer, ir.IntType(64)])
        builder.call(fill, [builder.inttoptr(args[0], pointer), args[1], args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint8, types.uint64), generate


@intrinsic
def exchange_u64(_typing: Any, address: Any, value: Any) -> Any:
    """Store a value and return what was there, atomically and sequentially consistent."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("xchg", pointer, args[1], "seq_cst")

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def compare_exchange_u64(_typing: Any, address: Any, expected: Any, value: Any) -> Any:
    """Store a value if the expected one is there; return what was there. Atomic and sequentially consistent."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.extract_value(builder.cmpxchg(pointer, args[1], args[2], "seq_cst", "seq_cst"), 0)

    return types.uint64(types.uint64, types.uint64, types.uint64), generate
