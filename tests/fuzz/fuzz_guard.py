"""Sit the exam of safety with hostile kernels of random seeds, guarded as they are and damaged after it.

    python tests/fuzz/fuzz_guard.py --seconds 60 --seed 0

The same seed makes the same kernels. Exits 1 at the first kernel that the verifier accepts and that breaks a rule on
the emulator; its guarded text is left beside this file's name in the folder it is started from. Linux only.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracles.guarding import EMULATOR_SHARED_BASE, verified_text
from oracles.windows import Exam
from strategies.hostile import generate
from strategies.hostile.damage import damage
from tensorwasm import ptx
from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.guard import guard


def main() -> int:
    """Run kernels until the time is up; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    exam, until = Exam(options.seed), time.monotonic() + options.seconds
    tried = accepted = 0
    while time.monotonic() < until:
        seed = options.seed + tried
        hostile = generate(seed)
        tried += 1
        with suppress(MalformedPtx):
            made = guard(ptx.extract(ptx.parse(hostile.text), hostile.entry), EMULATOR_SHARED_BASE)
            for module in (made.module, damage(made.module, seed, times=1 + seed % 3)):
                text = verified_text(made, module)
                outcome = exam.run(hostile, text)
                accepted += not outcome.lacking
                if outcome.violations:
                    found = Path("fuzz_guard.failed.ptx")
                    found.write_text(text.text, "ascii")
                    sys.stderr.write(f"seed {seed}: {outcome.violations[0]}; the text is in {found}\n")
                    return 1
    exam.close()
    sys.stdout.write(f"{tried} kernels, {accepted} runs of what was accepted, none of them harmful\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
