"""Pages of long lists: where one goes on, and how long it may be."""

from __future__ import annotations

import re
from typing import Final

from tensorwasm.errors import InvalidRequest

MAX_PAGE: Final = 1000
USUAL_PAGE: Final = 100

CURSOR: Final = r"^([0-9]{1,15}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$"
"""What a place in a list looks like to clients, or nothing, which begins it."""

_CURSOR: Final = re.compile(CURSOR, re.ASCII)


def render_cursor(place: tuple[int, str]) -> str:
    """Return a place in a list, by time and ID, as clients hand it back."""
    return f"{place[0]}.{place[1]}"


def parse_cursor(text: str | None) -> tuple[int, str] | None:
    """Read a place in a list; None begins it.

    Raises:
        InvalidRequest: it is none that `render_cursor` made.
    """
    if not text:
        return None
    if not _CURSOR.fullmatch(text):
        raise InvalidRequest("after is the cursor of a page that was seen")
    at, _, name = text.partition(".")
    return int(at), name


def checked_limit(limit: int) -> int:
    """Return how many there may be on a page.

    Raises:
        InvalidRequest: it is not 1 to 1000.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"limit is 1 to {MAX_PAGE}")
    return limit
