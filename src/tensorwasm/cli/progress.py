"""A bar on standard error for work that takes long, where a person looks at it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S: Final = 1.0
"""What ends sooner shows nothing."""


@contextmanager
def progress(doing: str, stream: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Give a function that is told how much is done, and of how much, in any unit; the bar is gone when this ends.

    Args:
        doing: what people read beside the bar.
        stream: where it is shown if that is a terminal; standard error unless told otherwise.
    """
    shown = stream or sys.stderr
    with ExitStack() as stack:
        bar: Progress | None = None
        begun_s = time.monotonic()

        def tell(done: int, total: int) -> None:
            nonlocal bar
            if bar is None and shown.isatty() and time.monotonic() - begun_s >= PATIENCE_S:
                bar = stack.enter_context(_bar(shown))
                bar.add_task(doing)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done, total=total)

        yield tell


@contextmanager
def waiting(doing: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show that something goes on of which nobody knows how much is done; the sign is gone when this ends.

    Args:
        doing: what people read beside it.
        stream: as in `progress`.
    """
    shown = stream or sys.stderr
    if not shown.isatty():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        if not ended.wait(PATIENCE_S):
            with _bar(shown) as bar:
                bar.add_task(doing, total=None)
                ended.wait()

    thread = threading.Thread(target=show, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bar(stream: TextIO) -> Progress:
    from rich.console import Console  # noqa: PLC0415 - takes a while to load, and most commands need none
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - the same

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(file=stream), transient=True)
