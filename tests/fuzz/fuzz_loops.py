"""Offload random nests of loops, and hold what is made of them to what their code does.

``python tests/fuzz/fuzz_loops.py --seconds 60 [--seed N]``. Exits 1 at the first function that is offloaded wrong, and
leaves its source in the folder that it is started from.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oracles.offload import PIPELINE, wrong_functions

FUNCTIONS = 40


def main() -> int:
    """Fuzz until the time is up; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    until, seed = time.monotonic() + options.seconds, options.seed
    while time.monotonic() < until:
        for wrong in wrong_functions(PIPELINE, seed, FUNCTIONS):
            Path("fuzz_loops.failed.c").write_text(wrong)
            sys.stderr.write(f"seed {seed}: it is in fuzz_loops.failed.c\n{wrong}\n")
            return 1
        seed += 1
    sys.stdout.write(f"{(seed - options.seed) * FUNCTIONS} functions, none of them wrong\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
