"""What a compiler says about a module, made fit to be shown to whoever sent it: short, plain text, no paths."""

from __future__ import annotations

import re
from typing import Final

_LINES: Final = 3
_CHARACTERS: Final = 400
_PATH: Final = re.compile(r"(?<!\w)(?:[A-Za-z]:)?(?:[\\/][\w.+-]+)+[\\/]?")
_PREAMBLE: Final = re.compile(r"^ptxas\s+(?:application ptx input|[\w.]*)\s*,\s*|^ptxas\s+(?=error|fatal|warning|info)")
_EMPTY: Final = "fatal : Ptx assembly aborted due to errors"


def summarize(log: bytes) -> str:
    """Return the first lines of a compiler's log that say something, joined by ``; ``."""
    text = log.split(b"\0", 1)[0].decode("ascii", "replace")
    lines = [_clean(line) for line in text.splitlines()]
    return "; ".join([line for line in lines if line not in {"", _EMPTY}][:_LINES])[:_CHARACTERS]


def _clean(line: str) -> str:
    printable = "".join(character if " " <= character <= "~" else " " for character in line)
    return " ".join(_PREAMBLE.sub("", _PATH.sub("", printable)).split())
