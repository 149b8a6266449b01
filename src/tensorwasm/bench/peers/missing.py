"""A peer that cannot be measured here."""

from __future__ import annotations


class MissingPeer(Exception):
    """It is not installed or does not work; the message says why. Its figures say so too, and miss their bars."""
