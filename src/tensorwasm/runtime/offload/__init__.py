"""Makes what offloaded loops need, off the request path: cut modules, plans and machine code, which are kept signed."""

from typing import Final

MAX_JOB_BYTES: Final = 8 << 20
"""Longest job of a plan, packed."""
