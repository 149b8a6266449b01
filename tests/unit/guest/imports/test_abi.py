"""The table is whole, and what is made from it works."""

import inspect
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tensorwasm.guest.imports import abi, host_functions, interfaces
from tensorwasm.guest.imports.cuda import CODES

ROOT = Path(__file__).resolve().parents[4]
HEADER = ROOT / "guest-sdk" / "include"

GUEST = """
#include "tensorwasm.h"
static float numbers[4];
static char text[TW_MAX_RECORDED_ERROR_BYTES];
__attribute__((export_name("run"))) int run(int count)
{
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, numbers, sizeof numbers);
    tw_arg_buffer(&args, 7, 9);
    tw_arg_i32(&args, -1);
    tw_arg_i64(&args, -2);
    tw_arg_u32(&args, (uint32_t)count);
    tw_arg_u64(&args, 4);
    tw_arg_f32(&args, 1.5f);
    tw_arg_f64(&args, -2.5);
    int64_t buffer = tw_alloc(64);
    tw_write(buffer, numbers, 4);
    tw_read(numbers, buffer, 4);
    tw_free(buffer);
    tw_emit_chunk(numbers, 4);
    tw_flush();
    tw_read_input(numbers, tw_input_len());
    wasi_cuda_last_error_copy(text, (uint32_t)wasi_cuda_last_error_len());
    if (tw_yield() == TW_YIELD_STOP || tw_deadline_remaining_ms() == 0)
        return TW_ERROR_INTERNAL;
    tw_dim3 one = {1, 1, 1};
    int64_t stream = wasi_cuda_stream_create(), event = wasi_cuda_event_create(), graph;
    wasi_cuda_graph_begin(stream);
    tw_launch_async(1, one, one, 0, &args, stream);
    wasi_cuda_memcpy_h2d_async(buffer, 4, numbers, 4, stream);
    wasi_cuda_memcpy_d2h_async(numbers, buffer, 4, 4, stream);
    graph = wasi_cuda_graph_end(stream);
    wasi_cuda_graph_launch(graph, stream);
    wasi_cuda_event_record(event, stream);
    wasi_cuda_stream_wait_event(0, event);
    wasi_cuda_event_sync(event);
    wasi_cuda_stream_sync(stream);
    if (wasi_cuda_event_query(event) || wasi_cuda_stream_query(stream))
        return TW_ERROR_INTERNAL;
    wasi_cuda_graph_destroy(graph);
    wasi_cuda_event_destroy(event);
    wasi_cuda_stream_destroy(stream);
    wasi_cuda_unload(1);
    wasi_cuda_device_name(text, sizeof text);
    if (wasi_cuda_device_attribute(TW_DEVICE_WARP_SIZE) != 32)
        return TW_ERROR_INTERNAL;
    return tw_launch(wasi_cuda_load_ptx("x", 1, "e", 1), one, one, 0, &args) + wasi_cuda_sync();
}
"""


