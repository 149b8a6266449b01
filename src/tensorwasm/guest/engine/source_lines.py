"""`SourceLines`: the source lines of one module's traps, from its debug information."""

from __future__ import annotations

import threading
import time
from typing import Final

from tensorwasm.errors import Frame, InvalidWasm, InvokeTimeout, plain
from tensorwasm.values import Deadline
from tensorwasm.wasm.line_table import LineSections, SourceLine, find_lines, find_sections
from tensorwasm.watch import Watch

MAX_FILE: Final = 200
"""Longest name of a file, in characters; of a longer one the end is shown."""

_ONCE_S: Final = 1.0
_IN_ALL_S: Final = 5.0
_MAX_KNOWN: Final = 1024


class SourceLines:
    """Finds the lines of traps, and remembers them. Thread-safe.

    A look-up gets a second, and all of one module five: after that its traps have no lines but those that are known.
    """

    def __init__(self, sections: LineSections) -> None:
        self._sections = sections
        self._lock = threading.Lock()
        self._known: dict[int, SourceLine | None] = {}
        self._left_s = _IN_ALL_S

    @classmethod
    def of(cls, wasm: bytes) -> SourceLines | None:
        """Return what finds the lines of a module; None for one without debug information, or with too much of it."""
        try:
            sections = find_sections(wasm)
        except InvalidWasm:  # a custom section whose name is no text is no error of a module's
            return None
        return cls(sections) if sections is not None else None

    def add_to(self, stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Return a stack with files and lines where they are known. Blocks, for a second at most."""
        with self._lock:
            self._look_up([frame.offset for frame in stack if frame.offset not in self._known])
            lines = [self._known.get(frame.offset) for frame in stack]
        return tuple(
            frame if line is None else frame._replace(file=_show(line.file), line=line.line)
            for frame, line in zip(stack, lines, strict=True)
        )

    def _look_up(self, offsets: list[int]) -> None:
        if not offsets or self._left_s <= 0:
            return
        began_s = time.monotonic()
        watch = Watch(Deadline.after(min(_ONCE_S, self._left_s)), "while source lines were looked up")
        try:
            found = find_lines(self._sections, offsets, watch)
        except (InvalidWasm, InvokeTimeout):  # the trap is told without: debug information is no part of the program
            found = {}
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        self._known |= {offset: found.get(offset) for offset in offsets}
        self._left_s -= time.monotonic() - began_s


def _show(file: str) -> str:
    name = plain(file)
    return name if len(name) <= MAX_FILE else "…" + name[1 - MAX_FILE :]
