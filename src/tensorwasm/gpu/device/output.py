"""What the kernels of one session print, until the guest's host functions pass it on."""

from __future__ import annotations

import threading
from typing import Final

MAX_KERNEL_OUTPUT_BYTES: Final = 1 << 20
"""What kernels may print between two looks at it; as much as a GPU's own buffer has by default."""


class KernelOutput:
    """A bounded buffer. Any thread may write; the one that runs the guest takes.

    Attributes:
        truncated: kernels printed more than was kept, since it was taken last.
    """

    __slots__ = ("_lock", "_text", "truncated")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = bytearray()
        self.truncated = False

    def write(self, text: bytes) -> None:
        """Keep a text, or as much of it as there is room for."""
        with self._lock:
            room = MAX_KERNEL_OUTPUT_BYTES - len(self._text)
            self._text += text[:room]
            self.truncated = self.truncated or len(text) > room

    def take(self) -> tuple[bytes, bool]:
        """Return what was kept, and whether something was not; begin anew."""
        if not self._text and not self.truncated:
            return b"", False
        with self._lock:
            text, cut = bytes(self._text), self.truncated
            self._text.clear()
            self.truncated = False
        return text, cut
