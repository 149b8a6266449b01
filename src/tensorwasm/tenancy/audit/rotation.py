"""Files of a log that are full: how they are called, in which order they are read, and which of them go.

A full file is called after its last line's number, ``audit.log.0000000000012345``; the file that has the path goes on
with the same chain. A file is taken away only once a line says so, with the number and hash of its last line: what is
missing at the beginning of a log is then either accounted for, or somebody else's doing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.tenancy.audit.chain import MAX_LINE_BYTES, Head, read_link

_DIGITS: Final = 16
_LOOK_BYTES: Final = 1 << 20
_NAME: Final = re.compile(rf"[0-9]{{{_DIGITS}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Full:
    """A full file that may go.

    Attributes:
        path: of it.
        lines: that it has.
        last: number and hash of its last line.
    """

    path: Path
    lines: int
    last: Head


def full_name(path: Path, last_seq: int) -> Path:
    """Return what a full file is called."""
    return path.with_name(f"{path.name}.{last_seq:0{_DIGITS}}")


def log_files(path: Path) -> tuple[Path, ...]:
    """Return the files of a log that are there, the oldest first and the one that is written last.

    Raises:
        OSError: the folder cannot be read.
    """
    return (*_full_files(path), path)


def surplus(path: Path, keep: int) -> Iterator[Full]:
    """Yield the oldest full files of a log but for as many as are kept; what has no line of a log in it is left alone.

    Raises:
        OSError: one of them cannot be read.
    """
    found = _full_files(path)
    for each in found[: max(0, len(found) - keep)]:
        with each.open("rb") as file:
            first = read_link(file.readline(MAX_LINE_BYTES).rstrip(b"\n"))
            file.seek(max(0, each.stat().st_size - _LOOK_BYTES))
            last = next(filter(None, map(read_link, reversed(file.read().split(b"\n")))), None)
        if first is not None and last is not None:
            yield Full(each, last.seq - first.seq + 1, Head(last.seq, last.hash))


def _full_files(path: Path) -> list[Path]:
    start = f"{path.name}."
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    found = (each for each in beside if each.name.startswith(start))
    return sorted(each for each in found if _NAME.fullmatch(each.name.removeprefix(start)))
