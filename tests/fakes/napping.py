"""A guest whose kernel lets a known time pass, and that waits for it in each way there is."""

from __future__ import annotations

import struct
from typing import Final

from wasmtime import wat2wasm

from fakes.argv import encode_argv
from strategies.kernels import NAP
from tensorwasm.guest.imports.argv import NumberArg

NAP_S: Final = 0.2
WAYS: Final = ("launch", "sync", "stream", "event", "copy", "free", "close")
"""Exports that wait for one kernel, each by another host function."""

_HOST: Final = "wasi:cuda/host@0.3.0"
_TEXT_AT: Final = 4096
_ENTRY_AT: Final = 256
_ARGV_AT: Final = 512


def _data(at: int, text: bytes) -> str:
    return f'(data (i32.const {at}) "{"".join(f"{chr(92)}{byte:02x}" for byte in text)}")'


def _import(name: str, params: str = "", result: str = "i32") -> str:
    given = f"(param {params})" if params else ""
    return f'(import "{_HOST}" "wasi_cuda_{name}" (func ${name} {given} (result {result})))'


def _make() -> bytes:
    argv = encode_argv([NumberArg("u64", struct.pack("<Q", round(NAP_S * 1e9)))])
    kernel = f"(call $load_ptx (i32.const {_TEXT_AT}) (i32.const {len(NAP)}) (i32.const {_ENTRY_AT}) (i32.const 3))"
    ones = "(i32.const 1)" * 6
    given = f"{kernel} {ones} (i32.const 0) (i32.const {_ARGV_AT}) (i32.const {len(argv)})"
    started = f"(drop (call $launch_async {given} (local.get $stream)))"
    stream, buffer, event = "(local $stream i64)", "(local $buffer i64)", "(local $event i64)"
    halves = "(i32.wrap_i64 (local.get $buffer)) (i32.wrap_i64 (i64.shr_u (local.get $buffer) (i64.const 32)))"
    opened = "(local.set $buffer (call $alloc (i32.const 64) (i32.const 0)))"
    launch = "i64 i32 i32 i32 i32 i32 i32 i32 i32 i32"
    return bytes(
        wat2wasm(f"""(module
 {_import("load_ptx", "i32 i32 i32 i32", "i64")} {_import("launch", launch)} {_import("launch_async", launch + " i64")}
 {_import("sync")} {_import("stream_create", result="i64")} {_import("stream_sync", "i64")}
 {_import("stream_destroy", "i64")} {_import("event_create", result="i64")} {_import("event_record", "i64 i64")}
 {_import("event_sync", "i64")} {_import("alloc", "i32 i32", "i64")} {_import("free", "i32 i32")}
 {_import("memcpy_d2h", "i32 i32 i32 i32")}
 (memory (export "memory") 1)
 {_data(_ENTRY_AT, b"nap")} {_data(_ARGV_AT, argv)} {_data(_TEXT_AT, NAP)}
 (func (export "launch") (result i32) (call $launch {given}))
 (func (export "sync") (result i32) {stream} {started} (call $sync))
 (func (export "stream") (result i32) {stream}
  (local.set $stream (call $stream_create)) {started} (call $stream_sync (local.get $stream)))
 (func (export "event") (result i32) {stream} {event}
  (local.set $event (call $event_create)) {started} (drop (call $event_record (local.get $event) (local.get $stream)))
  (call $event_sync (local.get $event)))
 (func (export "copy") (result i32) {stream} {buffer} {opened} {started}
  (call $memcpy_d2h (i32.const 1024) {halves} (i32.const 64)))
 (func (export "free") (result i32) {stream} {buffer} {opened} {started} (call $free {halves}))
 (func (export "close") (result i32) {stream}
  (local.set $stream (call $stream_create)) {started} (call $stream_destroy (local.get $stream)))
 (func (export "leave") (result i32) {stream} {started} (i32.const 0))
 (func $count (param i32) (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
 (func (export "compute") (result i32) {buffer} {opened} (call $count (i32.const 300000000)) (call $sync))
 (func (export "nothing") (result i32) (i32.const 0)))""")
    )


NAPPING: Final = _make()
"""`leave` waits for nothing; `compute` uses the device, and takes its time itself; `nothing` does not use it."""
