"""The driver's library: by the loader, in the system's folders, and from Windows."""

from __future__ import annotations

from typing import Final

from tensorwasm.doctor.machine import WSL_LIBRARY, Machine
from tensorwasm.doctor.rows import Row, Status

_SYSTEM: Final = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
)
_WINDOWS: Final = "C:\\Windows\\System32\\nvcuda.dll"


def check_libcuda(machine: Machine) -> tuple[Row, ...]:
    """Does the loader find the driver's library, and where is it?"""
    if machine.system.platform == "darwin":
        return (Row("libcuda", machine.if_missing, "macOS has no NVIDIA driver", fix="Use --device emulator."),)
    name = "nvcuda.dll" if machine.windows else "libcuda.so.1"
    complaint = machine.system.load_library(name)
    if complaint:
        rows = [machine.bad("libcuda by the loader", machine.if_missing, complaint)]
    else:
        rows = [Row("libcuda by the loader", Status.OK, f"{name} loads")]
    return (*rows, *_places(machine, loads=not complaint))


def _places(machine: Machine, *, loads: bool) -> tuple[Row, ...]:
    """Say where the library lies; it is a hint only when the loader does not find it."""
    if machine.wsl:
        if machine.clues:
            return (machine.bad("libcuda from Windows", machine.if_missing, ", ".join(machine.clues)),)
        return (Row("libcuda from Windows", Status.OK, WSL_LIBRARY),)
    found = [path for path in ((_WINDOWS,) if machine.windows else _SYSTEM) if machine.system.exists(path)]
    if found and not loads:
        folder = found[0].rpartition("\\" if machine.windows else "/")[0]
        fix = (
            f"Add {folder} to {'PATH' if machine.windows else 'LD_LIBRARY_PATH (or /etc/ld.so.conf.d, then ldconfig)'}."
        )
        return (
            Row(
                "libcuda on the system", Status.WARN, found[0], "It is there, but the loader does not look there.", fix
            ),
        )
    return (Row("libcuda on the system", Status.INFO, found[0] if found else "in none of the usual folders"),)


def check_container(machine: Machine) -> tuple[Row, ...]:
    """Is this a container?"""
    if not machine.container:
        return ()
    return (Row("container", Status.INFO, "yes: the driver's files come from the host (docker run --gpus all)"),)


def check_build_tools(machine: Machine) -> tuple[Row, ...]:
    """Is a compiler or linker needed?"""
    seen = "none needed: TensorWasm compiles nothing on installation"
    return (Row("MSVC linker" if machine.windows else "host compiler", Status.INFO, seen),)
