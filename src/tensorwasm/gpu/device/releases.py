"""Releasing many things of which some may fail: none may stop the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attempt(release: Callable[[Any], object], thing: object) -> list[Exception]:
    """Release one thing at the end of what owned it; return what the device raised, if anything."""
    try:
        release(thing)
    except Exception as error:  # noqa: BLE001 - a device that breaks its promises must not stop the other releases
        return [error]
    return []
