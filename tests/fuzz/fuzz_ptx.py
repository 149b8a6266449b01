"""Break PTX texts at random and see that each is refused politely and soon, or understood.

    python tests/fuzz/fuzz_ptx.py --seconds 60 --seed 0

The same seed makes the same texts. Exits 1 at the first text that raises anything but our own errors, that is slow, or
that renders to something else; the text is left beside this file's name in the folder it is started from.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracles.ptx import check_any_text
from strategies.ptx import CORPUS, mutate


def main() -> int:
    """Mutate until the time is up; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = sorted(CORPUS.values())
    until = time.monotonic() + options.seconds
    tried = understood = 0
    while time.monotonic() < until:
        text = mutate(rng, rng.choice(texts))
        tried += 1
        try:
            understood += check_any_text(text) is not None
        except Exception:  # noqa: BLE001 - whatever it is, it is what this looks for
            traceback.print_exc()
            found = Path("fuzz_ptx.failed.ptx")
            found.write_text(text, "utf-8", errors="surrogatepass")
            sys.stderr.write(f"text {tried} of seed {options.seed} failed; it is in {found}\n")
            return 1
    sys.stdout.write(f"{tried} texts, {understood} of them understood, none of them trouble\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
