"""Pages of long lists: cursors and page lengths."""

from __future__ import annotations

import re
from typing import Final

from tensorwasm.errors import InvalidRequest

MAX_PAGE: Final = 1000
DEFAULT_PAGE: Final = 100

CURSOR: Final = r"^([0-9]{1,15}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$"
"""Pattern of a cursor as clients see it; the empty text begins the list."""

_CURSOR: Final = re.compile(CURSOR, re.ASCII)


def render_cursor(place: tuple[int, str]) -> str:
    """Return a position in a list, a time and an ID, as clients pass it back."""
    return f"{place[0]}.{place[1]}"


def parse_cursor(text: str | None) -> tuple[int, str] | None:
    """Parse a cursor; None begins the list. Raise InvalidRequest if `render_cursor` did not make it."""
    if not text:
        return None
    if not _CURSOR.fullmatch(text):
        raise InvalidRequest("after is not the cursor of a page")
    at, _, name = text.partition(".")
    return int(at), name


def checked_limit(limit: int) -> int:
    """Return a page length; raise InvalidRequest if it is not 1 to 1000."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"limit is 1 to {MAX_PAGE}")
    return limit
