"""The clocks that the service reads (tests pass their own), and periodic work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.tenancy.quotas import unix_ms


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall clock, in milliseconds since 1970, which can be set; and a monotonic clock."""

    unix_ms: Callable[[], int] = unix_ms
    monotonic_s: Callable[[], float] = time.monotonic


SYSTEM: Final = Clock()
"""The machine's clocks."""


async def run_round(work: Callable[[], Awaitable[object]], failure: str, log: logging.Logger) -> None:
    """Run one round of periodic work; log `failure` with the error instead of raising it."""
    try:
        await work()
    except TensorWasmError as error:
        log.warning("%s: %s", failure, error.kind)
    except Exception:
        log.exception("%s", failure)


def repeat(
    stack: AsyncExitStack, work: Callable[[], Awaitable[object]], every_s: float, failure: str, log: logging.Logger
) -> None:
    """Run rounds, the first at once, until the stack is closed."""

    async def rounds() -> None:
        while True:
            await run_round(work, failure, log)
            await asyncio.sleep(every_s)

    run_until_closed(stack, rounds())


def run_until_closed(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as a task that the stack cancels when it is closed."""

    async def cancel() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    task = asyncio.ensure_future(work)
    stack.push_async_callback(cancel)
