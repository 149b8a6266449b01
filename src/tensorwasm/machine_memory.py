"""Host memory that this process may use: the machine's, or its control group's where that is less.

A control group's limit holds for all processes in it and below it together, so every ancestor counts, in both versions
of the interface. Elsewhere than on Linux only the machine is asked.

Source: proc_meminfo(5), proc_pid_cgroup(5), proc_pid_mountinfo(5); Linux's documentation of cgroup-v2 ("Memory
Interface Files") and of cgroup-v1's memory controller (section 5, stat file).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")
_RECLAIMED: Final = {"v1": ("total_active_file", "total_inactive_file"), "v2": ("active_file", "inactive_file")}
_LIMITS: Final = {
    # Above memory.high a group's processes are throttled until nothing moves, so it is a limit too.
    "v1": ("memory.limit_in_bytes",),
    "v2": ("memory.max", "memory.high"),
}
_USAGE: Final = {"v1": "memory.usage_in_bytes", "v2": "memory.current"}


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group of this process, or an ancestor of one.

    Attributes:
        folder: its interface files.
        version: ``v1`` or ``v2``.
    """

    folder: Path
    version: str

    def limit_bytes(self) -> int | None:
        """Return the limit, None without one."""
        limits = (_read_number(self.folder / name) for name in _LIMITS[self.version])
        return min((limit for limit in limits if limit is not None), default=None)

    def free_bytes(self) -> int | None:
        """Return what the group may still use, None without a limit; cached files are given up before that."""
        limit, used = self.limit_bytes(), _read_number(self.folder / _USAGE[self.version])
        if limit is None or used is None:
            return limit
        rows = _read_rows(self.folder / "memory.stat")
        reclaimed = sum(rows.get(name, 0) for name in _RECLAIMED[self.version])
        return max(0, limit - max(0, used - reclaimed))


def limit_bytes(root: Path = _ROOT) -> int:
    """Return the most memory that this process may ever use, with its neighbours in the machine and control groups.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    limits = (group.limit_bytes() for group in _groups(root))
    return min([_machine_bytes(root)[0], *(limit for limit in limits if limit is not None)])


def available_bytes(root: Path = _ROOT) -> int:
    """Return the memory that can be used now without swapping and without passing a control group's limit.

    Another process may take it in the next moment.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    frees = (group.free_bytes() for group in _groups(root))
    return min([_machine_bytes(root)[1], *(free for free in frees if free is not None)])


def _machine_bytes(root: Path) -> tuple[int, int]:
    """Return the machine's memory, and what of it is available; all of it where no system call says so."""
    if sys.platform == "win32":
        return _windows_bytes()
    rows = _read_rows(root / "proc" / "meminfo")
    if "MemTotal" in rows:
        total = rows["MemTotal"] * 1024
        return total, min(total, rows.get("MemAvailable", rows["MemTotal"]) * 1024)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total, total


def _windows_bytes() -> tuple[int, int]:  # pragma: no cover - only there
    # MEMORYSTATUSEX: two 32-bit fields, of which the first is the structure's size, then seven of 64 bits.
    status = (ctypes.c_uint64 * 8)()
    status[0] = ctypes.sizeof(status)
    if not getattr(ctypes, "windll").kernel32.GlobalMemoryStatusEx(status):  # noqa: B009 - unknown elsewhere
        raise OSError("GlobalMemoryStatusEx failed")
    return status[1], status[2]


@cache
def _groups(root: Path) -> tuple[_Group, ...]:
    """Return the control groups that bound this process, found once: it does not change them while it runs."""
    found: list[_Group] = []
    for mount, version, group in _mounts(root):
        folder = root / mount.lstrip("/")
        names = [name for name in group.split("/") if name]
        if ".." not in names and folder.joinpath(*names).is_dir():
            found += (_Group(folder.joinpath(*names[:depth]), version) for depth in range(len(names), -1, -1))
        else:  # the group is outside of what is mounted here, so the mount is what is known
            found.append(_Group(folder, version))
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
    """Return a path of mountinfo's, where space, tab, newline and backslash are octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _read_lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text("utf-8", "surrogateescape").splitlines()
    return []


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None if it says ``max``, or is not there."""
    word = "".join(_read_lines(path)[:1]).strip()
    return int(word) if word.isascii() and word.isdigit() else None


def _read_rows(path: Path) -> dict[str, int]:
    """Return the rows of a file of names and numbers."""
    rows = (line.replace(":", " ").split() for line in _read_lines(path))
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isascii() and row[1].isdigit()}
