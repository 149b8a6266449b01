"""Reading what a server answered, which may be anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tensorwasm.cli.showing import clean
from tensorwasm.errors import InvalidArgs, Refused

if TYPE_CHECKING:
    from tensorwasm.cli.client import Client

PAGE: Final = 100
"""Records asked for at a time."""


Limit = Annotated[int, typer.Option(metavar="N", help="Most that are listed.")]


def parse_json(data: bytes) -> Any:
    """Return what a server sent as JSON.

    Raises:
        Refused: it is none.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Refused("the server's answer is not JSON", "malformed_answer") from None


def text_of(answer: object, name: str) -> str:
    """Return a field of an answer as a line of text.

    Raises:
        Refused: there is no such field.
    """
    return clean(field_of(answer, name))


def field_of(answer: object, name: str) -> Any:
    """Return a field of an answer.

    Raises:
        Refused: there is no such field.
    """
    if not isinstance(answer, Mapping) or name not in answer:
        raise Refused(f"the server's answer has no {name}", "malformed_answer")
    return answer[name]


def rows_of(client: Client, path: str, name: str, limit: int, **query: str | None) -> list[Mapping[str, Any]]:
    """Return records of a list, page by page.

    Args:
        client: asks.
        path: of the list.
        name: of the field that a page has its records in.
        limit: most that are returned.
        query: what else the list is asked for; None is left out.

    Raises:
        TensorWasmError: what `Client.call` raises.
        InvalidArgs: the limit is no positive number.
    """
    if limit < 1:
        raise InvalidArgs("--limit is at least 1")
    rows: list[Mapping[str, Any]] = []
    after: object = None
    while len(rows) < limit:
        wanted = {"limit": min(limit - len(rows), PAGE), "after": after, **query}
        page = client.call("GET", path, params={key: value for key, value in wanted.items() if value is not None})
        found = field_of(page, name)
        if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
            raise Refused(f"the server's answer has no list of {name}", "malformed_answer")
        rows += found
        after = page.get("next")
        if after is None or not found:
            break
    return rows[:limit]
