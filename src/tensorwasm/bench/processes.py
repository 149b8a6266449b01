"""Processes: what one holds, as Linux reports it, and interpreters that a benchmark starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tensorwasm.errors import InternalError


@contextmanager
def _proc_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise InternalError("the process has ended, or the system has no /proc: this benchmark needs Linux") from None


@_proc_errors()
def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@_proc_errors()
def descriptor_count(process: int | str = "self") -> int:
    """Return the number of open files of a process, for this one with the listing's own."""
    return len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208 - names are enough


@_proc_errors()
def mapping_count() -> int:
    """Return the number of ranges in this process's address space."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


@_proc_errors()
def first_child(process: int) -> int:
    """Return the first process that a process has started, or itself without one."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(children[0]) if children else process


def run_python(*arguments: str, settings: Mapping[str, str] | None = None) -> tuple[str, float]:
    """Run this interpreter with further environment variables; return its output and the seconds that it took."""
    command, variables = [sys.executable, *arguments], {**os.environ, **(settings or {})}
    start = time.perf_counter()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter and scripts, without a shell
    spent_s = time.perf_counter() - start
    if done.returncode:
        raise InternalError(f"a process of the benchmark exited with code {done.returncode}: {done.stderr[-400:]}")
    return done.stdout, spent_s


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder of this user's alone, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as name:
        yield Path(name)


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
