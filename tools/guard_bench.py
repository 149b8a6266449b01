"""What guarding costs: every kernel of the corpus guarded against unguarded, in sessions of one device, in turn.

    python tools/guard_bench.py --report guard-bench.json

A time is the best of some rounds, of launches one after the other in one stream. Where buffers lie decides as much as
the guard does: every kernel is timed in several pairs of sessions that are open together, and the median of their
ratios counts. Results have to be the same to the bit; kernels that give others unguarded, too, when they run again
(their order of atomics decides) are listed apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
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
KINDS: Final = ("raw", "guarded")


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


def compare(devices: Sequence[SharedDevice], case: Case, rounds: int, places: int) -> dict[str, Any]:
    """Return the times of a case, unguarded and guarded, and whether the results are the same."""
    sessions: list[Session] = []
    try:
        arguments, pairs = case.arguments(), []
        for _ in range(places):
            opened = [each.open_session(memory_kind="staged") for each in devices]
            sessions += opened
            pairs.append([Run(session, case, arguments) for session in opened])
        found = [[run.results() for run in pair] for pair in pairs]
        repeatable = pairs[0][0].results() == found[0][0]
        once_s = max(run.launch(2) for run in pairs[0])
        times = max(3, min(200, int(0.005 / once_s)))
        times_s = [
            [min(each) for each in zip(*([run.launch(times) for run in pair] for _ in range(rounds)), strict=True)]
            for pair in pairs
        ]
        ratios = sorted(guarded / raw for raw, guarded in times_s)
        return {
            "case": case.name,
            **{
                f"{kind}_us": round(1e6 * statistics.median(each), 2)
                for kind, each in zip(KINDS, zip(*times_s, strict=True), strict=True)
            },
            "ratio": round(statistics.median(ratios), 4),
            "ratios": [round(each, 4) for each in ratios],
            "same": all(each == found[0][0] for pair in found for each in pair),
            "repeatable": repeatable,
        }
    except TensorWasmError as error:
        return {"case": case.name, "refused": f"{error.kind}: {error.message}"[:200]}
    finally:
        for session in sessions:
            session.close()


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="large", choices=("small", "large"))
    parser.add_argument("--only", default="", help="names of cases, or parts of them, with commas")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--places", type=int, default=3, help="pairs of sessions for each kernel")
    parser.add_argument("--limit", type=float, default=500.0, help="seconds in all")
    parser.add_argument("--wide", action="store_true", help="guarded for windows of more than 4 GiB")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()

    sys.path[:0] = [str(ROOT / "bench" / "kernels")]
    from cases import cases  # noqa: PLC0415 - of the corpus, whose folder is known now

    device, _ = open_device(given.device, jit=False)
    ends_s, found = time.monotonic() + given.limit, []
    accounts = [Accounts(), Accounts()]
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
                found.append(compare((raw, guarded), case, given.rounds, given.places))
                print(json.dumps(found[-1]), flush=True)
    ratios = [each["ratio"] for each in found if "ratio" in each]
    by_hand = [each["ratio"] for each in found if "ratio" in each and "-" not in each["case"]]
    info = device.info
    report = {
        "device": info.name,
        "driver": info.driver,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "wide": given.wide,
        "kernels": len(ratios),
        "geometric_mean": round(statistics.geometric_mean(ratios), 4) if ratios else None,
        "median": round(statistics.median(ratios), 4) if ratios else None,
        "worst": max(ratios, default=None),
        "written_in_cuda": {
            "kernels": len(by_hand),
            "geometric_mean": round(statistics.geometric_mean(by_hand), 4) if by_hand else None,
            "median": round(statistics.median(by_hand), 4) if by_hand else None,
            "worst": max(by_hand, default=None),
        },
        "different": [each["case"] for each in found if each.get("same") is False and each["repeatable"]],
        "not_repeatable": [each["case"] for each in found if each.get("repeatable") is False],
        "refused": [each["case"] for each in found if "refused" in each],
        "cases": found,
    }
    print(json.dumps({key: value for key, value in report.items() if key != "cases"}, indent=1))
    if given.report:
        given.report.write_text(json.dumps(report, indent=1) + "\n")
    device.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
