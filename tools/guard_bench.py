"""What guarding costs: every kernel of the corpus guarded against unguarded, in sessions of one device, in turn.

    python tools/guard_bench.py --report guard-bench.json

A time is the best of some rounds, of launches one after the other in one stream. Where a process puts buffers and code
decides as much as the guard does: the same kernel is 1.01 times as slow in one process and 1.23 in the next. So every
kernel is timed in several processes, and the median of their ratios counts. Results have to be the same to the bit;
kernels that give others unguarded, too, when they run again (their order of atomics decides) are listed apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, Scalar
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT, Accounts
from tensorwasm.gpu.opening import open_device
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import NEVER, LaunchConfig

if TYPE_CHECKING:
    from case import Case
    from tensorwasm.gpu.session import Session

ROOT: Final = Path(__file__).resolve().parent.parent


class Run:
    """A kernel of the corpus in a session of its own, with its arguments in place."""

    def __init__(self, session: Session, case: Case, arguments: Sequence[Any]) -> None:
        self._session = session
        self._written: list[tuple[int, int]] = []
        self._inputs: list[tuple[int, bytes]] = []
        given: list[Argument] = []
        self._kernel = session.kernels.load(case.text().encode(), case.entry, NEVER)
        held = session._core.table.kernels[self._kernel]  # noqa: SLF001 - which parameters are pointers
        nothing = BufferOffset(session.buffers.allocate(256), 0)
        for argument, param in zip(arguments, held.shared.signature.params, strict=True):
            array = getattr(argument, "array", None)
            if array is None:
                # Some compilers add a pointer to memory that the kernel does not use.
                given.append(nothing if param.pointer else Scalar(argument.tobytes()))
                continue
            handle = session.buffers.allocate(array.nbytes)
            self._inputs.append((handle, array.tobytes()))
            if argument.written:
                self._written.append((handle, array.nbytes))
            given.append(BufferOffset(handle, 0))
        self._given = given
        self._config = LaunchConfig(case.grid, case.block, case.shared_bytes)

    def launch(self, times: int) -> float:
        """Launch it some times; return how many seconds each took."""
        began_s = time.perf_counter()
        for _ in range(times):
            self._session.kernels.submit(self._kernel, self._config, lambda: self._given, None, NEVER)
        self._session.streams.synchronize(NEVER)
        return (time.perf_counter() - began_s) / times

    def results(self) -> list[bytes]:
        """Run it once on its inputs; return what it has written."""
        for handle, data in self._inputs:
            self._session.buffers.write(handle, data, NEVER)
        self.launch(1)
        found = []
        for handle, size_bytes in self._written:
            into = bytearray(size_bytes)
            self._session.buffers.read(handle, memoryview(into), NEVER)
            found.append(bytes(into))
        return found


def compare(devices: Sequence[SharedDevice], case: Case, rounds: int) -> dict[str, Any]:
    """Return the times of a case, unguarded and guarded, and whether the results are the same."""
    sessions: list[Session] = []
    try:
        sessions += [each.open_session(memory_kind="staged") for each in devices]
        arguments = case.arguments()
        raw, guarded = (Run(session, case, arguments) for session in sessions)
        expected, found = raw.results(), guarded.results()
        repeatable = raw.results() == expected
        times = max(3, min(200, int(0.005 / max(raw.launch(2), guarded.launch(2)))))
        raw_s, guarded_s = zip(*((raw.launch(times), guarded.launch(times)) for _ in range(rounds)), strict=True)
        return {
            "case": case.name,
            "raw_us": round(1e6 * min(raw_s), 2),
            "guarded_us": round(1e6 * min(guarded_s), 2),
            "same": found == expected,
            "repeatable": repeatable,
        }
    except TensorWasmError as error:
        return {"case": case.name, "refused": f"{error.kind}: {error.message}"[:200]}
    finally:
        for session in sessions:
            session.close()


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time the kernels in this process; yield what device it is, then what each gave."""
    sys.path[:0] = [str(ROOT / "bench" / "kernels")]
    from cases import cases  # noqa: PLC0415 - of the corpus, whose folder is known now

    device, _ = open_device(given.device, jit=False)
    yield {"device": device.info.name, "driver": device.info.driver}
    ends_s, accounts = time.monotonic() + given.limit, [Accounts(), Accounts()]
    for each in accounts:
        each.register(DEFAULT_TENANT, 1 << 36)
    parts = [part for part in given.only.split(",") if part]
    limits = SessionLimits(device_bytes=1 << 36) if given.wide else None
    with (
        SharedDevice(device, accounts[0]) as raw,
        SharedDevice(device, accounts[1], guarded=True, limits=limits) as guarded,
    ):
        for case in cases(given.size):
            if time.monotonic() < ends_s and (not parts or any(part in case.name for part in parts)):
                yield compare((raw, guarded), case, given.rounds)
    device.close()


def together(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the processes found of one kernel as one row: medians, and the ratio of each process."""
    for each in found:
        if "refused" in each:
            return each
    ratios = [round(each["guarded_us"] / each["raw_us"], 4) for each in found]
    return {
        "case": found[0]["case"],
        "raw_us": round(statistics.median(each["raw_us"] for each in found), 2),
        "guarded_us": round(statistics.median(each["guarded_us"] for each in found), 2),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": ratios,
        "same": all(each["same"] for each in found),
        "repeatable": all(each["repeatable"] for each in found),
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many kernels were timed, and the mean, the median and the worst of their ratios."""
    ratios = [each["ratio"] for each in rows if "ratio" in each]
    return {
        "kernels": len(ratios),
        "geometric_mean": round(statistics.geometric_mean(ratios), 4) if ratios else None,
        "median": round(statistics.median(ratios), 4) if ratios else None,
        "worst": max(ratios, default=None),
    }


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="large", choices=("small", "large"))
    parser.add_argument("--only", default="", help="names of cases, or parts of them, with commas")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--processes", type=int, default=3, help="in how many processes each kernel is timed")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds in each process")
    parser.add_argument("--wide", action="store_true", help="guarded for windows of more than 4 GiB")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--child", action="store_true", help="time the kernels once, in this process")
    given = parser.parse_args()
    if given.child:
        for line in measure(given):
            print(json.dumps(line), flush=True)
        return 0

    info: dict[str, Any] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(given.processes):
        command = [sys.executable, __file__, *sys.argv[1:], "--child"]
        lines = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()
        info = json.loads(lines[0])
        for line in lines[1:]:
            row = json.loads(line)
            found.setdefault(row["case"], []).append(row)
    rows = [together(each) for each in found.values()]
    for row in rows:
        print(json.dumps(row))
    report = {
        **info,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "wide": given.wide,
        "processes": given.processes,
        **summary(rows),
        "written_in_cuda": summary([each for each in rows if "-" not in each["case"]]),
        "different": [each["case"] for each in rows if each.get("same") is False and each["repeatable"]],
        "not_repeatable": [each["case"] for each in rows if each.get("repeatable") is False],
        "refused": [each["case"] for each in rows if "refused" in each],
        "cases": rows,
    }
    print(json.dumps({key: value for key, value in report.items() if key != "cases"}, indent=1))
    if given.report:
        given.report.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
