"""Compares the figures of benchmarks between two source trees, measured in turn on one machine.

Each round runs a benchmark once in either tree, and every second round in the other order. For each figure the ratio of
a round is how much worse this tree is: 1.1 means ten percent slower, or that much less throughput. A figure has become
worse if the whole 95 % interval of its mean ratio (of logarithms, by Student's t) lies beyond 1.05.

    python tools/compare_benchmarks.py --base ../before --rounds 11 --out report.json sandbox deploy "http --seconds 2"
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIMIT: Final = 1.05
"""Ratio beyond which a figure is worse."""

RATES: Final = frozenset({"requests/s", "operations/s", "GB/s", "1/s", "MB/s"})
"""Units of which more is better."""

T_95: Final = (
    math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
)  # fmt: skip
"""97.5 % quantiles of Student's t, by degrees of freedom from 0; the last one serves for more."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure in both trees: medians, the mean ratio (more is worse) and its 95 % interval."""

    benchmark: str
    figure: str
    unit: str
    rounds: int
    before: float
    after: float
    ratio: float
    low: float
    high: float

    @property
    def worse(self) -> bool:
        """Whether the whole interval lies beyond `LIMIT`."""
        return self.low > LIMIT


def compare(benchmark: str, figure: str, unit: str, pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Return the comparison of a figure from its values before and after, which are positive."""
    sign = -1 if unit in RATES else 1
    logs = [sign * math.log(after / before) for before, after in pairs]
    mean = statistics.fmean(logs)
    freedom = len(logs) - 1
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if freedom else 0.0
    margin = T_95[min(freedom, len(T_95) - 1)] * error if freedom else math.inf
    before, after = (statistics.median(values) for values in zip(*pairs, strict=True))
    low, high = math.exp(mean - margin) if margin < math.inf else 0.0, math.exp(mean + min(margin, 50))
    return Comparison(benchmark, figure, unit, len(logs), before, after, math.exp(mean), low, high)


def measure(tree: Path, benchmark: str, home: Path) -> dict[str, tuple[str, float]]:
    """Run a benchmark of a tree with caches of its own; return unit and value of each figure by its name.

    Raises:
        RuntimeError: it printed no report.
    """
    report = home / "report.json"
    report.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "TENSOR_WASM_STATE_DIR": str(home / "state")}
    command = [sys.executable, "-m", "tensorwasm.cli", "bench", *shlex.split(benchmark)]
    done = subprocess.run(
        [*command, "--json", str(report)], env=environment, cwd=tree, capture_output=True, check=False
    )
    if not report.exists():
        raise RuntimeError(f"{tree}: {benchmark}: {done.stderr.decode()[-2000:]}")
    return {each["name"]: (each["unit"], each["value"]) for each in json.loads(report.read_text())["figures"]}


def run(base: Path, benchmarks: Sequence[str], rounds: int) -> list[Comparison]:
    """Return the comparisons of all figures that both trees have, printed as they are made."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        trees = {"before": base.resolve(), "after": ROOT}
        for name in trees:
            (Path(folder) / name).mkdir()
        for benchmark in benchmarks:
            began_s = time.monotonic()
            pairs: Mapping[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
            for index in range(rounds):
                order = list(trees) if index % 2 == 0 else list(trees)[::-1]
                values = {name: measure(trees[name], benchmark, Path(folder) / name) for name in order}
                for figure, (unit, before) in values["before"].items():
                    after = values["after"].get(figure, (unit, 0.0))[1]
                    if before > 0 and after > 0:
                        pairs[figure, unit].append((before, after))
            made = [compare(benchmark, figure, unit, each) for (figure, unit), each in pairs.items()]
            print(f"{benchmark}: {rounds} rounds in {time.monotonic() - began_s:.0f} s", flush=True)
            for each in made:
                print(
                    f"  {'WORSE' if each.worse else '     '} {each.ratio:6.3f} [{each.low:.3f}, {each.high:.3f}] "
                    f"{each.before:12.4g} -> {each.after:12.4g} {each.unit:12} {each.figure}",
                    flush=True,
                )
            found += made
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparisons; return 1 if a figure became worse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("benchmarks", nargs="+", help="names with their options, each one argument")
    parser.add_argument("--base", type=Path, required=True, help="the other tree: a checkout of what was before")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, help="write the comparisons as JSON")
    asked = parser.parse_args(arguments)
    found = run(asked.base, asked.benchmarks, asked.rounds)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    return int(any(each.worse for each in found))


if __name__ == "__main__":
    sys.exit(main())
