"""The buffer for what the kernels of one session print, until the guest's host functions write it out."""

from __future__ import annotations

import threading
from typing import Final

MAX_KERNEL_OUTPUT_BYTES: Final = 1 << 20
"""Most that is kept between two calls of `KernelOutput.take`; the default size of a GPU's own buffer."""


class KernelOutput:
    """A bounded buffer. Any thread may write; only the one that runs the guest takes, or clears ``truncated``."""

    __slots__ = ("_lock", "_text", "truncated")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = bytearray()
        self.truncated = False

    def write(self, text: bytes) -> None:
        """Append a text, or as much of it as fits."""
        with self._lock:
            room = MAX_KERNEL_OUTPUT_BYTES - len(self._text)
            self._text += text[:room]
            self.truncated = self.truncated or len(text) > room

    def take(self) -> tuple[bytes, bool]:
        """Return and clear the text, and whether some was dropped since the last call."""
        if not self._text and not self.truncated:
            return b"", False
        with self._lock:
            text, cut = bytes(self._text), self.truncated
            self._text.clear()
            self.truncated = False
        return text, cut
