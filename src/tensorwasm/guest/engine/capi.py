"""wasmtime's C API: the only module that touches its bindings.

`KEEPING` has the functions that return in a microsecond: the GIL is kept. `RELEASING` has those that run guest code or
take long: the GIL is released, and taking it back beside one busy Python thread costs a switch interval of 5 ms.
Pointers are plain integers, and null is None or 0.

Everything relied on is in the tables below. Importing this with another release of wasmtime raises `EngineMismatch`;
the tables are compared with the installed bindings before anything is compiled.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tensorwasm.errors import EngineMismatch

WASMTIME_VERSION: Final = "50.0.1"

# name -> (result, arguments). p pointer, z size_t, b bool, B u8, I u32, i i32, L u64, l i64, v nothing.
_CONFIG_FLAGS: Final = """
concurrency_support cranelift_nan_canonicalization epoch_interruption gc_support memory_init_cow memory_may_move
parallel_compilation shared_memory wasm_branch_hinting wasm_bulk_memory wasm_compact_imports wasm_component_model
wasm_component_model_accessors wasm_component_model_async wasm_component_model_async_stackful
wasm_component_model_canonical_names wasm_component_model_implements wasm_component_model_map
wasm_component_model_more_async_builtins wasm_custom_page_sizes wasm_exceptions wasm_function_references wasm_gc
wasm_memory64 wasm_multi_memory wasm_multi_value wasm_reference_types wasm_relaxed_simd
wasm_relaxed_simd_deterministic wasm_simd wasm_stack_switching wasm_tail_call wasm_threads wasm_wide_arithmetic
"""
_POOL_NUMBERS: Final = {
    "async_stack_keep_resident": "z",
    "linear_memory_keep_resident": "z",
    "max_core_instance_size": "z",
    "max_memories_per_module": "I",
    "max_memory_size": "z",
    "max_tables_per_module": "I",
    "table_elements": "z",
    "table_keep_resident": "z",
    "total_core_instances": "I",
    "total_gc_heaps": "I",
    "total_memories": "I",
    "total_stacks": "I",
    "total_tables": "I",
}
FUNCTIONS: Final[dict[str, tuple[str, str]]] = {
    **{f"wasmtime_config_{flag}_set": ("v", "pb") for flag in _CONFIG_FLAGS.split()},
    **{f"wasmtime_pooling_allocation_config_{name}_set": ("v", "p" + code) for name, code in _POOL_NUMBERS.items()},
    "wasi_config_delete": ("v", "p"),
    "wasi_config_inherit_stderr": ("v", "p"),
    "wasi_config_inherit_stdin": ("v", "p"),
    "wasi_config_inherit_stdout": ("v", "p"),
    "wasi_config_new": ("p", ""),
    "wasi_config_preopen_dir": ("b", "pppb"),
    "wasi_config_set_argv": ("b", "pzp"),
    "wasi_config_set_env": ("b", "pzpp"),
    "wasi_config_set_stderr_custom": ("v", "pppp"),
    "wasi_config_set_stdin_bytes": ("v", "pp"),
    "wasi_config_set_stdout_custom": ("v", "pppp"),
    "wasm_byte_vec_delete": ("v", "p"),
    "wasm_byte_vec_new": ("v", "pzp"),
    "wasm_config_new": ("p", ""),
    "wasm_engine_new_with_config": ("p", "p"),
    "wasm_frame_func_index": ("I", "p"),
    "wasm_frame_module_offset": ("z", "p"),
    "wasm_frame_vec_delete": ("v", "p"),
    "wasm_functype_delete": ("v", "p"),
    "wasm_functype_new": ("p", "pp"),
    "wasm_trap_delete": ("v", "p"),
    "wasm_trap_trace": ("v", "pp"),
    "wasm_valtype_new": ("p", "B"),
    "wasm_valtype_vec_new": ("v", "pzp"),
    "wasmtime_call_future_delete": ("v", "p"),
    "wasmtime_call_future_poll": ("b", "p"),
    "wasmtime_caller_context": ("p", "p"),
    "wasmtime_caller_export_get": ("b", "ppzp"),
    "wasmtime_config_async_stack_size_set": ("v", "pz"),
    "wasmtime_config_host_memory_creator_set": ("v", "pp"),
    "wasmtime_config_max_wasm_stack_set": ("v", "pz"),
    "wasmtime_config_memory_guard_size_set": ("v", "pL"),
    "wasmtime_config_memory_reservation_for_growth_set": ("v", "pL"),
    "wasmtime_config_memory_reservation_set": ("v", "pL"),
    "wasmtime_config_strategy_set": ("v", "pB"),
    "wasmtime_context_epoch_deadline_async_yield_and_update": ("p", "pL"),
    "wasmtime_context_get_data": ("p", "p"),
    "wasmtime_context_take_exception": ("b", "pp"),
    "wasmtime_context_set_epoch_deadline": ("v", "pL"),
    "wasmtime_context_set_wasi": ("p", "pp"),
    "wasmtime_engine_increment_epoch": ("v", "p"),
    "wasmtime_error_delete": ("v", "p"),
    "wasmtime_error_message": ("v", "pp"),
    "wasmtime_error_new": ("p", "p"),
    "wasmtime_exnref_unroot": ("v", "p"),
    "wasmtime_extern_delete": ("v", "p"),
    "wasmtime_frame_func_name": ("p", "p"),
    "wasmtime_func_call_async": ("p", "pppzpzpp"),
    "wasmtime_func_call_unchecked": ("p", "pppzp"),
    "wasmtime_func_to_raw": ("p", "pp"),
    "wasmtime_global_get": ("v", "ppp"),
    "wasmtime_global_set": ("p", "ppp"),
    "wasmtime_instance_export_get": ("b", "pppzp"),
    "wasmtime_instance_pre_delete": ("v", "p"),
    "wasmtime_instance_pre_instantiate": ("p", "pppp"),
    "wasmtime_instance_pre_instantiate_async": ("p", "ppppp"),
    "wasmtime_linker_allow_shadowing": ("v", "pb"),
    "wasmtime_linker_define_async_func": ("p", "ppzpzpppp"),
    "wasmtime_linker_define_func_unchecked": ("p", "ppzpzpppp"),
    "wasmtime_linker_define_wasi": ("p", "p"),
    "wasmtime_linker_delete": ("v", "p"),
    "wasmtime_linker_instantiate_pre": ("p", "ppp"),
    "wasmtime_linker_new": ("p", "p"),
    "wasmtime_memory_data": ("p", "pp"),
    "wasmtime_memory_data_size": ("z", "pp"),
    "wasmtime_memory_grow": ("p", "ppLp"),
    "wasmtime_module_delete": ("v", "p"),
    "wasmtime_module_deserialize": ("p", "ppzp"),
    "wasmtime_module_deserialize_file": ("p", "ppp"),
    "wasmtime_module_new": ("p", "ppzp"),
    "wasmtime_module_serialize": ("p", "pp"),
    "wasmtime_pooling_allocation_config_delete": ("v", "p"),
    "wasmtime_pooling_allocation_config_new": ("p", ""),
    "wasmtime_pooling_allocation_strategy_set": ("v", "pp"),
    "wasmtime_store_context": ("p", "p"),
    "wasmtime_store_delete": ("v", "p"),
    "wasmtime_store_epoch_deadline_callback": ("v", "pppp"),
    "wasmtime_store_limiter": ("v", "plllll"),
    "wasmtime_store_new": ("p", "ppp"),
    "wasmtime_table_get": ("b", "ppLp"),
    "wasmtime_table_grow": ("p", "ppLpp"),
    "wasmtime_table_set": ("p", "ppLp"),
    "wasmtime_table_size": ("L", "pp"),
    "wasmtime_trap_code": ("b", "pp"),
    "wasmtime_trap_new": ("p", "pz"),
}
# Callbacks: where the bindings declare them (function and argument, or structure and member), result, arguments. A
# pointer result is a size_t to ctypes, which cannot return pointers from callbacks.
CALLBACKS: Final[dict[str, tuple[str, int | str, str, str]]] = {
    "async host function": ("wasmtime_linker_define_async_func", 6, "v", "pppzpzpp"),
    "continuation": ("wasmtime_async_continuation_t", "callback", "b", "p"),
    "host function": ("wasmtime_linker_define_func_unchecked", 6, "z", "pppz"),
    "epoch": ("wasmtime_store_epoch_deadline_callback", 1, "z", "pppp"),
    "output": ("wasi_config_set_stdout_custom", 1, "l", "ppz"),
}
# Structures: bytes, and the offset of a member where one is read.
SIZES: Final = {
    "wasm_byte_vec_t": 16,
    "wasm_frame_vec_t": 16,
    "wasm_valtype_vec_t": 16,
    "wasmtime_async_continuation_t": 24,
    "wasmtime_exnref_t": 24,
    "wasmtime_extern_t": 32,
    "wasmtime_func_t": 16,
    "wasmtime_global_t": 24,
    "wasmtime_instance_t": 16,
    "wasmtime_linear_memory_t": 32,
    "wasmtime_memory_creator_t": 24,
    "wasmtime_memory_t": 24,
    "wasmtime_table_t": 24,
    "wasmtime_val_raw_t": 16,
    "wasmtime_val_t": 32,
}
EXTERN_PAYLOAD_OFFSET: Final = 8
VALUE_PAYLOAD_OFFSET: Final = 8
CELL_BYTES: Final = SIZES["wasmtime_val_raw_t"]
EXTERN_MEMORY: Final = 3
VALUE_KINDS: Final = {"i32": 0, "i64": 1, "f32": 2, "f64": 3}
GLOBAL_KINDS: Final = {**VALUE_KINDS, "v128": 4, "funcref": 5}
STRATEGY_CRANELIFT: Final = 1
EPOCH_CONTINUE: Final = 0

_CTYPES: Final[dict[str, Any]] = {
    "p": ctypes.c_void_p,
    "z": ctypes.c_size_t,
    "b": ctypes.c_bool,
    "B": ctypes.c_uint8,
    "I": ctypes.c_uint32,
    "L": ctypes.c_uint64,
    "l": ctypes.c_int64,
    "v": None,
}

HOST_FUNCTION: Final = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
"""``(env, caller, cells, cell_count) -> trap or None``."""
EPOCH_CALLBACK: Final = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
"""``(context, data, delta, kind) -> error or None``."""
OUTPUT_CALLBACK: Final = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
"""``(data, bytes, length) -> bytes taken, or a negative errno``."""


def describe_type(kind: Any) -> str:
    """Return a ctypes type as ``ptr``, ``void``, ``bool`` or a width such as ``u32``."""
    if kind is None:
        return "void"
    code = getattr(kind, "_type_", None)
    if code == "?":
        return "bool"
    if isinstance(code, str) and code in "BHILQbhilq":
        return f"{'u' if code.isupper() else 'i'}{ctypes.sizeof(kind) * 8}"
    return "ptr"


def find_mismatches(bindings: Any) -> list[str]:
    """Compare the tables above with ``wasmtime._bindings`` or a stand-in. Returns one sentence per difference."""
    return [*_function_mismatches(bindings), *_callback_mismatches(bindings), *_size_mismatches(bindings)]


def _function_mismatches(bindings: Any) -> Iterator[str]:
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(bindings, "_" + name, None)
        if function is None:
            yield f"{name} is missing"
        else:
            yield from _compare(name, result + arguments, (function.restype, *function.argtypes))


def _callback_mismatches(bindings: Any) -> Iterator[str]:
    for name, (owner, place, result, arguments) in CALLBACKS.items():
        callback = _declared(bindings, owner, place)
        kinds = (getattr(callback, "_restype_", None), *getattr(callback, "_argtypes_", ()))
        yield from _compare(f"the {name} callback", result + arguments, kinds)


def _compare(name: str, codes: str, kinds: Iterable[Any]) -> Iterator[str]:
    expected, actual = [describe_type(_CTYPES[code]) for code in codes], [describe_type(kind) for kind in kinds]
    if expected != actual:
        yield f"{name} is {_spell(actual)}, not {_spell(expected)}"


def _declared(bindings: Any, owner: str, place: int | str) -> Any:
    if isinstance(place, str):
        return dict(getattr(getattr(bindings, owner, None), "_fields_", ())).get(place)
    argtypes = getattr(getattr(bindings, "_" + owner, None), "argtypes", ())
    return argtypes[place] if len(argtypes) > place else None


def _size_mismatches(bindings: Any) -> Iterator[str]:
    for name, size in SIZES.items():
        structure = getattr(bindings, name, None)
        actual = ctypes.sizeof(structure) if structure is not None else 0
        if actual != size:
            yield f"{name} has {actual} bytes, not {size}"
    for name, offset in {"wasmtime_extern_t": EXTERN_PAYLOAD_OFFSET, "wasmtime_val_t": VALUE_PAYLOAD_OFFSET}.items():
        if getattr(getattr(getattr(bindings, name, None), "of", None), "offset", -1) != offset:
            yield f"{name} has its payload elsewhere than at {offset}"


def _spell(kinds: list[str]) -> str:
    return f"{kinds[0]}({', '.join(kinds[1:])})"


_REMEDY: Final = f"install the one this release is written for: pip install wasmtime=={WASMTIME_VERSION}"
_LIBRARIES: Final = {"darwin": "_libwasmtime.dylib", "win32": "_wasmtime.dll"}


def _load() -> str:
    """Return the path of the installed wasmtime's library, without its bindings, which are slow to import."""
    found = importlib.util.find_spec("wasmtime")
    folder = next(iter(found.submodule_search_locations or ()), "") if found is not None else ""
    installed = WASMTIME_VERSION if os.path.isdir(f"{folder}-{WASMTIME_VERSION}.dist-info") else _find_version()  # noqa: PTH112 - as above
    if installed != WASMTIME_VERSION:
        raise EngineMismatch(f"wasmtime {installed} is installed; {_REMEDY}")
    name = _LIBRARIES.get(sys.platform, "_libwasmtime.so")
    for part in os.listdir(folder) if folder else ():  # noqa: PTH208 - as above
        path = os.path.join(folder, part, name)  # noqa: PTH118 - as above
        if part.startswith(f"{sys.platform}-") and os.path.isfile(path):  # noqa: PTH113 - as above
            return path
    raise EngineMismatch(f"wasmtime cannot be loaded (it has no {name}); {_REMEDY}")


