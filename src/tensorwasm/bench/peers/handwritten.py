"""Kernels written by hand in CUDA, as a peer: compiled when they are needed, and run in a process of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from tensorwasm.bench.figures import MissingPeer
from tensorwasm.bench.harness import run_python

NVCC: Final = "nvcc -O3"

_OPTIONS: Final = ("-O3", "-arch=native", "-w", "-Xcompiler", "-fPIC", "-shared", "-Xlinker", "-Bsymbolic")
"""Names of the program's arrays are its own, whatever the process has loaded that has such names."""
_RUN: Final = """
import ctypes, json, sys
samples, paths, sizes = json.loads(sys.argv[1])
times = []
for path in paths:
    library = ctypes.CDLL(path)
    library.kernels.restype = ctypes.c_double
    times.append([])
    for _ in range(samples):
        library.init(*sizes)
        times[-1].append(library.kernels(*sizes))
print(json.dumps(times))
"""


def build_handwritten(sources: Path, name: str, into: Path, *, fma: bool) -> Path:
    """Return a library with ``init`` of ``NAME.c`` and the kernels of ``NAME.cu``.

    Args:
        sources: the folder of both, and of what they include.
        name: of the program.
        into: the folder of the library.
        fma: whether the compiler may fuse products and sums.

    Raises:
        MissingPeer: there is no nvcc, or it refuses the sources.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise MissingPeer(f"{NVCC}: nvcc is not installed")
    library = into / f"{name}-{'fused' if fma else 'plain'}.so"
    options = [*_OPTIONS, f"-fmad={str(fma).lower()}", "-o", str(library)]
    command = [nvcc, *options, str(sources / f"{name}.c"), str(sources / f"{name}.cu")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a compiler and our own sources, without a shell
    if built.returncode:
        raise MissingPeer(f"{NVCC}: {built.stderr[-400:]}")
    return library


def time_handwritten(libraries: Sequence[Path], sizes: Sequence[int], samples: int) -> list[list[float]]:
    """Return for each library the seconds that the kernels of each call take on the device.

    Each call follows one of ``init`` with the same arguments.
    """
    order = json.dumps([samples, [str(library) for library in libraries], list(sizes)])
    return cast("list[list[float]]", json.loads(run_python("-c", _RUN, order)[0]))
