"""What servers and guests say, as a terminal may get it: without control characters."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TextIO

import typer

_LAST_MS: Final = 253_402_300_800_000
"""The end of the year 9999, after which no date can be told."""


Output = Annotated[Literal["text", "json"], typer.Option("--output", help="text for people, json for programs.")]


def clean(text: object) -> str:
    """Return a server's text for one line of a terminal: without what is not printable."""
    return "".join(character for character in str(text) if character.isprintable())


def show_json(value: object) -> None:
    """Print an answer for programs; in JSON every control character is spelled out."""
    sys.stdout.write(json.dumps(value, indent=1).replace("\x7f", "\\u007f") + "\n")


def show_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], nothing: str) -> None:
    """Print rows for people, in columns as wide as they need."""
    if not rows:
        print(nothing)
        return
    cells = [[_cell(row, column) for column in columns] for row in rows]
    heads = [_title(column).upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in (heads, *cells):
        print("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def show_record(record: Mapping[str, Any], fields: Sequence[str], to: TextIO | None = None) -> None:
    """Print one record for people, a field a line; on standard output unless told otherwise."""
    width = max(len(_title(field)) for field in fields)
    for name in fields:
        print(f"{_title(name):{width}}  {_cell(record, name)}", file=to)


def _title(name: str) -> str:
    return name.removesuffix("_unix_ms").replace("_", " ")


def _cell(record: Mapping[str, Any], name: str) -> str:
    """Return a field as people read it: times of the clock, lists with commas, a dash for nothing."""
    value = record.get(name)
    if value is None or value in ("", []):
        return "-"
    if name.endswith("_unix_ms") and isinstance(value, int) and 0 <= value < _LAST_MS:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    return clean(", ".join(map(str, value)) if isinstance(value, list) else value)


def warn(text: str) -> None:
    """Say on standard error what a person should know."""
    sys.stderr.write(f"warning: {text}\n")