@pytest.mark.parametrize(
    "target",
    [
        ["cc", "-target", "wasm32-freestanding", "-nostdlib", "-std=c99", "-Wl,--no-entry"],
        ["cc", "-target", "wasm32-wasi", "-std=c11", "-c"],
        ["c++", "-target", "wasm32-freestanding", "-nostdlib", "-std=c++17", "-Wl,--no-entry"],
    ],
    ids=["freestanding", "wasi", "c++"],
)
def test_the_header_compiles_and_imports_what_the_host_offers(tmp_path, target):
    source, module = tmp_path / ("guest.cpp" if target[0] == "c++" else "guest.c"), tmp_path / "guest.wasm"
    source.write_text(GUEST)
    compiler = [sys.executable, "-m", "ziglang", *target, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"]
    done = subprocess.run([*compiler, f"-I{HEADER}", source, "-o", module], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = module.read_bytes()
    for interface in (interfaces.CUDA, interfaces.TENSOR, interfaces.SCHEDULER):
        assert interface.modules[0].encode() in data
        for function in interface.functions:
            assert function.core_name.encode() in data
    assert interfaces.CUDA_0_2.modules[0].encode() not in data


def test_every_function_of_every_module_has_a_body_that_takes_its_parameters():
    functions = host_functions()
    assert len(functions) == 29 + 2 * 9 + 2 * 4 + 2
    assert len({(function.module, function.name) for function in functions}) == len(functions)
    for function in functions:
        signature = inspect.signature(function.body)
        before = ["call", "service"] if "service" in signature.parameters else ["call"]
        signature.bind(*before, *function.params)
        assert function.params == tuple(p.type for p in table()[function.name].params)
        assert function.waits == table()[function.name].waits


def table():
    newest_last = reversed(interfaces.INTERFACES)
    return {function.core_name: function for interface in newest_last for function in interface.functions}


def names(module):
    return {function.name for function in host_functions() if function.module == module}


def test_older_versions_have_exactly_their_functions():
    older = {
        f"wasi_cuda_{name}"
        for name in (
            "load_ptx", "launch", "sync", "last_error_len", "last_error_copy", "alloc", "free", "memcpy_h2d",
            "memcpy_d2h",
        )
    }  # fmt: skip
    assert names("wasi:cuda/host@0.1.0") == names("wasi:cuda/host@0.2.0") == older
    assert names("wasi:cuda/host@0.3.0") > older


def test_functions_that_two_versions_have_look_alike():
    newer = {function.core_name: function for function in interfaces.CUDA.functions}
    for function in interfaces.CUDA_0_2.functions:
        inherited = newer[function.core_name]
        assert replace(inherited, errors=function.errors) == function
        assert set(inherited.errors) >= set(function.errors)


def test_functions_that_may_wait():
    waiting = {function.name.removeprefix("wasi_cuda_") for function in host_functions() if function.waits}
    assert waiting == {
        "load_ptx", "unload", "launch", "launch_async", "sync", "alloc", "free", "memcpy_h2d", "memcpy_d2h",
        "memcpy_h2d_async", "memcpy_d2h_async", "stream_create", "stream_destroy", "stream_sync", "stream_wait_event",
        "event_record", "event_sync", "graph_launch", "graph_destroy",
    }  # fmt: skip


def test_every_function_lists_its_codes_in_order():
    for interface in interfaces.INTERFACES:
        for function in interface.functions:
            assert list(function.errors) == sorted(set(function.errors), reverse=True)


def test_names_and_signatures_that_guests_rely_on():
    i, q = "i32", "i64"
    expected = {
        "wasi_cuda_load_ptx": ((i,) * 4, q),
        "wasi_cuda_launch": ((q, *(i,) * 9), i),
        "wasi_cuda_sync": ((), i),
        "wasi_cuda_last_error_len": ((), i),
        "wasi_cuda_last_error_copy": ((i, i), i),
        "wasi_cuda_alloc": ((i, i), q),
        "wasi_cuda_free": ((i, i), i),
        "wasi_cuda_memcpy_h2d": ((i,) * 4, i),
        "wasi_cuda_memcpy_d2h": ((i,) * 4, i),
        "wasi_cuda_launch_async": ((q, *(i,) * 9, q), i),
        "wasi_cuda_unload": ((q,), i),
        "wasi_cuda_memcpy_h2d_async": ((q, q, i, i, q), i),
        "wasi_cuda_memcpy_d2h_async": ((i, q, q, i, q), i),
        "wasi_cuda_stream_create": ((), q),
        "wasi_cuda_stream_destroy": ((q,), i),
        "wasi_cuda_stream_sync": ((q,), i),
        "wasi_cuda_stream_query": ((q,), i),
        "wasi_cuda_event_create": ((), q),
        "wasi_cuda_event_destroy": ((q,), i),
        "wasi_cuda_event_record": ((q, q), i),
        "wasi_cuda_stream_wait_event": ((q, q), i),
        "wasi_cuda_event_sync": ((q,), i),
        "wasi_cuda_event_query": ((q,), i),
        "wasi_cuda_graph_begin": ((q,), i),
        "wasi_cuda_graph_end": ((q,), q),
        "wasi_cuda_graph_launch": ((q, q), i),
        "wasi_cuda_graph_destroy": ((q,), i),
        "wasi_cuda_device_attribute": ((i,), q),
        "wasi_cuda_device_name": ((i, i), i),
        "emit-chunk": ((i, i), i),
        "flush": ((), i),
        "input-len": ((), i),
        "read-input": ((i, i), i),
        "yield": ((), i),
        "deadline-remaining-ms": ((), i),
    }
    assert {
        name: (tuple(param.type for param in function.params), function.result) for name, function in table().items()
    } == expected


def test_modules_that_guests_import():
    assert {function.module for function in host_functions()} == {
        "wasi:cuda/host@0.3.0",
        "wasi:cuda/host@0.2.0",
        "wasi:cuda/host@0.1.0",
        "wasi:tensor/host",
        "wasi:tensor/host@0.1.0",
        "wasi:scheduler/host@0.1.0",
    }
    for interface in interfaces.INTERFACES:
        assert f"{interface.package}/host" in interface.modules[0]
        assert any(module.endswith(f"@{interface.version}") for module in interface.modules)


def test_codes_are_the_stable_numbers():
    names = [
        "not_available", "invalid_pointer", "invalid_kernel", "malformed_ptx", "launch_failed", "quota_exceeded",
        "internal", "invalid_dimensions", "invalid_args", "kernel_args_unsupported", "invalid_handle",
    ]  # fmt: skip
    assert [(code.name.lower(), int(code)) for code in abi.Code] == [(n, -i) for i, n in enumerate(names, 1)]
    assert [int(code) for code in abi.StreamCode] == [-1, -2, -3]
    assert set(abi.CODE_DOCS) == set(abi.Code)
    assert set(abi.STREAM_CODE_DOCS) == set(abi.StreamCode)


def test_every_code_can_be_answered():
    assert set(CODES.values()) | {abi.Code.INTERNAL} == set(abi.Code)


def test_limits_are_the_abis_numbers():
    assert {limit.name: limit.value for limit in abi.LIMITS} == {
        "MAX_PTX_BYTES": 8 << 20,
        "MAX_TOTAL_PTX_BYTES": 512 << 20,
        "MAX_KERNELS_PER_INSTANCE": 256,
        "MAX_ENTRY_NAME_BYTES": 256,
        "MAX_RECORDED_ERROR_BYTES": 512,
        "MAX_BLOCK_DIM": 1024,
        "MAX_THREADS_PER_BLOCK": 1024,
        "MAX_GRID_DIM": 2**31 - 1,
        "MAX_DYNAMIC_SHARED_MEM_BYTES": 228 << 10,
        "MAX_KERNEL_ARGS": 128,
        "MAX_KERNEL_ARGS_BYTES": 4096,
        "MAX_DEVICE_ALLOC_BYTES": 256 << 20,
        "MAX_DEVICE_ALLOCS_PER_INSTANCE": 4096,
        "MAX_TOTAL_DEVICE_BYTES": 4 << 30,
        "MAX_PROCESS_DEVICE_BYTES": 64 << 30,
        "MAX_PROCESS_DEVICE_ALLOCS": 16384,
        "MAX_CONCURRENT_GPU_OPS": 256,
        "MAX_STREAMS_PER_INSTANCE": 16,
        "MAX_EVENTS_PER_INSTANCE": 256,
        "MAX_GRAPHS_PER_INSTANCE": 32,
        "MAX_GRAPH_LAUNCHES": 4096,
        "MAX_CHUNK_BYTES": 64 << 10,
        "MAX_TOTAL_STREAM_BYTES": 64 << 20,
    }


def test_tags_are_the_wire_formats():
    rows = [(row.tag, row.name, row.value_bytes) for row in abi.ARG_TAGS]
    assert rows == [
        (1, "i32", 4), (2, "i64", 8), (3, "f32", 4), (4, "f64", 8), (5, "u32", 4), (6, "u64", 8), (7, "ptr", 8),
        (8, "buffer", 16),
    ]  # fmt: skip


def test_attributes_are_the_stable_numbers():
    names = [
        "kind", "compute_capability_major", "compute_capability_minor", "ptx_isa_major", "ptx_isa_minor",
        "multiprocessors", "memory_bytes", "max_shared_bytes_per_block", "max_threads_per_block", "warp_size",
        "concurrent_managed_access",
    ]  # fmt: skip
    assert [(a.name.lower(), int(a)) for a in abi.DeviceAttribute] == [(n, i) for i, n in enumerate(names, 1)]
    assert set(abi.DEVICE_ATTRIBUTE_DOCS) == set(abi.DeviceAttribute)


def test_everything_in_the_table_is_documented():
    for interface in interfaces.INTERFACES:
        assert interface.doc
        assert all(function.doc for function in interface.functions)
    assert all(limit.doc for limit in abi.LIMITS)
    assert all(row.doc for row in abi.ARG_TAGS)


FOLDERS = ["cuda", "cuda-0.2.0", "tensor", "scheduler"]


def test_every_version_has_its_wit_package_and_nothing_else_is_there():
    assert sorted(path.name for path in (ROOT / "wit").iterdir()) == sorted(FOLDERS)


@pytest.mark.parametrize(("folder", "interface"), list(zip(FOLDERS, interfaces.INTERFACES, strict=True)))
def test_wit_names_are_kebab_case_and_braces_close(folder, interface):
    text = (ROOT / "wit" / folder / "world.wit").read_text()
    code = re.sub(r"//.*", "", text)
    assert code.count("{") == code.count("}")
    assert f"package {interface.package}@{interface.version};" in code
    assert f"world {interface.world} {{" in code
    names = re.findall(r"([\w-]+): ?(?:func|list|string|u\d\d|tuple|kernel-id|device-handle|address|[a-z]+-id)", code)
    assert names
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*", name) for name in names)
    types = re.findall(r"(?:type|enum) ([\w-]+)", code)
    functions = [function.wit[0] for function in interface.functions if function.wit]
    assert len({*types, *functions}) == len(types) + len(functions), "types and functions share one namespace"
    cases = re.findall(r"^ {8}([\w-]+),$", code, re.MULTILINE)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", case) for case in cases)
