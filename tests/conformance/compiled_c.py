"""Compiles functions of `strategies.random_c` for a device and for this machine, and runs them on both."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conformance.launcher import Launcher
from strategies.random_c import INPUTS, LANES, OUTPUTS

NVCC = ("nvcc", "-w", "-ptx", "-arch=compute_75", "-fmad=false")
GCC = ("gcc", "-w", "-O1", "-ffp-contract=off", "-shared", "-fPIC")

Words = NDArray[np.uint64]


def compile_ptx(source: str, folder: Path) -> str:
    """Return what nvcc makes of a source.

    Raises:
        CalledProcessError: nvcc refuses it.
    """
    (folder / "source.cu").write_text(source)
    subprocess.run([*NVCC, "source.cu", "-o", "made.ptx"], cwd=folder, check=True, capture_output=True)
    return (folder / "made.ptx").read_text()


def judge(source: str, folder: Path, given: Words, kernels: int) -> Words:
    """Return what this machine's processor answers, ``(kernels, LANES, OUTPUTS)``.

    Raises:
        CalledProcessError: the compiler refuses it.
    """
    (folder / "source.c").write_text(source)
    subprocess.run([*GCC, "source.c", "-o", "./made.so"], cwd=folder, check=True, capture_output=True)
    library = ctypes.CDLL(str(folder / "made.so"))
    found = np.zeros((kernels, LANES, OUTPUTS), np.uint64)
    for kernel in range(kernels):
        run = getattr(library, f"k{kernel}")
        for lane in range(LANES):
            run(ctypes.c_void_p(given[lane].ctypes.data), ctypes.c_void_p(found[kernel, lane].ctypes.data))
    return found


def run(launcher: Launcher, text: str, given: Words, kernels: int) -> Words:
    """Return what a device answers, ``(kernels, LANES, OUTPUTS)``."""
    assert given.shape == (LANES, INPUTS)
    blank = np.zeros((LANES, OUTPUTS), np.uint64)
    return np.stack([launcher.launch(text, f"k{n}", [given, blank], block=(LANES, 1, 1))[1] for n in range(kernels)])
