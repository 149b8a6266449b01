"""Kernels that compiled code may give to the next guest of a session, if it brings their very text.

A fresh sandbox mostly loads what the one before it has loaded. Its session still holds those kernels, so that compiled
code has only to compare: a text that is the same byte for byte, for the same entry, is the same kernel.
"""

from __future__ import annotations

import ctypes
from typing import Final

from tensorwasm.gpu.native.layout import OFFER_ROWS, KernelImage
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.kernel_cache import KernelCache, SharedKernel

MAX_OFFER_BYTES: Final = 64 << 10
"""Longest text that is compared: it is kept once for every session that offers it."""


class ReusableKernel:
    """A kernel that is offered.

    Attributes:
        shared: the kernel; the offer holds it.
        row: what the pad says of it.
    """

    __slots__ = ("_entry", "_text", "row", "shared")

    def __init__(self, shared: SharedKernel, image: KernelImage) -> None:
        text, entry = shared.text, shared.signature.entry.encode()
        self.shared = shared
        self._text = ctypes.create_string_buffer(text, max(len(text), 1))
        self._entry = ctypes.create_string_buffer(entry, max(len(entry), 1))
        self.row = (
            ctypes.addressof(self._text),
            len(text),
            ctypes.addressof(self._entry),
            len(entry),
            image.address,
        )


class ReusableKernels:
    """What one session offers. Not safe from several threads: the session takes turns.

    Args:
        cache: where kernels are held.
        sheet: told along.

    Attributes:
        longest_bytes: of the texts that were ever offered, 0 while none was.
    """

    __slots__ = ("_cache", "_next", "_offers", "_sheet", "longest_bytes")

    def __init__(self, cache: KernelCache, sheet: SessionLayoutWriter) -> None:
        self._cache = cache
        self._sheet = sheet
        self._offers: dict[int, ReusableKernel] = {}
        self._next = 0
        self.longest_bytes = 0

    def __getitem__(self, row: int) -> SharedKernel:
        """Return the kernel that a row of the pad offers."""
        return self._offers[row].shared

    def add(self, shared: SharedKernel, image: KernelImage) -> None:
        """Offer a kernel that the session holds, unless it is one guest's alone, in the place of the oldest offer."""
        if shared.private or any(offer.shared is shared for offer in self._offers.values()):
            return
        row, self._next = self._next, (self._next + 1) % OFFER_ROWS
        old = self._offers.get(row)
        self._cache.hold(shared)
        self._offers[row] = offer = ReusableKernel(shared, image)
        self._sheet.show_offer(row, offer.row)
        self.longest_bytes = max(self.longest_bytes, shared.text_bytes)
        if old is not None:
            self._cache.release(old.shared)

    def release(self) -> None:
        """Offer nothing any more."""
        offers, self._offers = self._offers, {}
        if offers:
            self._sheet.hide_offers()
        for offer in offers.values():
            self._cache.release(offer.shared)
