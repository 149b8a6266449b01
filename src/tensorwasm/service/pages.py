"""Pages of long lists: where one goes on, and how long it may be."""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import InvalidRequest

MAX_PAGE: Final = 1000
USUAL_PAGE: Final = 100

_MAX_DIGITS: Final = 15
_ID_LENGTH: Final = 36


def render_cursor(place: tuple[int, str]) -> str:
    """Return a place in a list, by time and ID, as clients hand it back."""
    return f"{place[0]}.{place[1]}"


def parse_cursor(text: str | None) -> tuple[int, str] | None:
    """Read a place in a list; None begins it.

    Raises:
        InvalidRequest: it is none that `render_cursor` made.
    """
    if text is None:
        return None
    at, _, name = text.partition(".")
    if not (at.isascii() and at.isdecimal() and len(at) <= _MAX_DIGITS and len(name) == _ID_LENGTH):
        raise InvalidRequest("after is the cursor of a page that was seen")
    return int(at), name


def checked_limit(limit: int) -> int:
    """Return how many there may be on a page.

    Raises:
        InvalidRequest: it is not 1 to 1000.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"limit is 1 to {MAX_PAGE}")
    return limit
