"""Kernels of the corpus that run: ``cases("small")`` for an emulator, ``cases("large")`` for measurements on a GPU."""

from __future__ import annotations

import array_cases
import matrix_cases
import python_cases
import triton_cases
import variant_cases
from case import Argument, Buffer, Case, Scale

__all__ = ["Argument", "Buffer", "Case", "Scale", "cases"]


def cases(scale: Scale) -> list[Case]:
    """Return every case that there is of a size.

    Args:
        scale: small ones take an emulator less than a second, large ones an H200 0.05 to 2 ms.
    """
    modules = (array_cases, matrix_cases, variant_cases, triton_cases)
    both = [make(scale == "large") for module in modules for make in module.KERNELS]
    return both if scale == "large" else [*both, *python_cases.numba_cases(), *python_cases.tinygrad_cases()]
