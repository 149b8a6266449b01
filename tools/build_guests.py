"""Compile the C and C++ guests of the examples, the benchmarks and the tests to NAME.wasm beside them.

The C compiler is the one in the PyPI package ziglang. Guests of benchmarks have no C library, unless they are in the
folder wasi.

A guest contains its kernels: run build_kernels.py first when a kernel has changed. The same compiler gives the same
bytes; the bytes of another release differ and work as well.

Usage: build_guests.py [--check]
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from committed import ROOT, BuildError, parse_check_option, write_or_compare

ZIGLANG: Final = "0.17.1"
"""The release that made the committed files."""

FOLDERS: Final[dict[str, tuple[str, ...]]] = {
    "examples/llm/*.c": ("-mexec-model=reactor", "-Wl,-z,stack-size=65536"),
    "examples/*/*.c": ("-msimd128", "-Wl,-z,stack-size=65536"),
    "bench/guests/wasi/*.c": ("-Wl,-z,stack-size=65536",),
    "bench/guests/offload/*.c": ("-nostdlib", "-Wl,--no-entry,-z,stack-size=8192"),
    "bench/guests/*.c": ("-nostdlib", "-ffreestanding", "-Wl,--no-entry,-z,stack-size=8192"),
    "tests/corpus_loops/vectors.c": (
        *("-w", "-O3", "-msimd128", "-nostdlib", "-ffreestanding"),
        "-Wl,--no-entry,-z,stack-size=8192",
    ),
    "tests/corpus_loops/*.c": ("-w", "-nostdlib", "-ffreestanding", "-Wl,--no-entry,-z,stack-size=8192"),
    "tests/golden/wasm/guests/*.cpp": ("-mexec-model=reactor",),
    "tests/golden/wasi/*.c": ("-Os",),
    "tests/golden/wasm/guests/traps.c": (
        *("-g", "-fdebug-prefix-map={root}=.", "-nostdlib", "-ffreestanding"),
        "-Wl,--no-entry,-z,stack-size=8192",
    ),
    "tests/golden/wasm/guests/longjmp.c": (
        "-mexec-model=reactor",
        "-mexception-handling",
        "-Wl,-z,stack-size=65536",
        *("-mllvm", "-wasm-enable-sjlj", "-mllvm", "-wasm-use-legacy-eh=false"),
    ),
}
"""Options by pattern of the sources; the first pattern that matches counts. With ``-g`` symbols are kept."""

OPTIONS: Final = ("-target", "wasm32-wasi", "-O2", "-Wall", "-Wextra", "-Werror")
STANDARDS: Final = {".c": "-std=c23", ".cpp": "-std=c++23"}
INCLUDES: Final = ("guest-sdk/include", "examples")


def compiler_release() -> str:
    """Return the installed release of ziglang.

    Raises:
        BuildError: it is not installed.
    """
    try:
        return importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError as error:
        raise BuildError(f"there is no C compiler: pip install ziglang=={ZIGLANG}") from error


def compile_guest(source: Path, options: Sequence[str], folder: Path) -> bytes:
    """Return the module that one source compiles to.

    Raises:
        BuildError: it does not compile.
    """
    module = folder / source.with_suffix(".wasm").name
    includes = [f"-I{include}" for include in INCLUDES]
    # From the root and by relative path, so that the module contains no path of this machine.
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        STANDARDS[source.suffix],
        *OPTIONS,
        *(() if "-g" in options else ("-s",)),
        *(option.format(root=ROOT) for option in options),
        *includes,
        "-o",
        str(module),
    ]
    run = subprocess.run([*command, str(source.relative_to(ROOT))], cwd=ROOT, check=False)
    if run.returncode != 0:
        raise BuildError(f"{source.name} does not compile")
    return module.read_bytes()


def build(*, check: bool) -> Iterator[tuple[Path, bytes]]:
    """Yield every committed guest and the module that its source compiles to.

    Raises:
        BuildError: there is no compiler, or a guest does not build.
    """
    release = compiler_release()
    if release != ZIGLANG:
        text = f"this is ziglang {release}, the committed guests were made by {ZIGLANG}"
        if check:
            raise BuildError(f"{text}: bytes cannot be compared")
        print(f"NOTE: {text}: all will change", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        options = {source: FOLDERS[pattern] for pattern in reversed(FOLDERS) for source in ROOT.glob(pattern)}
        for source in sorted(options):
            yield source.with_suffix(".wasm"), compile_guest(source, options[source], Path(folder))


if __name__ == "__main__":
    check = parse_check_option("Compile the example guests to their committed Wasm.")
    sys.exit(write_or_compare(build(check=check), "every committed guest is what its source compiles to", check=check))
