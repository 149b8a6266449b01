"""Instances that all live at once in one process, every byte of their memories their own."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from tensorwasm.bench.figures import Figure
from tensorwasm.bench.process import resident_bytes
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker

BAR_KIB: Final = 100.0
_WORDS: Final = 1023
"""How many words of its page the guest's ``fill`` writes."""


def keep_alive(wasm: bytes, count: int) -> Iterator[Figure]:
    """Yield how many instances live at once, what each of them takes, and how many answer right.

    Args:
        wasm: a module of one page with ``fill`` and ``sum``.
        count: how many.
    """
    engine = Engine.shared(EngineConfig(slots=count))
    prepared = Linker(engine).prepare(compile_module(engine, wasm))
    with Instance(prepared) as first:
        first.call("fill", (1,))
    gc.collect()
    with ExitStack() as open_instances:
        before, started = resident_bytes(), time.perf_counter()
        instances = [open_instances.enter_context(Instance(prepared)) for _ in range(count)]
        for number, instance in enumerate(instances):
            instance.call("fill", (number,))
        made_s, each = time.perf_counter() - started, (resident_bytes() - before) / count
        right = sum(instance.call("sum") == [number * _WORDS] for number, instance in enumerate(instances))
    yield Figure("instances of 64 KiB alive at once that answer right", "", right, 0.0, 1, bar=count, sense="at least")
    yield Figure("resident memory of each", "KiB", each / 1024, 0.0, count, bar=BAR_KIB)
    yield Figure("made and filled, each", "us", made_s / count * 1e6, 0.0, count)
