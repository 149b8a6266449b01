"""Results of the checks, and the text report that is made of them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_WIDTH: Final = 110
_LABEL: Final = 22


class Status(StrEnum):
    """Severity of a result."""

    OK = "OK"
    INFO = "INFO"  # neither good nor bad
    WARN = "WARN"  # something is broken that the chosen device does not need
    FAIL = "FAIL"  # keeps the chosen device from working


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One row of the report; `diagnosis` and `fix` are empty where there is nothing to explain or to do."""

    check: str  # stable: programs read it
    status: Status
    seen: str
    diagnosis: str = ""
    fix: str = ""


Results = CheckResult | tuple[CheckResult, ...] | None
"""What one check returns; None if it does not apply to the machine."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Results of all checks of a machine, in the order in which they were made.

    Attributes:
        ok: the chosen device works and no check failed.
        choice: device that was asked for.
        device: kind and name of the device that opened; empty if none did.
        platform: the value of ``sys.platform``.
        rows: the results.
    """

    ok: bool
    choice: str
    device: str
    platform: str
    rows: tuple[CheckResult, ...]


def render(report: MachineReport) -> str:
    """Return a report as plain ASCII text: one line per result, cause and fix below it."""
    verdict = f"{report.device} works." if report.ok else "The chosen device does not work."
    return render_rows(f"TensorWasm doctor: --device {report.choice} on {report.platform}", report.rows, verdict)


def render_rows(title: str, rows: Sequence[CheckResult], verdict: str) -> str:
    """Return results as `render` does, between a title and a verdict."""
    lines = [title, ""]
    for row in rows:
        head = f"{row.status:<4}  {row.check:<{_LABEL}}  "
        lines += _wrap(row.seen, head) or [head.rstrip()]
        for label, text in (("why: ", row.diagnosis), ("fix: ", row.fix)):
            lines += _wrap(text, " " * len(f"FAIL  {'':{_LABEL}}  ") + label)
    counts = Counter(row.status for row in rows)
    lines += ["", f"{counts[Status.FAIL]} FAIL, {counts[Status.WARN]} WARN. {verdict}"]
    return "".join(f"{_printable(line)}\n" for line in lines)


def _wrap(text: str, head: str) -> list[str]:
    """Wrap a text after a head, without breaking commands or paths."""
    indent = " " * len(head)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _printable(line: str) -> str:
    return "".join(character if " " <= character <= "~" else "?" for character in line)
