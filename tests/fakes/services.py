"""A service in a folder of the test's, and the guests that are deployed to it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from wasmtime import wat2wasm

from tensorwasm.service.opening import open_service
from tensorwasm.settings.service import ServiceSettings

ADD = bytes(wat2wasm('(module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add))'))
SUB = bytes(wat2wasm('(module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.sub))'))

SUM = bytes(
    wat2wasm(
        """(module (func (export "sum") (param $n i64) (result i64) (local $sum i64)
  (loop $again (local.set $sum (i64.add (local.get $sum) (local.get $n)))
    (br_if $again (i32.eqz (i64.eqz (local.tee $n (i64.sub (local.get $n) (i64.const 1)))))))
  (local.get $sum)))"""
    )
)
"""The sum of all numbers up to one, as slowly as that can be done."""

GUEST = bytes(
    wat2wasm(
        """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (import "wasi:tensor/host@0.1.0" "input-len" (func $length (result i32)))
  (import "wasi:tensor/host@0.1.0" "read-input" (func $read (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "\\10\\00\\00\\00\\02\\00\\00\\00") (data (i32.const 16) "hi")
  (global $sent (mut i32) (i32.const 0))
  (func $send (result i32) (i32.store (i32.const 1024) (global.get $sent))
    (global.set $sent (i32.add (global.get $sent) (i32.const 1)))
    (call $emit (i32.const 1024) (i32.const 4)))
  (func (export "main") (result i32) (drop (call $send)) (drop (call $send)) (i32.const 7))
  (func (export "say") (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func (export "echo") (result i32)
    (drop (call $emit (i32.const 4096) (call $read (i32.const 4096) (call $length)))) (call $length))
  (func (export "count") (param $chunks i32) (result i32) (local $last i32)
    (loop $again
      (local.set $last (call $send))
      (br_if $again (i32.and (i32.eqz (local.get $last)) (i32.lt_u (global.get $sent) (local.get $chunks)))))
    (local.get $last))
  (func (export "trap") (drop (call $send)) unreachable)
  (func (export "spin") (loop br 0)))"""
    )
)
"""``count`` sends numbers until it was refused or has sent so many, and returns the last answer."""

START = bytes(
    wat2wasm(
        """(module (memory (export "memory") 1) (global $n (mut i32) (i32.const 0))
  (func $begin (global.set $n (i32.const 41))) (start $begin)
  (func (export "main") (result i32) (i32.add (global.get $n) (i32.const 1))))"""
    )
)

COUNTER = bytes(
    wat2wasm(
        """(module
  (memory (export "memory") 1 16) (global $n (mut i32) (i32.const 0))
  (func $begin (i32.store (i32.const 64) (i32.const 41))) (start $begin)
  (func (export "main") (result i32)
    (global.set $n (i32.add (global.get $n) (i32.const 1)))
    (i32.store (i32.const 0) (global.get $n))
    (global.get $n))
  (func (export "kept") (result i32) (i32.load (i32.const 0)))
  (func (export "begun") (result i32) (i32.load (i32.const 64)))
  (func (export "trap") (global.set $n (i32.add (global.get $n) (i32.const 1))) unreachable)
  (func (export "spin") (loop br 0)))"""
    )
)
"""``main`` counts in a global and in memory; its start function leaves 41 for ``begun``."""


async def until(holds):
    """Wait for what another thread or process does."""
    while not holds():  # noqa: ASYNC110 - it knows of no event
        await asyncio.sleep(0.001)


def settings_for(folder, **environment):
    own = {"TENSOR_WASM_DATA": str(folder / "data"), "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY": "5e" * 32}
    return ServiceSettings.from_environment(own | environment)


@asynccontextmanager
async def opened(folder, **options):
    """A service, closed at the end."""
    environment = options.pop("environment", {})
    service = await open_service(settings_for(folder, **environment), **options)
    try:
        yield service
    finally:
        await service.close()
