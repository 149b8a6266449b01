"""Compile the kernels of bench/kernels to the committed PTX: nvcc, NVRTC, Numba, Triton, tinygrad and CuPy.

All of them come from PyPI into a virtual environment of their own and need no GPU; nvcc needs a C++ compiler. Each text
is assembled by the ptxas of the same release. Its ``.version`` is lowered as far as ptxas still takes it, at most to
8.0, which drivers from 525 on accept.

Usage: build_corpus.py [--check]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from committed import ROOT, BuildError, parse_check_option, write_or_compare

PACKAGES: Final = (
    "nvidia-cuda-nvcc==13.5.37",
    "nvidia-cuda-nvrtc==13.5.37",
    "nvidia-cuda-runtime==13.5.37",
    "nvidia-cuda-crt==13.5.37",
    "nvidia-nvvm==13.5.37",
    "nvidia-cuda-cccl==13.3.5.0.6",
    "cuda-bindings==13.5.0",
    "numba-cuda==0.30.4",
    "numba==0.68.1",
    "triton==3.9.0",
    "tinygrad==0.14.0",
    "cupy-cuda13x==14.2.0",
    "numpy==2.4.6",
)
KERNELS: Final = ROOT / "bench" / "kernels"
SOURCES: Final = KERNELS / "compilers" / "sources"
ENVIRONMENT: Final = ROOT / "build" / "compilers"
PYTHON: Final = ENVIRONMENT / "bin" / "python"
VARIANTS: Final = {
    "nbody_fast": ("nbody", ("--use_fast_math",)),
    "attention_fast": ("attention", ("--use_fast_math",)),
    "conv7_unoptimised": ("conv7", ("-Xcicc", "-O0")),
    "layernorm_unoptimised": ("layernorm", ("-Xcicc", "-O0")),
    "spmv_no_fma": ("spmv", ("--fmad=false",)),
    "gemm_blocked_sm90": ("gemm_blocked", ("-arch=compute_90",)),
    "gemm_mma_sm90": ("gemm_mma", ("-arch=compute_90a",)),
    "reduce_sum_sm100": ("reduce_sum", ("-arch=compute_100",)),
}
"""Texts of kernels in ``cuda/`` under other options."""
OLDER: Final = (b"8.0", b"8.3", b"8.8")
TARGETS: Final = {"cluster": "90"}
"""Sources that need a newer GPU than sm_80."""


def install_compilers() -> None:
    """Install the compilers into ``build/``, once.

    Raises:
        BuildError: there is no such package for this machine, or no network.
    """
    if (ENVIRONMENT / ".complete").exists():
        return
    print(f"installing {', '.join(PACKAGES)} into {ENVIRONMENT.relative_to(ROOT)}")
    venv.create(ENVIRONMENT, with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, *PACKAGES], check=False).returncode != 0:
        raise BuildError("the compilers cannot be installed: this needs x86-64 Linux and PyPI")
    (ENVIRONMENT / ".complete").touch()


def toolkit() -> Path:
    """Return the folder of the CUDA toolkit."""
    return next(ENVIRONMENT.glob("lib/python*/site-packages/nvidia/cu13"))


def run(command: list[str]) -> None:
    """Run a compiler.

    Raises:
        BuildError: it refuses its input.
    """
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")  # some write it into texts
    if made.returncode != 0:
        raise BuildError(f"{' '.join(command)}: {made.stderr}")


def compile_cuda(source: Path, options: tuple[str, ...] = ()) -> bytes:
    """Return what nvcc makes of a source, for sm_80 unless the options say otherwise."""
    target = () if any(option.startswith("-arch") for option in options) else ("-arch=compute_80",)
    include = str(toolkit() / "include" / "cccl")
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder, "kernel.ptx")
        nvcc = str(toolkit() / "bin" / "nvcc")
        run([nvcc, "-O3", "-std=c++17", "--ptx", *target, *options, "-I", include, str(source), "-o", str(to)])
        return to.read_bytes()


def run_script(script: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the texts that a script writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        run([str(PYTHON), str(script), folder])
        for path in sorted(Path(folder).glob("*.ptx")):
            yield path.name, path.read_bytes()


def assembles(text: bytes) -> bool:
    """Return whether ptxas accepts a text; functions that it declares may be missing."""
    target = re.search(rb"^\.target\s+(sm_\w+)", text, re.MULTILINE)
    if target is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_bytes(text)
        ptxas = [str(toolkit() / "bin" / "ptxas"), "-c", f"-arch={target[1].decode()}", "-O0"]
        return subprocess.run([*ptxas, str(path), "-o", str(path.with_suffix(".cubin"))], check=False,
                              capture_output=True).returncode == 0  # fmt: skip


def finish(name: str, text: bytes) -> bytes:
    """Return a text of the oldest version that it can have.

    Raises:
        BuildError: ptxas refuses it, or it names a folder of this machine.
    """
    if str(ROOT).encode() in text:
        raise BuildError(f"{name} names {ROOT}")
    version = re.search(rb"(?m)^\.version\s+(\S+)", text)
    if version is None:
        raise BuildError(f"{name} has no version")
    for older in OLDER:
        lowered = text[: version.start(1)] + older + text[version.end(1) :]
        if older < version[1] and assembles(lowered):
            return lowered
    if not assembles(text):
        raise BuildError(f"ptxas refuses {name}")
    return text


def build() -> Iterator[tuple[Path, bytes]]:
    """Yield every committed text.

    Raises:
        BuildError: there is no compiler, or a kernel does not build.
    """
    install_compilers()
    for source in sorted((KERNELS / "cuda_cpp").glob("*.cu")):
        yield source.with_suffix(".ptx"), finish(source.name, compile_cuda(source))
    for name, text in compiler_texts():
        yield KERNELS / "compilers" / name, finish(name, text)


def compiler_texts() -> Iterator[tuple[str, bytes]]:
    """Yield the texts of ``compilers/`` and their names."""
    for source in sorted(SOURCES.glob("*.cu")):
        target = TARGETS.get(source.stem, "80")
        yield f"nvcc-{source.stem}.ptx", compile_cuda(source, (f"-arch=compute_{target}",))
    for name, (stem, options) in VARIANTS.items():
        yield f"nvcc-{name}.ptx", compile_cuda(KERNELS / "cuda_cpp" / f"{stem}.cu", options)
    for source in sorted((KERNELS / "cuda_cpp").glob("*.cu")):
        # The compiler of nvcc for sm_100 and later is another one. What it writes runs on older GPUs too.
        text = compile_cuda(source, ("-arch=compute_100",))
        yield f"nvcc-{source.stem}_nvvm23.ptx", text.replace(b".target sm_100", b".target sm_80")
    for script in sorted(SOURCES.glob("*.py")):
        yield from run_script(script)


if __name__ == "__main__":
    check = parse_check_option("Compile the kernels of bench/kernels to the committed PTX.")
    sys.exit(write_or_compare(build(), "every committed PTX text is what its source compiles to", check=check))
