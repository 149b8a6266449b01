"""The engine: wasmtime, configured once, with the pool that holds all sandboxes of the process."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import ClassVar, Final

from tensorwasm.errors import CapacityExhausted, InternalError
from tensorwasm.guest.engine import capi, memory_creator, reservation, ticker
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.engine.reservation import PoolLayout
from tensorwasm.values import MIB

MAX_ENGINES: Final = 32
MAX_TABLES: Final = 4
IMAGE_MAPPINGS: Final = 8
"""That a sandbox may have more than others for its memory being an image
(`tensorwasm.guest.memory.images.MAX_EXTENTS`)."""
MAX_TABLE_ELEMENTS: Final = 1 << 20
MAX_HEAPS: Final = 1000
"""Sandboxes of one engine that may have a heap for exceptions at once; one that needs another is refused."""
MAX_INSTANCE_BYTES: Final = 16 * MIB
"""Most that a sandbox may keep of its module's functions and globals, beside its memory and tables."""
POLL_S: Final = 0.25
"""Longest a guest runs between two looks at the clock and at whether it was cancelled."""
MEMORY_RESERVATION_BYTES: Final = 1 << 32
"""Address space that a linear memory has, whatever its size is."""
GUARD_BYTES: Final = 32 * MIB
"""What follows it and can never be accessed: compiled code relies on that instead of comparing."""

_TABLE_ENTRY_BYTES: Final = 8
_RESIDENT_BYTES: Final = 64 << 10
GPU_RESIDENT_BYTES: Final = 2 * MIB
"""For guests with a GPU, which handle data: on hosts of H200s, to clear 208 pages takes 20 to 31 us, and to touch them
anew 221 to 376. What is cleared ends where the guest's memory did."""
_TABLE_KEEP_RESIDENT_BYTES: Final = 4 << 10  # a small table is cleared by hand: returning its page takes a system call
_MIN_STACK_BYTES: Final = 16 << 10
_MAX_STACK_BYTES: Final = 64 * MIB
_FIBER_MARGIN_BYTES: Final = (
    256 << 10
)  # as much as a thread must have beside a guest, see tensorwasm.guest.sandbox.stack

# What wasmtime keeps of a module in each sandbox; `tests/unit/runtime/test_large_modules.py` holds it to that.
_INSTANCE_MARGIN_BYTES: Final = MIB  # the rest: the head, memories, tables, and what an instrumented module adds