def _find_version() -> str:
    from importlib import metadata  # noqa: PLC0415 - slow to import, and seldom asked

    try:
        return metadata.version("wasmtime")
    except ImportError as error:
        raise EngineMismatch(f"wasmtime cannot be loaded ({type(error).__name__}); {_REMEDY}") from error


@functools.cache
def check_bindings() -> None:
    """Compare the tables with the installed bindings, once in a process. Raises `EngineMismatch` if they differ."""
    try:
        from wasmtime import _bindings  # noqa: PLC0415 - a missing or foreign wasmtime must become our error
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise EngineMismatch(f"wasmtime cannot be loaded ({type(error).__name__}); {_REMEDY}") from error
    mismatches = find_mismatches(_bindings)
    if mismatches:
        raise EngineMismatch(f"wasmtime's C API differs: {'; '.join(mismatches[:5])}; {_REMEDY}")


_LONG_RUNNING: Final = (
    "wasi_config_preopen_dir",
    "wasm_engine_new_with_config",
    "wasmtime_call_future_delete",
    "wasmtime_call_future_poll",
    "wasmtime_func_call_unchecked",
    "wasmtime_instance_pre_instantiate",
    "wasmtime_module_delete",
    "wasmtime_module_deserialize",
    "wasmtime_module_new",
    "wasmtime_store_delete",
)
LIBRARY: Final = _load()
"""Path of wasmtime's library."""
_KEEPING: Final = ctypes.PyDLL(LIBRARY)
_RELEASING: Final = ctypes.CDLL(LIBRARY)


