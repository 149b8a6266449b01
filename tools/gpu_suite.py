"""Run all suites that need a GPU, and write the report that is committed.

Every suite runs, even if the one before it failed; each has a log of its own beside the report. A skipped test counts
as a failure: on a machine with a GPU there is nothing to skip.

Suites can be run one by one: the report keeps the results of the others on the same GPU with the same sources, and is
``ok`` only if all have run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent


SOURCES = (
    "bench/guests/offload",
    "examples",
    "pyproject.toml",
    "src",
    "tests",
    "tools/gpu_suite.py",
    "tools/guard_exam.py",
    "tools/straight_lines.py",
)


@dataclass(frozen=True, slots=True)
class Suite:
    """One run of pytest or of a benchmark.

    Attributes:
        name: of the log.
        command: arguments after the interpreter; ``{report}`` stands for a JSON file beside the report, ``{kept}`` for
            one beside the logs, where a suite that is run again finds what it had done.
        limit_s: after which it is killed, with all processes that it started.
        tests: whether it writes a JUnit file.
    """

    name: str
    command: tuple[str, ...]
    limit_s: int
    tests: bool = True


# A call into a driver may hang and hold the interpreter's lock: the dump of the stacks needs no lock.
HANGS = ("--timeout", "120", "--timeout-method", "thread", "-o", "faulthandler_timeout=60")
PYTEST = ("-m", "pytest", "-q", "--require-gpu", "-p", "no:cacheprovider", "-p", "no:benchmark", *HANGS)
SPREAD = ("-n", "8", "--dist", "worksteal")
# The GPU's own tests and offloaded loops are suites of their own; stores of artifacts use no GPU.
WITHOUT = tuple(f"--ignore=tests/conformance/{folder}" for folder in ("cuda", "artifacts", "offload"))
BENCH = ("-m", "tensorwasm.cli", "bench")
ON_GPU = ("--device", "cuda", "--json", "{report}")
SUITES = (
    Suite("doctor", ("-m", "tensorwasm.cli", "doctor", "--device", "cuda"), 60, tests=False),
    Suite(
        "instructions",
        (*PYTEST, *SPREAD, "tests/conformance", *WITHOUT, "-k", "instructions"),
        600,
    ),
    Suite(
        "conformance",
        (*PYTEST, *SPREAD, "tests/conformance", *WITHOUT, "-k", "not instructions"),
        600,
    ),
    Suite("cuda", (*PYTEST, "tests/conformance/cuda"), 600),
    Suite("offload-loops", (*PYTEST, *SPREAD, "tests/conformance/offload/test_devices.py"), 600),
    Suite("offload", (*BENCH, "offload", "--size", "large", "--resume", "{kept}", *ON_GPU), 595, tests=False),
    Suite("offload-kernels", (*BENCH, "offload-kernels", *ON_GPU), 595, tests=False),
    # A little more than half of them are accepted and run.
    Suite("guard", ("tools/guard_exam.py", "--kernels", "15000", "--report", "{report}"), 595, tests=False),
    Suite("guard-cost", ("tools/guard_bench.py", "--report", "{report}"), 595, tests=False),
    Suite("programs", ("tools/straight_lines.py", "--report", "{report}"), 590, tests=False),
    *(
        Suite(name, (*BENCH, name, *ON_GPU), 180, tests=False)
        for name in ("job", "dispatch", "memory", "quota", "shares", "tenants", "waiting")
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a suite; counts are of tests, 0 for a benchmark."""

    suite: str
    ok: bool
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()


