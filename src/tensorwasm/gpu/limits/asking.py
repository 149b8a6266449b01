"""A thread that asks the same now and then, for as long as the answer is yes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)
_ASK_S: Final = 0.005
"""How often a full gate asks the holders of its permits."""


def start_asking(ask: Callable[[], bool]) -> bool:
    """Call a function every few milliseconds, on a thread of its own, until it returns False.

    Returns:
        Whether there was a thread to spare.
    """
    try:
        threading.Thread(target=_keep_asking, args=(ask,), name="tensorwasm-gate", daemon=True).start()
    except RuntimeError:  # the next one who has to wait tries again
        return False
    return True


def _keep_asking(ask: Callable[[], bool]) -> None:
    goes_on = True
    while goes_on:
        time.sleep(_ASK_S)
        try:
            goes_on = ask()
        except Exception:  # noqa: BLE001 - those who wait would wait for ever
            _log.exception("a full gate could not ask its holders; it goes on")
