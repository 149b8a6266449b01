"""Compile every examples/NAME/NAME.cu to the committed NAME.sm_75.ptx and NAME.sm_80.ptx, verbatim as CUDA emits it.

The compiler is the one inside nvcc, taken as a library (NVRTC) from CUDA 12.0: it writes PTX ISA 8.0, which drivers
from 525 on accept; a newer nvcc writes a newer ISA that they refuse. It comes from PyPI, so neither
a CUDA toolkit nor a C++ compiler has to be installed. Each text is then assembled by the ptxas of the same release.

Usage: build_kernels.py [--check]
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from committed import ROOT, BuildError, parse_check_option, write_or_compare

PACKAGES: Final = (
    "nvidia-cuda-nvrtc-cu12==12.0.140",  # the compiler
    "nvidia-cuda-runtime-cu12==12.0.146",  # mma.h, cuda_fp16.h
    "nvidia-cuda-nvcc-cu12==12.0.140",  # what those include, and ptxas
)
TARGETS: Final = (75, 80)
OPTIONS: Final = ("--fmad=false", "--std=c++03")
"""``--fmad=false``: a kernel fuses only where its source says ``fmaf``, so a CPU can reproduce it exactly.
``c++03``: under later standards this release puts the unused constants of ``<nv/target>`` into every module."""

EXAMPLES: Final = ROOT / "examples"
TOOLKIT: Final = ROOT / "build" / "cuda-12.0"
NVIDIA: Final = TOOLKIT / "nvidia"


def install_toolkit() -> None:
    """Install the compiler into ``build/``, once.

    Raises:
        BuildError: there is no such package for this machine, or no network.
    """
    if (TOOLKIT / ".complete").exists():
        return
    print(f"installing {', '.join(PACKAGES)} into {TOOLKIT.relative_to(ROOT)}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    if subprocess.run([*pip, "--target", str(TOOLKIT), *PACKAGES], check=False).returncode != 0:
        raise BuildError("CUDA 12.0 compiler packages cannot be installed: this needs x86-64 Linux and PyPI")
    (TOOLKIT / ".complete").touch()


class Compiler:
    """NVRTC through its C API."""

    def __init__(self) -> None:
        """Load the library.

        Raises:
            BuildError: it is not installed.
        """
        libraries = sorted((NVIDIA / "cuda_nvrtc" / "lib").glob("libnvrtc.so*"))
        if not libraries:
            raise BuildError("the compiler package for this platform has no libnvrtc.so")
        self._nvrtc = ctypes.CDLL(str(libraries[0]))

    def compile(self, source: Path, target: int) -> bytes:
        """Return the PTX of one source for ``compute_<target>``.

        Raises:
            BuildError: the source does not compile.
        """
        program = ctypes.c_void_p()
        # The name goes into mangled symbols: give the file's own, never a path.
        text, name = source.read_bytes(), source.name.encode("ascii")
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, name, 0, None, None)
        includes = [f"--include-path={NVIDIA / part / 'include'}" for part in ("cuda_runtime", "cuda_nvcc")]
        options = [item.encode() for item in (f"--gpu-architecture=compute_{target}", *OPTIONS, *includes)]
        try:
            self._call("nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
            return self._text("PTX", program)
        except BuildError as error:
            raise BuildError(f"{source.name}: {self._text('ProgramLog', program).decode()}") from error
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.value

    def _call(self, function: str, *args: object) -> None:
        if status := getattr(self._nvrtc, function)(*args):
            raise BuildError(f"{function} returned {status}")


def assemble(ptx: bytes, target: int) -> None:
    """Assemble a text with ptxas.

    Raises:
        BuildError: it is not ASCII, or ptxas refuses it.
    """
    if not ptx.isascii():
        raise BuildError("the compiler wrote PTX that is not ASCII")
    ptxas = NVIDIA / "cuda_nvcc" / "bin" / "ptxas"
    ptxas.chmod(0o755)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "kernel.ptx")
        text.write_bytes(ptx)
        command = [str(ptxas), f"--gpu-name=sm_{target}", "--output-file", str(text.with_suffix(".cubin")), str(text)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise BuildError(f"ptxas: {run.stderr}")


def build() -> Iterator[tuple[Path, bytes]]:
    """Yield every committed kernel and the PTX that its source compiles to.

    Raises:
        BuildError: there is no compiler, or a kernel does not build.
    """
    install_toolkit()
    compiler = Compiler()
    for source in sorted(EXAMPLES.glob("*/*.cu")):
        for target in TARGETS:
            ptx = compiler.compile(source, target)
            assemble(ptx, target)
            yield source.with_suffix(f".sm_{target}.ptx"), ptx


if __name__ == "__main__":
    check = parse_check_option("Compile the example kernels to their committed PTX.")
    sys.exit(write_or_compare(build(), "every committed PTX text is what its source compiles to", check=check))
