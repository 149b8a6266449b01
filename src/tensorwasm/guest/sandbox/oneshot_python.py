"""The steps of `tensorwasm.guest.native.oneshot` in Python, one C call each, where there is no compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from tensorwasm.guest.engine import capi
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.native.structures import CallDescriptor, CallStatus, GlobalWrite
from tensorwasm.guest.sandbox.state import ON_EPOCH_AT

_VALUE: Final = GlobalWrite.value.offset


def make_executor(descriptor: CallDescriptor, at: int) -> Callable[[int], int]:
    """Return the Python form of `tensorwasm.guest.native.oneshot` for one descriptor: it returns a `CallStatus`.

    Only ``keeps`` and ``ticks`` of the descriptor may change afterwards; its ``memory`` is not read. A guest keeps the
    GIL only if its predecessors were short: taking it back beside a busy thread costs a thousand times as much as such
    a guest. If it runs long all the same, other threads get the GIL at every tick.
    """
    engine, layout, linked, cells = descriptor.engine, descriptor.layout, descriptor.prepared, descriptor.cells
    limits = descriptor.memory_bytes, descriptor.table_elements, 1, descriptor.tables, 1
    calls = [(descriptor.export, descriptor.export_bytes, descriptor.cell_count)]
    if descriptor.initialiser:
        calls.insert(0, (descriptor.initialiser, descriptor.initialiser_bytes, 0))
    instance, item, trap = (at + getattr(CallDescriptor, name).offset for name in ("instance", "item", "trap"))
    callee = item + capi.EXTERN_PAYLOAD_OFFSET
    new_store, delete_store = KEEPING.wasmtime_store_new, KEEPING.wasmtime_store_delete  # local names are fast
    find_context, set_deadline = KEEPING.wasmtime_store_context, KEEPING.wasmtime_context_set_epoch_deadline
    limit, set_callback = KEEPING.wasmtime_store_limiter, KEEPING.wasmtime_store_epoch_deadline_callback
    instantiate, find = KEEPING.wasmtime_instance_pre_instantiate, KEEPING.wasmtime_instance_export_get
    call_keeping, call_releasing = KEEPING.wasmtime_func_call_unchecked, RELEASING.wasmtime_func_call_unchecked
    writes = (
        tuple((GlobalWrite * descriptor.write_count).from_address(descriptor.writes)) if descriptor.write_count else ()
    )

    def execute(_at: int) -> int:
        descriptor.store = store = new_store(engine, layout, None)
        descriptor.context = context = find_context(store)
        limit(store, *limits)
        set_callback(store, ON_EPOCH_AT, layout, None)
        error = instantiate(linked, context, instance, trap)
        if error or descriptor.trap:
            descriptor.error = error or 0
            return CallStatus.INSTANTIATING
        for write in writes:
            if not find(context, instance, write.name, write.name_bytes, item):
                return CallStatus.FINDING
            descriptor.error = KEEPING.wasmtime_global_set(context, callee, ctypes.addressof(write) + _VALUE) or 0
            if descriptor.error:
                return CallStatus.FINDING
        set_deadline(context, descriptor.ticks)
        call = call_keeping if descriptor.keeps else call_releasing
        for export, export_bytes, cell_count in calls:
            if not find(context, instance, export, export_bytes, item):
                return CallStatus.FINDING
            error = call(context, callee, cells, cell_count, trap)
            if error or descriptor.trap:
                descriptor.error = error or 0
                return CallStatus.CALLING
        descriptor.store = descriptor.context = 0
        delete_store(store)
        return 0  # CallStatus.DONE, without the enum's cost

    return execute
