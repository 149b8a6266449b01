"""Work of the fake driver: streams, events, recordings, modules, launches, calls back, shares of the device."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

from fakes.driver_base import (
    CAPTURE_INVALIDATED,
    CAPTURE_ISOLATION,
    CAPTURE_UNSUPPORTED,
    CONTEXT_IS_DESTROYED,
    ILLEGAL_STATE,
    INVALID_DEVICE,
    INVALID_RESOURCE_CONFIGURATION,
    INVALID_VALUE,
    NOT_FOUND,
    NOT_READY,
    SUCCESS,
    Handle,
    entry_point,
)

NATIVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
CALL_BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PARTITION = 8
"""What a number of multiprocessors is rounded up to."""


@entry_point("cuInit", context=False)
def init(fake, flags):
    return (SUCCESS,)


@entry_point("cuDriverGetVersion", context=False)
def driver_get_version(fake):
    return SUCCESS, fake.cuda


@entry_point("cuDeviceGetCount", context=False)
def device_get_count(fake):
    return SUCCESS, fake.devices


@entry_point("cuDeviceGet", context=False)
def device_get(fake, ordinal):
    return (SUCCESS, ordinal) if ordinal < fake.devices else (INVALID_DEVICE,)


@entry_point("cuDeviceGetName", context=False)
def device_get_name(fake, length, device):
    return SUCCESS, b"NVIDIA Fake\0\0\0"


@entry_point("cuDeviceTotalMem", context=False)
def device_total_mem(fake, device):
    return SUCCESS, fake.capacity


@entry_point("cuDeviceGetAttribute", context=False)
def device_get_attribute(fake, attribute, device):
    value = fake.attributes.get(attribute.removeprefix("CU_DEVICE_ATTRIBUTE_"))
    return (INVALID_VALUE,) if value is None else (SUCCESS, value)


@entry_point("cuDevicePrimaryCtxRetain", context=False)
def device_primary_ctx_retain(fake, device):
    if not fake.primary.alive:
        fake.primary.alive = True
        fake.primary.number = fake.number()
    return SUCCESS, fake.primary


@entry_point("cuCtxGetId", context=False)
def ctx_get_id(fake, context):
    return (SUCCESS, context.number) if context.alive else (CONTEXT_IS_DESTROYED,)


@entry_point("cuCtxPushCurrent", context=False)
def ctx_push_current(fake, context):
    fake.stack().append(context)
    return (SUCCESS,)


@entry_point("cuCtxPopCurrent", context=False)
def ctx_pop_current(fake):
    return SUCCESS, fake.stack().pop()


def _resource(ids, split):
    return SimpleNamespace(sm=SimpleNamespace(smCount=len(ids)), ids=frozenset(ids), split=split)


@entry_point("cuDeviceGetDevResource", context=False)
def device_get_dev_resource(fake, device, kind):
    assert kind == "CU_DEV_RESOURCE_TYPE_SM"
    return SUCCESS, _resource(range(fake.attributes["MULTIPROCESSOR_COUNT"]), None)


@entry_point("cuDevSmResourceSplitByCount", context=False)
def dev_sm_resource_split_by_count(fake, groups, resource, flags, least):
    """Return groups of one size in order, and what is left; for 0 groups only how many there would be."""
    whole = sorted(resource.ids)
    if resource.split is not None or not 0 <= least <= len(whole):
        return (INVALID_VALUE,)
    count = max(1, -(-least // PARTITION)) * PARTITION
    most, split = len(whole) // count, object()
    made = min(groups, most) if groups else most
    cut = [_resource(whole[count * index : count * (index + 1)], split) for index in range(made)]
    empty = [_resource((), split)] * (groups - made)
    return SUCCESS, [*cut, *empty] if groups else [], made, _resource(whole[count * made :], split)


@entry_point("cuDevResourceGenerateDesc", context=False)
def dev_resource_generate_desc(fake, resources, count):
    assert len(resources) == count
    assert all(resource.ids for resource in resources)
    if count > 1 and len({resource.split for resource in resources}) > 1:
        return (INVALID_RESOURCE_CONFIGURATION,)
    return SUCCESS, resources


@entry_point("cuGreenCtxCreate", context=False)
def green_ctx_create(fake, description, device, flags):
    green = fake.make("green")
    green.multiprocessors = frozenset().union(*(resource.ids for resource in description))
    return SUCCESS, green


@entry_point("cuCtxFromGreenCtx", context=False)
def ctx_from_green_ctx(fake, green):
    green.context = Handle("context", fake.number())
    return SUCCESS, green.context


@entry_point("cuGreenCtxDestroy", context=False)
def green_ctx_destroy(fake, green):
    left = [one.kind for one in fake.handles if one is not green and one.context is green.context is not None]
    assert not left, f"left in the green context: {left}"
    if green.context is not None:
        green.context.alive = False
    return fake.drop(green)


@entry_point("cuGreenCtxStreamCreate", context=False)
def green_ctx_stream_create(fake, green, flags, priority):
    stream = fake.make("stream")
    stream.context = green.context
    return SUCCESS, stream


@entry_point("cuStreamCreate")
def stream_create(fake, flags):
    return SUCCESS, fake.make("stream")


@entry_point("cuStreamDestroy")
def stream_destroy(fake, stream):
    assert stream.nodes is None, "a stream was destroyed while it recorded"
    return fake.drop(stream)


@entry_point("cuStreamQuery")
def stream_query(fake, stream):
    return spoil(stream) or (NOT_READY if fake.busy(stream) else SUCCESS,)


@entry_point("cuStreamSynchronize")
def stream_synchronize(fake, stream):
    return spoil(stream) or (SUCCESS,)


@entry_point("cuStreamWaitEvent")
def stream_wait_event(fake, stream, event, flags):
    if stream.nodes is not None:
        stream.spoilt = True
        return (CAPTURE_ISOLATION,)
    stream.waits.append(event)
    return (SUCCESS,)


@entry_point("cuEventCreate")
def event_create(fake, flags):
    return SUCCESS, fake.make("event")


@entry_point("cuEventDestroy")
def event_destroy(fake, event):
    return fake.drop(event)


@entry_point("cuEventRecord")
def event_record(fake, event, stream):
    event.source = stream
    return spoil(stream) or (SUCCESS,)


@entry_point("cuEventQuery")
def event_query(fake, event):
    return (NOT_READY if event.source is not None and fake.busy(event.source) else SUCCESS,)


@entry_point("cuEventSynchronize")
def event_synchronize(fake, event):
    fake.on_block()
    if event.source is None or fake.busy(event.source):
        fake.wait()
    fake.on_return()
    fake.unseen.discard(event.source)
    assert event in fake.handles, "the driver does not survive an event that vanishes while a thread waits for it"
    return (SUCCESS,)


@entry_point("cuStreamBeginCapture")
def stream_begin_capture(fake, stream, mode):
    assert mode == "CU_STREAM_CAPTURE_MODE_RELAXED"
    if stream.nodes is not None:
        return (ILLEGAL_STATE,)
    stream.nodes, stream.spoilt = [], False
    return (SUCCESS,)


@entry_point("cuStreamEndCapture")
def stream_end_capture(fake, stream):
    if stream.nodes is None:
        return ILLEGAL_STATE, None
    nodes, stream.nodes = stream.nodes, None
    if stream.spoilt:
        return CAPTURE_INVALIDATED, None
    graph = fake.make("graph")
    graph.nodes = nodes
    return SUCCESS, graph


@entry_point("cuGraphInstantiate")
def graph_instantiate(fake, graph, flags):
    made = fake.make("exec")
    made.nodes = graph.nodes
    return SUCCESS, made


@entry_point("cuGraphDestroy")
def graph_destroy(fake, graph):
    return fake.drop(graph)


@entry_point("cuGraphLaunch")
def graph_launch(fake, graph, stream):
    if spoil(stream):
        return (CAPTURE_UNSUPPORTED,)
    for node in graph.nodes:
        node()
    stream.worked = True
    return (SUCCESS,)


@entry_point("cuGraphExecDestroy")
def graph_exec_destroy(fake, graph):
    return fake.drop(graph)


@entry_point("cuModuleLoadDataEx")
def module_load_data_ex(fake, image, options, keys, values):
    given = dict(zip(keys, values, strict=True))
    code = fake.failure("cuModuleLoadDataEx")
    if code:
        given["CU_JIT_ERROR_LOG_BUFFER"][: len(fake.jit_log)] = fake.jit_log
        return (code,)
    fake.images.append(image)
    module = fake.make("module")
    module.context = fake.stack()[-1]
    return SUCCESS, module


@entry_point("cuModuleUnload")
def module_unload(fake, module):
    return fake.drop(module)


@entry_point("cuModuleGetFunction")
def module_get_function(fake, module, name):
    if name.decode() == "absent":
        return (NOT_FOUND,)
    function = Handle("function", fake.number(), entry=name.decode())
    function.context = module.context
    return SUCCESS, function


@entry_point("cuFuncGetAttribute")
def func_get_attribute(fake, attribute, function):
    return SUCCESS, {
        "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 512,
        "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1024,
        "CU_FUNC_ATTRIBUTE_NUM_REGS": 32,
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": function.shared_limit,
    }[attribute]


@entry_point("cuFuncSetAttribute")
def func_set_attribute(fake, function, attribute, value):
    function.shared_limit = value
    return (SUCCESS,)


@entry_point("cuLaunchKernel")
def launch_kernel(fake, function, x, y, z, bx, by, bz, shared, stream, params, extra):
    if shared > function.shared_limit or function.context is not fake.stack()[-1]:
        return (INVALID_VALUE,)
    fake.on_launch(params)
    return fake.give(stream, lambda: fake.launches.append((function.entry, (x, y, z, bx, by, bz, shared))), work=True)


@entry_point("cuLaunchHostFunc")
def launch_host_func(fake, stream, function, argument):
    own = next(handle for handle in fake.handles if handle.number == stream)
    if spoil(own):
        return (CAPTURE_UNSUPPORTED,)

    def call_back() -> None:
        if fake.busy(own):
            fake.wait()
        CALL_BACK(function)(argument)

    threading.Thread(target=call_back).start()
    return (SUCCESS,)


@entry_point("cuGetProcAddress", context=False)
def get_proc_address(fake, symbol, version, flags):
    assert (version, flags) == (12000, 1), "the signatures of 12.0, and no default stream per thread"
    name = symbol.decode()
    if name not in fake.natives:
        fake.natives[name] = NATIVE(lambda *args: getattr(fake, name)(*args)[0])
    return SUCCESS, ctypes.cast(fake.natives[name], ctypes.c_void_p).value, "found"


def spoil(stream: Handle) -> tuple[int, ...]:
    """Return the failure of what a recording stream does not take, and spoil its recording; empty if it runs."""
    if stream.nodes is None:
        return ()
    stream.spoilt = True
    return (CAPTURE_UNSUPPORTED,)