def run(suite: Suite, out: Path, device: str) -> Outcome:
    """Run one suite, with a log in a folder beside the report."""
    logs = out / "gpu-logs"
    logs.mkdir(parents=True, exist_ok=True)
    log, junit = logs / f"{suite.name}.log", logs / f"{suite.name}.xml"
    files = {"{report}": str(out / f"{suite.name}-{device}.json"), "{kept}": str(logs / f"{suite.name}-kept.json")}
    command = [
        sys.executable,
        *(files.get(word, word) for word in suite.command),
        *((f"--junit-xml={junit}",) if suite.tests else ()),
    ]
    start = time.monotonic()
    with log.open("w") as lines:
        code = await_end(
            subprocess.Popen(command, cwd=ROOT, stdout=lines, stderr=subprocess.STDOUT, start_new_session=True),
            suite.limit_s,
        )
    seconds = round(time.monotonic() - start, 1)
    if not suite.tests:
        return Outcome(suite.name, code == 0, seconds)
    if not junit.exists():
        return Outcome(suite.name, False, seconds, failures=("no result: see the log",))
    cases = list(ET.parse(junit).iter("testcase"))  # noqa: S314 - written by our own pytest just now
    junit.unlink()
    bad = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = [c for c in cases if c.find("skipped") is not None]
    names = tuple(f"{c.get('classname')}::{c.get('name')}" for c in bad + skipped)
    good = len(cases) - len(bad) - len(skipped)
    return Outcome(suite.name, code == 0 and not names, seconds, good, len(bad), len(skipped), names[:50])


def await_end(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Return a process's exit code; at the limit its process group is killed."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def describe_device() -> dict[str, object]:
    """Return the GPU's name and driver as the product itself reports them."""
    code = (
        "import json; from dataclasses import asdict; from tensorwasm.gpu.opening import open_device; "
        "print(json.dumps(asdict(open_device('cuda')[0].info)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"no GPU to run on:\n{done.stderr.strip().splitlines()[-1] if done.stderr else 'no reason given'}")
    return dict(json.loads(done.stdout))


def digest_sources(root: Path = ROOT) -> str:
    """Return a digest of the sources' names and contents."""
    digest = hashlib.sha256()
    for name in SOURCES:
        for path in sorted((root / name).rglob("*")) if (root / name).is_dir() else [root / name]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def earlier_results(reports: Sequence[Path], device: dict[str, object], sources: str) -> dict[str, dict[str, object]]:
    """Return the results in reports of the same device with the same sources; the last report of a suite counts."""
    found = {}
    for path in reports:
        report = json.loads(path.read_text()) if path.exists() else {}
        if (report.get("device"), report.get("sources")) == (device, sources):
            found |= {suite["suite"]: suite for suite in report["suites"]}
    return found


def versions() -> dict[str, str]:
    """Return versions that results depend on."""
    from tensorwasm.bench.figures import versions as found  # noqa: PLC0415 - only once PYTHONPATH is set

    return found()


def main() -> int:
    """Run the named suites, or all; return 0 if all pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="folder of the report")
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(suite.name for suite in SUITES)}; default all")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    device = describe_device()
    name = str(device["name"]).lower().replace(" ", "-")
    file, sources = f"gpu-{name}.json", digest_sources()
    outcomes = earlier_results((ROOT / "bench" / "results" / file, options.out / file), device, sources)
    chosen = [suite for suite in SUITES if not options.suites or suite.name in options.suites]
    for suite in chosen:
        outcome = run(suite, options.out, name)
        outcomes[suite.name] = asdict(outcome)
        show(outcome)
    report = {
        "device": device,
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "sources": sources,
        "ok": all(suite.name in outcomes and outcomes[suite.name]["ok"] for suite in SUITES),
        "suites": [outcomes[suite.name] for suite in SUITES if suite.name in outcomes],
    }
    (options.out / file).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(outcomes[suite.name]["ok"] for suite in chosen) else 1


def show(outcome: Outcome) -> None:
    """Print a line with the result, and the failures."""
    print(
        f"{outcome.suite:14}{'ok' if outcome.ok else 'FAILED':8}{outcome.passed:6} passed {outcome.failed:4} failed "
        f"{outcome.skipped:4} skipped {outcome.seconds:8} s",
        *outcome.failures,
        sep="\n    ",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
