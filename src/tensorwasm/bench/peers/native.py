"""Native code of a C source, as a peer: compiled when it is needed, and run in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from tensorwasm.bench.figures import MissingPeer
from tensorwasm.bench.harness import run_python, scratch_folder

GCC: Final = "gcc -O3"

_OPTIONS: Final = ("-std=gnu17", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-fvisibility=hidden")
_RUN: Final = """
import ctypes, json, sys, time
path, samples, enough_s, *sizes = sys.argv[1:]
library, sizes, times = ctypes.CDLL(path), [int(size) for size in sizes], []
while len(times) < int(samples) and sum(times) < float(enough_s):
    library.init(*sizes)
    began = time.perf_counter()
    library.run(*sizes)
    times.append(time.perf_counter() - began)
print(json.dumps(times))
"""


def time_native(source: bytes, header: bytes, sizes: Sequence[int], samples: int, enough_s: float) -> list[float]:
    """Return the seconds of each call of ``run``, each after one of ``init`` with the same arguments.

    Args:
        source: of the program, in C.
        header: what it includes as ``program.h``.
        sizes: the arguments.
        samples: most calls.
        enough_s: no further call begins after so many seconds of calls.

    Raises:
        MissingPeer: there is no gcc, or it refuses the source.
    """
    gcc = shutil.which("gcc")
    if gcc is None:
        raise MissingPeer(f"{GCC}: gcc is not installed")
    with scratch_folder() as folder:
        (folder / "program.c").write_bytes(source)
        (folder / "program.h").write_bytes(header)
        library = folder / "program.so"
        command = [gcc, *_OPTIONS, "-o", str(library), str(folder / "program.c")]
        built = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a compiler and our own source, without a shell
        if built.returncode:
            raise MissingPeer(f"{GCC}: {built.stderr[-400:]}")
        taken, _ = run_python("-c", _RUN, str(library), str(samples), str(enough_s), *map(str, sizes))
        return [float(each) for each in json.loads(taken)]
