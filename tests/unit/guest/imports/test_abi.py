"""The table is whole, and what is made from it works."""

import inspect
import re
import subprocess
import sys
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
    for interface in interfaces.INTERFACES:
        assert interface.modules[0].encode() in data
        for function in interface.functions:
            assert function.core_name.encode() in data


def test_every_function_of_every_module_has_a_body_that_takes_its_parameters():
    functions = host_functions()
    assert len(functions) == 2 * 9 + 2 * 4 + 2
    assert len({(function.module, function.name) for function in functions}) == len(functions)
    for function in functions:
        signature = inspect.signature(function.body)
        before = ["call", "service"] if "service" in signature.parameters else ["call"]
        signature.bind(*before, *function.params)
        assert function.params == tuple(p.type for p in table()[function.name].params)


def table():
    return {function.core_name: function for interface in interfaces.INTERFACES for function in interface.functions}


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
        "MAX_CHUNK_BYTES": 64 << 10,
        "MAX_TOTAL_STREAM_BYTES": 64 << 20,
    }


def test_tags_are_the_wire_formats():
    rows = [(row.tag, row.name, row.value_bytes) for row in abi.ARG_TAGS]
    assert rows == [
        (1, "i32", 4), (2, "i64", 8), (3, "f32", 4), (4, "f64", 8), (5, "u32", 4), (6, "u64", 8), (7, "ptr", 8),
        (8, "buffer", 16),
    ]  # fmt: skip


def test_everything_in_the_table_is_documented():
    for interface in interfaces.INTERFACES:
        assert interface.doc
        assert all(function.doc for function in interface.functions)
    assert all(limit.doc for limit in abi.LIMITS)
    assert all(row.doc for row in abi.ARG_TAGS)


@pytest.mark.parametrize("interface", interfaces.INTERFACES, ids=lambda interface: interface.package)
def test_wit_names_are_kebab_case_and_braces_close(interface):
    text = (ROOT / "wit" / interface.package.partition(":")[2] / "world.wit").read_text()
    code = re.sub(r"//.*", "", text)
    assert code.count("{") == code.count("}")
    assert f"package {interface.package}@{interface.version};" in code
    assert f"world {interface.world} {{" in code
    names = re.findall(r"([\w-]+): ?(?:func|list|string|u\d\d|tuple|kernel-id|device-handle)", code)
    assert names
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*", name) for name in names)
    cases = re.findall(r"^ {8}([\w-]+),$", code, re.MULTILINE)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", case) for case in cases)