# Off: what widens the attack surface or the ABI without a guest that needs it (memory64, several memories, threads,
# garbage collection, typed references). On beyond the classic set: tail calls, exceptions in their final form and
# deterministic relaxed SIMD; extended constant expressions have no switch and are always on. Exceptions are collected
# garbage, which gc_support brings; it brings externref too, which has no flag: `tensorwasm.wasm.preamble` refuses it
# wherever it is declared, and inside a function it can only be null. Every flag is set: a new wasmtime changes nothing.
PROPOSALS: Final = {
    "gc_support": True,
    "wasm_bulk_memory": True,
    "wasm_exceptions": True,
    "wasm_multi_value": True,
    "wasm_reference_types": True,
    "wasm_relaxed_simd": True,
    "wasm_relaxed_simd_deterministic": True,
    "wasm_simd": True,
    "wasm_tail_call": True,
    "shared_memory": False,
    "wasm_branch_hinting": False,
    "wasm_compact_imports": False,
    "wasm_component_model": False,
    "wasm_component_model_accessors": False,
    "wasm_component_model_async": False,
    "wasm_component_model_async_stackful": False,
    "wasm_component_model_canonical_names": False,
    "wasm_component_model_implements": False,
    "wasm_component_model_map": False,
    "wasm_component_model_more_async_builtins": False,
    "wasm_custom_page_sizes": False,
    "wasm_function_references": False,
    "wasm_gc": False,
    "wasm_memory64": False,
    "wasm_multi_memory": False,
    "wasm_stack_switching": False,
    "wasm_threads": False,
    "wasm_wide_arithmetic": False,
}
_FLAGS: Final = {
    **PROPOSALS,
    "concurrency_support": False,
    "cranelift_nan_canonicalization": False,
    "memory_init_cow": True,
    "memory_may_move": False,  # host code keeps the address of byte 0
    "parallel_compilation": True,
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is made of. Equal configurations share one engine.

    Attributes:
        slots: sandboxes that may live at once, at least 1. Each reserves 4 GiB of address space, no memory, and
            the first `MAX_HEAPS` as much again for exceptions.
        stack_bytes: Wasm stack of each call, 16 KiB to 64 MiB; the calling thread's own stack must be larger.
        tick_s: period of the epoch's ticks: the precision of deadlines.
        host_memory: linear memories come from `tensorwasm.guest.engine.memory_creator` instead of wasmtime's pool.
        images: likewise, and guarded like the pool's: mapped from `tensorwasm.guest.memory.images`.
        fibers: every slot has a stack, so that its guest can be suspended.
        resident_bytes: of a linear memory that stay mapped for the slot's next guest, and are cleared by hand.
        polled: its modules call the host at bounded intervals on their own (`tensorwasm.offload.polling`): code does
            not look at the epoch.
    """

    slots: int = 1000
    stack_bytes: int = 512 << 10
    tick_s: float = 0.01
    host_memory: bool = False
    fibers: bool = False
    images: bool = False
    resident_bytes: int = _RESIDENT_BYTES
    polled: bool = False

    @property
    def layout(self) -> PoolLayout:
        """The pool's sizes in address space."""
        return PoolLayout(
            slots=self.slots,
            memory_bytes=MEMORY_RESERVATION_BYTES,
            most_heaps=MAX_HEAPS,
            guard_bytes=GUARD_BYTES,
            table_bytes=MAX_TABLES * MAX_TABLE_ELEMENTS * _TABLE_ENTRY_BYTES,
            stack_bytes=self.fiber_bytes if self.fibers else 0,
            mappings=reservation.MAPPINGS_PER_SLOT + (IMAGE_MAPPINGS if self.images else 0),
        )

    @property
    def calls_python(self) -> bool:
        """Whether Python code runs while a sandbox's memory is made, grows and is released."""
        return self.host_memory or self.images

    @property
    def fiber_bytes(self) -> int:
        """Address space of a fiber's stack: the guest's part, and one for host functions."""
        return self.stack_bytes + _FIBER_MARGIN_BYTES


class Engine:
    """A wasmtime engine with its pool and its ticker. Thread-safe.

    Engines are never freed: a timer's thread calls into them, and compiled modules, linkers and stores refer to them.
    """

    _shared: ClassVar[dict[EngineConfig, Engine]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, config: EngineConfig) -> None:
        """Reserve the pool and make the ticker. Use `shared`, which raises the same errors."""
        if not _MIN_STACK_BYTES <= config.stack_bytes <= _MAX_STACK_BYTES:
            raise CapacityExhausted(
                f"a Wasm stack of {config.stack_bytes} bytes is not between {_MIN_STACK_BYTES} and {_MAX_STACK_BYTES}"
            )
        reservation.check(config.layout)
        self.config = config
        self.poll_ticks = max(1, round(POLL_S / config.tick_s))
        self._tick_ns = round(config.tick_s * 1e9)
        self._slots = [None] * config.slots  # popped and appended, which needs no lock
        self.address: int = RELEASING.wasm_engine_new_with_config(_configure(config))
        if not self.address:
            raise InternalError("wasmtime refused its configuration")
        self.ticker = ticker.make(self.address, config.tick_s, self._is_idle)

    @classmethod
    def shared(cls, config: EngineConfig | None = None) -> Engine:
        """Return the engine of a configuration, made on first use.

        Raises:
            CapacityExhausted: no address space for the pool, a stack size out of range, or more than 32 configurations.
            TickerNotRunning: the system refused a timer.
        """
        config = config or EngineConfig()
        with cls._shared_lock:
            engine = cls._shared.get(config)
            if engine is None:
                if len(cls._shared) >= MAX_ENGINES:
                    raise CapacityExhausted(
                        f"this process has {MAX_ENGINES} engines; reuse one of their configurations"
                    )
                engine = cls._shared[config] = cls(config)
            return engine

    @property
    def free_slots(self) -> int:
        """Sandboxes that can still be made."""
        return len(self._slots)

    def _is_idle(self) -> bool:
        return len(self._slots) == self.config.slots

    def reserve_slot(self) -> None:
        """Take one slot of the pool; `CapacityExhausted` if there is none, or what `require_ticker` raises."""
        try:
            self._slots.pop()
        except IndexError:
            raise CapacityExhausted(f"all {self.config.slots} sandboxes are in use; try again later") from None
        if not self.ticker.ticking:
            self._resume_ticker()

    def _resume_ticker(self) -> None:
        try:
            self.ticker.resume()
        except BaseException:
            self.release_slot()
            raise

    def release_slot(self) -> None:
        """Give one slot back."""
        self._slots.append(None)

    def require_ticker(self) -> None:
        """Raise `TickerNotRunning` if sandboxes of this engine get no ticks."""
        if not self.ticker.running:
            self.ticker.resume()

    def ticks(self, deadline_ns: int | None, now_ns: int | None = None) -> int:
        """Return how many ticks a guest may run before it checks its deadline (monotonic clock) again; at least 1."""
        if deadline_ns is None:
            return self.poll_ticks
        left = -(((time.monotonic_ns() if now_ns is None else now_ns) - deadline_ns) // self._tick_ns)
        if left >= self.poll_ticks:
            return self.poll_ticks
        return max(1, left)

    def wake_guests(self) -> None:
        """Make every running guest of this engine check its deadline and its cancel flag now."""
        for _ in range(self.poll_ticks + 1):
            KEEPING.wasmtime_engine_increment_epoch(self.address)


def settings_of(config: EngineConfig) -> dict[str, int]:
    """Return wasmtime's settings that are numbers, by name; all that change the compiled code are among them."""
    switches = memory_creator.GUARDED_SWITCHES if config.images else memory_creator.SWITCHES
    return {
        **_FLAGS,
        "epoch_interruption": not config.polled,
        "strategy": capi.STRATEGY_CRANELIFT,
        "async_stack_size": config.fiber_bytes,
        "max_wasm_stack": config.stack_bytes,
        "memory_guard_size": GUARD_BYTES,
        "memory_reservation": MEMORY_RESERVATION_BYTES,
        **(switches if config.calls_python else {}),
    }


def _configure(config: EngineConfig) -> int:
    address: int = capi.bind("wasm_config_new")()
    for name, value in settings_of(config).items():
        capi.bind(f"wasmtime_config_{name}_set")(address, value)
    if config.calls_python:
        memory_creator.install(address)
        return address
    pool: int = capi.bind("wasmtime_pooling_allocation_config_new")()
    numbers = {
        "async_stack_keep_resident": 0,
        "linear_memory_keep_resident": config.resident_bytes,
        "max_core_instance_size": MAX_INSTANCE_BYTES + _INSTANCE_MARGIN_BYTES,
        "max_memories_per_module": 1,
        "max_memory_size": MEMORY_RESERVATION_BYTES,
        "max_tables_per_module": MAX_TABLES,
        "table_elements": MAX_TABLE_ELEMENTS,
        "table_keep_resident": _TABLE_KEEP_RESIDENT_BYTES,
        "total_core_instances": config.slots,
        "total_gc_heaps": config.layout.heaps,
        "total_memories": config.slots + config.layout.heaps,
        "total_stacks": config.slots if config.fibers else 0,
        "total_tables": config.slots * MAX_TABLES,
    }
    for name, value in numbers.items():
        capi.bind(f"wasmtime_pooling_allocation_config_{name}_set")(pool, value)
    capi.bind("wasmtime_pooling_allocation_strategy_set")(address, pool)
    capi.bind("wasmtime_pooling_allocation_config_delete")(pool)
    return address
