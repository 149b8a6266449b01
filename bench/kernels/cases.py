"""Kernels of the corpus that run: ``cases("small")`` for an emulator, ``cases("large")`` for measurements on a GPU."""

from __future__ import annotations

import array_cases
import matrix_cases
from case import Argument, Buffer, Case, Scale

__all__ = ["Argument", "Buffer", "Case", "Scale", "cases"]


def cases(scale: Scale) -> list[Case]:
    """Return every case.

    Args:
        scale: small ones take an emulator less than a second, large ones an H200 0.05 to 2 ms.
    """
    return [make(scale == "large") for make in (*array_cases.KERNELS, *matrix_cases.KERNELS)]
