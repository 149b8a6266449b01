"""Host memory that this process may use: the machine's, or its control group's where that is less.

A control group's limit holds for all processes in it and below it together, so every ancestor counts, in both versions
of the interface. On other systems than Linux only the machine counts.

Source: proc_meminfo(5), proc_pid_cgroup(5), proc_pid_mountinfo(5); Linux's documentation of cgroup-v2 ("Memory
Interface Files").
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")
_LIMITS: Final = {
    # Above memory.high a group's processes are throttled until nothing moves, so it is a limit too.
    "v1": ("memory.limit_in_bytes",),
    "v2": ("memory.max", "memory.high"),
}


def limit_bytes(root: Path = _ROOT) -> int:
    """Return the most memory that this process may ever use, with its neighbours in the machine and control groups.

    ``root`` is the folder of ``proc`` and ``sys``.
    """
    limits = (_read_number(folder / name) for folder, version in _groups(root) for name in _LIMITS[version])
    return min([_machine_bytes(root), *(limit for limit in limits if limit is not None)])


def _machine_bytes(root: Path) -> int:
    if sys.platform == "win32":
        return _windows_bytes()
    for line in _read_lines(root / "proc" / "meminfo"):
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[0] == "MemTotal" and words[1].isdecimal():
            return int(words[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _windows_bytes() -> int:  # pragma: no cover - only there
    # MEMORYSTATUSEX: two 32-bit fields, of which the first is the structure's size, then seven of 64 bits.
    status = (ctypes.c_uint64 * 8)()
    status[0] = ctypes.sizeof(status)
    if not getattr(ctypes, "windll").kernel32.GlobalMemoryStatusEx(status):  # noqa: B009 - unknown elsewhere
        raise OSError("GlobalMemoryStatusEx failed")
    return status[1]


@cache
def _groups(root: Path) -> tuple[tuple[Path, str], ...]:
    """Return folder and version (``v1``, ``v2``) of the control groups that bound this process, which do not change."""
    found: list[tuple[Path, str]] = []
    for mount, version, group in _mounts(root):
        folder = root / mount.lstrip("/")
        names = [name for name in group.split("/") if name]
        if ".." not in names and folder.joinpath(*names).is_dir():
            found += ((folder.joinpath(*names[:depth]), version) for depth in range(len(names), -1, -1))
        else:  # the group is outside of what is mounted here, so only the mount is known
            found.append((folder, version))
    return tuple(found)


def _mounts(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield, of each hierarchy with memory in it, the mount point, the version and this process's path below it."""
    paths = _group_paths(root)
    for line in _read_lines(root / "proc" / "self" / "mountinfo"):
        before, _, after = line.partition(" - ")
        places, kinds = before.split(), after.split()
        if len(places) < 5 or len(kinds) < 3:
            continue
        v1 = kinds[0] == "cgroup" and "memory" in kinds[2].split(",")
        version = "v1" if v1 else "v2" if kinds[0] == "cgroup2" else None
        if version is not None and version in paths:
            top, mount = (_unescape(text) for text in places[3:5])
            path = paths[version]
            # A container sees its own group as the mount's root, and its path from the host's.
            inside = path == top or path.startswith(top.rstrip("/") + "/")
            yield mount, version, path[len(top.rstrip("/")) :] if inside else ""


def _group_paths(root: Path) -> dict[str, str]:
    found = {}
    for line in _read_lines(root / "proc" / "self" / "cgroup"):
        number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if number == "0" and not controllers:
            found["v2"] = path
        elif "memory" in controllers.split(","):
            found["v1"] = path
    return found


def _unescape(text: str) -> str:
    """Return a path of mountinfo without its octal escapes, of space, tab, newline and backslash."""
    return re.sub(r"\\(040|011|012|134)", lambda code: chr(int(code[1], 8)), text)


def _read_lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text("utf-8", "surrogateescape").splitlines()
    return []


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None if it has ``max`` or does not exist."""
    word = "".join(_read_lines(path)[:1]).strip()
    return int(word) if word.isascii() and word.isdigit() else None
