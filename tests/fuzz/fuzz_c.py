"""Run random functions of C on the emulator, compiled by nvcc, and hold them to what the host's compiler makes of them.

``python tests/fuzz/fuzz_c.py --seconds 60 [--seed N]``. Exits 1 at the first source whose results differ, and leaves it
in the folder it is started from. Needs nvcc and gcc; without them it says so and runs nothing. ``--keep`` writes the
corpus that `tests/conformance/test_random_c.py` runs without compilers, and ends.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from conformance.compiled_c import compile_ptx, judge, run
from conformance.launcher import Launcher
from strategies.random_c import inputs, source, wide_arithmetic
from tensorwasm.gpu.opening import open_device

FUNCTIONS = 8
CORPUS = Path(__file__).resolve().parents[1] / "golden" / "c"
KEPT = {"int128": (wide_arithmetic(), 1), **{f"random_{seed}": (source(seed, 4), 4) for seed in range(1, 7)}}
"""Sources of the corpus, by name, and how many kernels they have."""


def keep() -> None:
    """Write what each source of the corpus is compiled to and the processor's answers."""
    for seed, (name, (text, kernels)) in enumerate(KEPT.items()):
        given = inputs(seed)
        with tempfile.TemporaryDirectory() as folder:
            answers = judge(text, Path(folder), given, kernels)
            ptx = np.array(compile_ptx(text, Path(folder)).encode())
        np.savez_compressed(CORPUS / f"{name}.npz", ptx=ptx, given=given, answers=answers)


def differences(seed: int, text: str, launcher: Launcher) -> list[str]:
    """Return the results that differ."""
    given = inputs(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = judge(text, folder, given, FUNCTIONS)
        found = run(launcher, compile_ptx(text, folder), given, FUNCTIONS)
    return [
        f"k{kernel}, lane {lane}, out[{at}]: {found[kernel, lane, at]:#x}, not {expected[kernel, lane, at]:#x}"
        for kernel, lane, at in np.argwhere(found != expected)
    ]


def main() -> int:
    """Fuzz until the time is up; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    lacking = [tool for tool in ("nvcc", "gcc") if shutil.which(tool) is None]
    if lacking:
        sys.stdout.write(f"NOTHING WAS RUN: {' and '.join(lacking)} is not installed\n")
        return 0
    if options.keep:
        keep()
        return 0
    device, _ = open_device("emulator")
    until, seed = time.monotonic() + options.seconds, options.seed
    while time.monotonic() < until:
        text = source(seed, FUNCTIONS)
        try:
            with Launcher(device) as launcher:
                wrong = differences(seed, text, launcher)
        except Exception:  # noqa: BLE001 - whatever it is, it is what this looks for
            wrong = [traceback.format_exc()]
        if wrong:
            Path("fuzz_c.failed.cu").write_text(text)
            shown = "\n".join(wrong[:20])
            sys.stderr.write(f"seed {seed}: {len(wrong)} results differ; it is in fuzz_c.failed.cu\n{shown}\n")
            return 1
        seed += 1
    sys.stdout.write(f"{(seed - options.seed) * FUNCTIONS} functions, none of them differs\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
