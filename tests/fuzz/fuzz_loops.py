"""Offload random programs of loops, and hold what is made of them to what their code does.

``python tests/fuzz/fuzz_loops.py --programs 10000 [--seconds S] [--first SEED] [--kept FILE]``, on all processors. What
was judged is kept in the file, so that a run that was cut short goes on; after a change of the code it begins anew.
Exits 1 at the first program that is offloaded wrong, and leaves its source in the folder that it is started from. It
ends with how many were offloaded, and in how many a loop was declined, by reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oracles.offload import PIPELINE, judge_functions
from strategies.loop_nests import DECLINED
from tensorwasm.bench.offload.programs import code_digest

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = 40
"""Functions of one seed, each a program."""
ENOUGH = 500
"""Of so many programs half are offloaded, and loops are declined for each reason."""
SOURCES = ("loops.py", "oracles/*.py", "strategies/loop_nests.py")


@dataclass
class Findings:
    """What became of programs.

    Attributes:
        programs: how many there were.
        offloaded: in how many a loop ran elsewhere, and did the same.
        declined: in how many a loop was declined, by reason.
        seconds: of one processor.
        wrong: the source of one that is offloaded wrong, and what is wrong; empty if none is.
    """

    programs: int = 0
    offloaded: int = 0
    declined: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    wrong: str = ""

    def add(self, other: Findings) -> None:
        self.programs += other.programs
        self.offloaded += other.offloaded
        self.declined = dict(Counter(self.declined) + Counter(other.declined))
        self.seconds += other.seconds

    def __str__(self) -> str:
        each_s = self.seconds / max(self.programs, 1)
        reasons = ", ".join(f"{reason}: {count}" for reason, count in Counter(self.declined).most_common())
        return (
            f"{self.programs} programs, none of them wrong; {self.offloaded} offloaded "
            f"({self.offloaded / max(self.programs, 1):.1%}); {each_s:.2f} s each on one processor\n"
            f"declined in: {reasons}\n"
        )


def judge(seed: int) -> Findings:
    """Judge the programs of a seed."""
    found, declined, began_s = Findings(), Counter(), time.process_time()
    for text, judgement in judge_functions(PIPELINE, seed, PROGRAMS):
        if judgement.wrong:
            return Findings(wrong=text)
        found.programs += 1
        found.offloaded += judgement.codes > 0
        declined.update(judgement.reasons())
    found.declined, found.seconds = dict(declined), time.process_time() - began_s
    return found


def judge_all(seeds: Iterator[int], until_s: float) -> Iterator[tuple[int, Findings]]:
    """Yield what became of the programs of seeds, in no order, on all processors; begin none after a time."""
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers) as pool:
        running: dict[Future[Findings], int] = {}
        while True:
            wanted = workers + 1 - len(running) if time.monotonic() < until_s else 0
            running |= {pool.submit(judge, seed): seed for seed in islice(seeds, wanted)}
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()


def read_kept(file: Path | None, digest: str) -> dict[str, Findings]:
    """Return the findings of a file by seed; none if they are of other code."""
    kept = json.loads(file.read_text()) if file is not None and file.exists() else {}
    found = kept["seeds"] if kept.get("digest") == digest else {}
    return {seed: Findings(**findings) for seed, findings in found.items()}


def digest_code() -> str:
    """Return a hash of the code that is judged, and of what judges it."""
    found = sha256(code_digest().encode())
    for path in sorted(path for name in SOURCES for path in TESTS.glob(name)):
        found.update(path.read_bytes())
    return found.hexdigest()


def main() -> int:
    """Judge programs until there are enough, or the time is up; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--first", metavar="SEED", type=int, default=0)
    parser.add_argument("--kept", metavar="FILE", type=Path)
    options = parser.parse_args()
    until_s, digest = time.monotonic() + options.seconds, digest_code()
    seeds = range(options.first, options.first - (-options.programs // PROGRAMS))
    kept = read_kept(options.kept, digest)
    for seed, findings in judge_all((seed for seed in seeds if str(seed) not in kept), until_s):
        if findings.wrong:
            Path("fuzz_loops.failed.c").write_text(findings.wrong)
            sys.stderr.write(f"seed {seed}: it is in fuzz_loops.failed.c\n{findings.wrong}\n")
            return 1
        kept[str(seed)] = findings
        if options.kept is not None:
            written = options.kept.with_suffix(".new")
            written.write_text(json.dumps({"digest": digest, "seeds": {key: asdict(kept[key]) for key in kept}}))
            written.replace(options.kept)
    total = Findings()
    for seed in seeds:
        total.add(kept.get(str(seed), Findings()))
    sys.stdout.write(str(total))
    if total.programs >= ENOUGH and (total.offloaded * 2 < total.programs or DECLINED.keys() - total.declined):
        sys.stderr.write("fewer than half were offloaded, or a reason is missing: what is generated has to be others\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
