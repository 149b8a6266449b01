"""Chores: what is done again and again. What goes wrong in one round is logged, and must not end all others."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from tensorwasm.errors import TensorWasmError


async def do(chore: Callable[[], Awaitable[object]], what: str, log: logging.Logger) -> None:
    """Do a chore once, whatever comes of it.

    Args:
        chore: does it.
        what: is said in the log where it fails.
        log: of whoever wants it done.
    """
    try:
        await chore()
    except TensorWasmError as error:
        log.warning("%s: %s", what, error.kind)
    except Exception:
        log.exception("%s", what)