def bind(name: str, library: ctypes.CDLL = _KEEPING) -> Callable[..., Any]:
    """Return a C function of the table, which keeps the GIL while it runs unless the library is another."""
    result, arguments = FUNCTIONS[name]
    function = library[name]
    function.restype = _CTYPES[result]
    function.argtypes = [_CTYPES[code] for code in arguments]
    return function


_SETTINGS: Final = ("wasm_config_", "wasmtime_config_", "wasmtime_pooling_")  # bound when an engine is made
# Attributes of classes, because those are what the interpreter finds fastest.
KEEPING: Final[Any] = type("Keeping", (), {name: bind(name) for name in FUNCTIONS if not name.startswith(_SETTINGS)})
"""The C functions by name; the GIL is kept while one runs."""
RELEASING: Final[Any] = type("Releasing", (), {name: bind(name, _RELEASING) for name in _LONG_RUNNING})
"""Those that may run long; the GIL is released meanwhile."""


def address_of(name: str) -> int:
    """Return the address of a C function, for other C code to call."""
    return ctypes.cast(_KEEPING[name], ctypes.c_void_p).value or 0


def take_error(error: int) -> str:
    """Return an error's text and free the error.

    The text may hold names that a guest chose and, with a backtrace, paths of this machine: pass it through
    `tensorwasm.guest.engine.traps.explain` before it leaves the process.
    """
    vector = (ctypes.c_size_t * 2)()
    KEEPING.wasmtime_error_message(error, vector)
    text = ctypes.string_at(vector[1], vector[0]).decode("utf-8", "replace") if vector[0] else ""
    KEEPING.wasm_byte_vec_delete(vector)
    KEEPING.wasmtime_error_delete(error)
    return text
