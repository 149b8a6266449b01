"""Kernels of the corpus compiled by NVRTC under several options. Usage: nvrtc_kernels.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from cuda.bindings import nvrtc

HERE = Path(__file__).resolve().parent
CUDA = HERE.parents[1] / "cuda"
TEXTS = {
    "softmax_fast": (CUDA / "softmax.cu", ["--use_fast_math"]),
    "attention_nofma": (CUDA / "attention.cu", ["--fmad=false"]),
    "gemm_tiled_few_registers": (CUDA / "gemm_tiled.cu", ["--maxrregcount=32"]),
    "device_variables_lines": (CUDA / "device_variables.cu", ["-lineinfo"]),
    "bitonic_sort_debug": (CUDA / "bitonic_sort.cu", ["-G"]),
    "hist_shared_sm90": (CUDA / "hist_shared.cu", ["--gpu-architecture=compute_90"]),
    "bfs_sm75": (HERE / "bfs.cu", ["--gpu-architecture=compute_75"]),
}


def call(status: nvrtc.nvrtcResult, *results: object) -> object:
    """Return the result of a function of NVRTC."""
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(status)
    return results[0] if results else None


def compile_source(path: Path, options: list[str]) -> bytes:
    """Return the PTX of a source."""
    program = call(*nvrtc.nvrtcCreateProgram(path.read_bytes(), path.name.encode(), 0, [], []))
    options = [*options, "-DINFINITY=__int_as_float(0x7f800000)"]  # NVRTC has no math.h
    if not any("architecture" in option for option in options):
        options = [*options, "--gpu-architecture=compute_80"]
    call(*nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options]))
    text = b" " * call(*nvrtc.nvrtcGetPTXSize(program))
    call(*nvrtc.nvrtcGetPTX(program, text))
    return text.rstrip(b"\0")


if __name__ == "__main__":
    for name, (source, options) in TEXTS.items():
        Path(sys.argv[1], f"nvrtc-{name}.ptx").write_bytes(compile_source(source, options))
