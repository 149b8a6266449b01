"""Releases that must not stop each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attempt(release: Callable[[Any], object], thing: object) -> list[Exception]:
    """Release one thing; return what that raised, if anything."""
    try:
        release(thing)
    except Exception as error:  # noqa: BLE001 - a device that breaks its contract must not stop the other releases
        return [error]
    return []
