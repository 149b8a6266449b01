"""Installed software besides the toolkit: the driver's library as the loader finds it, Python and its packages."""

from __future__ import annotations

import re
from typing import Final

from tensorwasm.doctor.facts import WSL_LIBRARY, CheckResult, MachineFacts, Results, Status
from tensorwasm.gpu.cuda.driver.versions import parse_version

_LIBRARY_PATHS: Final = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
)
_WINDOWS_LIBRARY: Final = "C:\\Windows\\System32\\nvcuda.dll"
_HIDING: Final = {
    "stubs": "the toolkit's stub of libcuda is found before the driver's",
    "compat": "a CUDA 'compat' folder, whose libcuda is used instead of the driver's",
}
_OLDEST_PYTHON: Final = (3, 11)
_PACKAGES: Final = (
    ("wasmtime", "", "way to run guests"),
    ("numpy", "", "emulator"),
    ("ml_dtypes", "", "bfloat16 on the emulator"),
    ("cuda-bindings", "cuda", "way to a GPU"),
)
"""Each package, the optional extra that installs it, and what is missing without it."""


def check_library_path(machine: MachineFacts) -> Results:
    """Report folders on LD_LIBRARY_PATH that hide the driver's library."""
    if not machine.linux:
        return None
    entries = machine.entries("LD_LIBRARY_PATH")
    return tuple(
        machine.diagnosed("LD_LIBRARY_PATH", Status.WARN, f"{entry}: {what}")
        for entry in entries
        for part, what in _HIDING.items()
        if part in entry.strip("/").split("/")
    ) or CheckResult("LD_LIBRARY_PATH", Status.INFO, ":".join(entries) or "not set")


def check_libcuda(machine: MachineFacts) -> Results:
    """Report whether the loader finds the driver's library, and where the library is."""
    if machine.system.platform == "darwin":
        return CheckResult("libcuda", machine.if_missing, "macOS has no NVIDIA driver", fix="Use --device emulator.")
    name = "nvcuda.dll" if machine.windows else "libcuda.so.1"
    complaint = machine.system.load_library(name)
    if complaint:
        row = machine.diagnosed("libcuda by the loader", machine.if_missing, complaint)
    else:
        row = CheckResult("libcuda by the loader", Status.OK, f"{name} loads")
    return row, _library_location(machine, loads=not complaint)


def _library_location(machine: MachineFacts, *, loads: bool) -> CheckResult:
    if machine.wsl:
        if machine.missing_files:
            return machine.diagnosed("libcuda from Windows", machine.if_missing, ", ".join(machine.missing_files))
        return CheckResult("libcuda from Windows", Status.OK, WSL_LIBRARY)
    paths = (_WINDOWS_LIBRARY,) if machine.windows else _LIBRARY_PATHS
    found = next((path for path in paths if machine.system.exists(path)), None)
    if found is None or loads:
        return CheckResult("libcuda on the system", Status.INFO, found or "in none of the usual folders")
    folder = found.rpartition("\\" if machine.windows else "/")[0]
    fix = f"Add {folder} to {'PATH' if machine.windows else 'LD_LIBRARY_PATH (or /etc/ld.so.conf.d, then ldconfig)'}."
    return CheckResult(
        "libcuda on the system", Status.WARN, found, "It is there, but the loader does not look there.", fix
    )


def check_container(machine: MachineFacts) -> Results:
    """Report whether this is a container."""
    if not machine.linux or not any(map(machine.system.exists, ("/.dockerenv", "/run/.containerenv"))):
        return None
    return CheckResult("container", Status.INFO, "yes: the driver's files come from the host (docker run --gpus all)")


def check_build_tools(machine: MachineFacts) -> Results:
    """Report that neither a compiler nor a linker is needed."""
    return CheckResult(
        "MSVC linker" if machine.windows else "host compiler",
        Status.INFO,
        "none needed: TensorWasm compiles nothing on installation",
    )


def check_python(machine: MachineFacts) -> Results:
    """Report whether Python is new enough."""
    seen = ".".join(map(str, machine.system.python))
    if machine.system.python[:2] >= _OLDEST_PYTHON:
        return CheckResult("Python", Status.OK, seen)
    return CheckResult(
        "Python", Status.FAIL, seen, "Older than 3.11.", "Make the virtual environment with a newer Python."
    )


def check_packages(machine: MachineFacts) -> Results:
    """Report whether each package is installed in a version that this release is written for."""
    required = {_normalized(text): text for text in machine.system.requirements()}
    return tuple(
        _package_row(machine, package, extra, purpose, required.get(_normalized(package), "").partition(";")[0].strip())
        for package, extra, purpose in _PACKAGES
    )


def _package_row(machine: MachineFacts, package: str, extra: str, purpose: str, required: str) -> CheckResult:
    version = machine.system.version(package)
    fix = f"python -m pip install 'tensor-wasm[{extra}]'" if extra else "python -m pip install tensor-wasm"
    status = machine.if_missing if extra else Status.FAIL
    if version is None:
        return CheckResult(package, status, "not installed", f"Without it there is no {purpose}.", fix)
    if not _fits(version, required):
        return CheckResult(
            package,
            status,
            f"{version}; this release wants {required}",
            "This release is not written for it.",
            f"{fix} --upgrade",
        )
    return CheckResult(package, Status.OK, version)


def _normalized(requirement: str) -> str:
    """Return the package name of a requirement, normalized as PEP 503 says."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]).lower()


def _fits(version: str, required: str) -> bool:
    """Return whether a version meets a requirement made of the operators that our own use: ==, >= and <."""
    have = parse_version(f"{version}.0") or ()
    for operator, text in re.findall(r"(==|>=|<)\s*([\w.]+)", required):
        bound = parse_version(f"{text}.0") or ()
        if not {"==": text == version, ">=": have >= bound, "<": have < bound}[operator]:
            return False
    return True
