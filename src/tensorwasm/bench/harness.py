"""What benchmarks share: guests and kernels of the checkout, generated modules of any size, processes and folders.

Generated functions are such as compilers write: arithmetic, loads and stores, calls, loops.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tensorwasm.errors import InternalError, InvalidArgs
from tensorwasm.wasm.binary import signed, sized, unsigned, vector
from tensorwasm.wasm.sections import HEADER

FUNCTION_BYTES: Final = 230
"""About the size of a generated function."""

_LOCALS: Final = 6
_ARITHMETIC: Final = b"\x6a\x6b\x6c\x71\x72\x73\x74"  # i32.add to i32.shl


def read_example(name: str) -> bytes:
    """Return the bytes of ``examples/<name>``; InvalidArgs if the package does not run from a checkout."""
    return read_checkout(f"examples/{name}")


def read_guest(name: str) -> bytes:
    """Return a guest that only benchmarks run; raises as `read_example` does."""
    return read_checkout(f"bench/guests/{name}.wasm")


def checkout_path(name: str) -> Path:
    """Return where a file of a checkout is, by its path from the root."""
    return Path(__file__).resolve().parents[3] / name


def read_checkout(name: str) -> bytes:
    """Return a file by its path from the root; raises as `read_example` does."""
    try:
        return checkout_path(name).read_bytes()
    except OSError:
        raise InvalidArgs(f"benchmarks need {name}: run them from a checkout of the project") from None


def make_module(code_bytes: int, seed: int = 0, distinct: int | None = None, *, loops: bool = True) -> bytes:
    """Return a valid module with one export, ``f``, which must not be called: it may not end.

    Args:
        code_bytes: approximate size of the code.
        seed: a seed gives the same module every time.
        distinct: number of different bodies, repeated in turn, which is quicker to make; None for all.
        loops: whether functions have loops.
    """
    source = random.Random(seed)  # noqa: S311 - the same module every time, no secret
    count = max(1, code_bytes // FUNCTION_BYTES)
    made = [_function(source, count, _STATEMENTS if loops else _STRAIGHT) for _ in range(min(count, distinct or count))]
    sections = {
        1: b"\x01\x60\x02\x7f\x7f\x01\x7f",
        3: unsigned(count) + bytes(count),
        5: b"\x01\x00\x02",
        7: b"\x01\x01f\x00\x00",
        10: vector([made[index % len(made)] for index in range(count)]),
    }
    return HEADER + b"".join(bytes([number]) + sized(body) for number, body in sections.items())


_Statement = Callable[[random.Random, int], bytes]


def _function(source: random.Random, count: int, statements: Sequence[_Statement]) -> bytes:
    code = bytearray(b"\x01\x04\x7f")
    for _ in range(source.randint(6, 30)):
        code += source.choice(statements)(source, count)
    return sized(bytes(code) + b"\x20\x00\x0b")


def _compute(source: random.Random, _count: int) -> bytes:
    return _get(source) + _get(source) + bytes([source.choice(_ARITHMETIC)]) + _set(source)


def _load(source: random.Random, _count: int) -> bytes:
    return _address(source) + b"\x28\x02" + unsigned(source.randrange(4096)) + _set(source)


def _store(source: random.Random, _count: int) -> bytes:
    return _address(source) + _get(source) + b"\x36\x02" + unsigned(source.randrange(4096))


def _call(source: random.Random, count: int) -> bytes:
    return _get(source) + _get(source) + b"\x10" + unsigned(source.randrange(count)) + _set(source)


def _loop(source: random.Random, _count: int) -> bytes:
    index = unsigned(source.randrange(_LOCALS))
    step, end = (signed(source.randrange(*limits)) for limits in ((1, 1000), (1 << 30,)))
    return b"\x03\x40\x20" + index + b"\x41" + step + b"\x6a\x22" + index + b"\x41" + end + b"\x48\x0d\x00\x0b"


_STRAIGHT: Final = (_compute, _load, _store, _call)
_STATEMENTS: Final = (*_STRAIGHT, _loop)


def _get(source: random.Random) -> bytes:
    return b"\x20" + unsigned(source.randrange(_LOCALS))


def _set(source: random.Random) -> bytes:
    return b"\x21" + unsigned(source.randrange(_LOCALS))


def _address(source: random.Random) -> bytes:
    return _get(source) + b"\x41" + signed(0xFFFF) + b"\x71"


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
def server_process(command: int) -> int:
    """Return the process that serves alone, which ``tensor-wasm serve`` has started; the command's own without one."""
    for child in Path(f"/proc/{command}/task/{command}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text() == "tw-alone\n":
            return int(child)
    return command


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
