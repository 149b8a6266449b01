"""Output for people and programs: text, JSON, tables and progress bars.

Text of servers and guests reaches a terminal without control characters.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TextIO

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

Output = Annotated[Literal["text", "json"], typer.Option("--output", help="text for people, json for programs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

PATIENCE_S: Final = 1.0
"""Work that ends sooner shows no progress bar."""

_END_OF_TIME_MS: Final = 253_402_300_800_000
"""The end of the year 9999, the last that `datetime` has."""


def clean(text: object) -> str:
    """Return the printable characters of a text."""
    return "".join(character for character in str(text) if character.isprintable())


def escaped(text: object) -> str:
    """Return a text with its unprintable characters as escape sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))


def warn(text: str) -> None:
    """Print a warning on standard error."""
    sys.stderr.write(f"warning: {text}\n")


def print_json(value: object, *, indent: int | None = 1) -> None:
    """Print JSON at once, with all control characters escaped; an indent of None prints one line."""
    # json.dumps escapes everything outside ASCII, and all control characters but DEL.
    sys.stdout.write(json.dumps(value, indent=indent).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], empty: str) -> None:
    """Print fields of records in columns, or the text `empty` if there are no records."""
    if rows:
        heads = [_title(column).upper() for column in columns]
        _print_grid([heads, *([_cell(row, column) for column in columns] for row in rows)])
    else:
        print(empty)


def print_record(record: Mapping[str, Any], fields: Sequence[str], file: TextIO | None = None) -> None:
    """Print one record, a field a line; on standard output by default."""
    _print_grid([(_title(field), _cell(record, field)) for field in fields], file)


def _print_grid(rows: Sequence[Sequence[str]], file: TextIO | None = None) -> None:
    # Not a table of rich's: it would wrap or cut IDs on a narrow terminal, and takes a second for 1000 rows.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip(), file=file)


def _title(field: str) -> str:
    return field.removesuffix("_unix_ms").replace("_", " ")


def _cell(record: Mapping[str, Any], field: str) -> str:
    """Return a field as text: times in UTC, lists with commas, a dash for an empty value."""
    value = record.get(field)
    if value is None or value in ("", []):
        return "-"
    if field.endswith("_unix_ms") and isinstance(value, int) and 0 <= value < _END_OF_TIME_MS:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    return clean(", ".join(map(str, value)) if isinstance(value, list) else value)


@contextmanager
def progress(doing: str, stream: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, standard error by default; yield a function of the amounts done and in total."""
    stream = stream or sys.stderr
    with ExitStack() as stack:
        bar: Progress | None = None
        begun_s = time.monotonic()

        def update(done: int, total: int) -> None:
            nonlocal bar
            if bar is None and stream.isatty() and time.monotonic() - begun_s >= PATIENCE_S:
                bar = stack.enter_context(_bar(stream, doing, total))
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done, total=total)

        yield update


@contextmanager
def waiting(doing: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show a bar as `progress` does, for work of unknown length."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield
        return
    with ExitStack() as stack:
        timer = threading.Timer(PATIENCE_S, lambda: stack.enter_context(_bar(stream, doing, None)))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:  # before the stack ends the bar, which the timer may just be starting
            timer.cancel()
            timer.join()


def _bar(stream: TextIO, doing: str, total: float | None) -> Progress:
    from rich.console import Console  # noqa: PLC0415 - takes 20 ms to load, and most commands show no bar
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - the same

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(file=stream), transient=True)
    bar.add_task(doing, total=total)
    return bar
