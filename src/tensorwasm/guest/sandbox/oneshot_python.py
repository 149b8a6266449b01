"""A visit without compiled code: Python takes the steps of `tensorwasm.guest.native.oneshot` itself, one call each.

A guest that may be long runs without the GIL. One whose place has seen only short ones keeps it: winning it back beside
a busy thread takes a thousand times as long as such a guest. If it runs long all the same, whoever waits for the GIL
gets it at every tick (`tensorwasm.guest.sandbox.state.on_epoch`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from tensorwasm.guest.engine import capi
from tensorwasm.guest.native.call_descriptor import CallDescriptor, CallStatus, Write
from tensorwasm.guest.sandbox.state import ON_EPOCH_AT

_store_new: Final = capi.bind("wasmtime_store_new")
_store_context: Final = capi.bind("wasmtime_store_context")
_store_limiter: Final = capi.bind("wasmtime_store_limiter")
_store_delete: Final = capi.bind("wasmtime_store_delete")
_store_epoch_callback: Final = capi.bind("wasmtime_store_epoch_deadline_callback")
_instantiate: Final = capi.bind("wasmtime_instance_pre_instantiate")
_global_set: Final = capi.bind("wasmtime_global_set")
_instance_export_get: Final = capi.bind("wasmtime_instance_export_get")
_set_epoch_deadline: Final = capi.bind("wasmtime_context_set_epoch_deadline")
_call: Final = capi.bind("wasmtime_func_call_unchecked")
_call_slowly: Final = capi.bind_releasing("wasmtime_func_call_unchecked")
_DONE: Final = int(CallStatus.DONE)
_VALUE: Final = Write.value.offset


def make_go(order: CallDescriptor, at: int) -> Callable[[int], int]:
    """Return what does an order, given its address, and returns a `CallStatus`.

    Args:
        order: nothing but ``keeps`` and ``ticks`` of it changes. No memory of its guests is told of to compiled code.
        at: its address.
    """
    engine, pad, prepared = order.engine, order.pad, order.prepared
    limits = order.memory_bytes, order.table_elements, 1, order.tables, 1
    calls = [(order.export, order.export_bytes, order.cell_count)]
    if order.initialiser:
        calls.insert(0, (order.initialiser, order.initialiser_bytes, 0))
    cells = order.cells
    instance, item, trap = (at + getattr(CallDescriptor, name).offset for name in ("instance", "item", "trap"))
    callee = item + capi.EXTERN_PAYLOAD_OFFSET
    writes = tuple((Write * order.write_count).from_address(order.writes)) if order.write_count else ()

    def go(_at: int) -> int:
        order.store = store = _store_new(engine, pad, None)
        order.context = context = _store_context(store)
        _store_limiter(store, *limits)
        _store_epoch_callback(store, ON_EPOCH_AT, pad, None)
        error = _instantiate(prepared, context, instance, trap)
        if error or order.trap:
            order.error = error or 0
            return CallStatus.INSTANTIATING
        for write in writes:
            if not _instance_export_get(context, instance, write.name, write.name_bytes, item):
                return CallStatus.FINDING
            order.error = _global_set(context, callee, ctypes.addressof(write) + _VALUE) or 0
            if order.error:
                return CallStatus.FINDING
        _set_epoch_deadline(context, order.ticks)
        for export, export_bytes, cell_count in calls:
            if not _instance_export_get(context, instance, export, export_bytes, item):
                return CallStatus.FINDING
            error = (_call if order.keeps else _call_slowly)(context, callee, cells, cell_count, trap)
            if error or order.trap:
                order.error = error or 0
                return CallStatus.CALLING
        order.store = order.context = 0
        _store_delete(store)
        return _DONE

    return go
