"""Making the report and printing it."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tensorwasm.doctor.checks import CHECKS
from tensorwasm.doctor.machine import Machine
from tensorwasm.doctor.rows import Report, Row, Status
from tensorwasm.doctor.system import LocalSystem, System

_WIDTH: Final = 110
_LABEL: Final = 22


def report(choice: str, system: System | None = None) -> Report:
    """Look at everything and return what was found.

    Args:
        choice: the device that must work: ``auto``, ``emulator``, ``cuda`` or ``cuda:N``.
        system: the machine; this one unless a test brings another.

    Raises:
        InvalidArgs: no such choice.
    """
    machine = Machine(system or LocalSystem(), choice)
    try:
        rows = tuple(row for check in CHECKS for row in check(machine))
        opened = machine.opened.device
        name = f"{opened.info.kind}: {opened.info.name}" if opened else ""
    finally:
        machine.close()
    ok = bool(name) and all(row.status is not Status.FAIL for row in rows)
    return Report(ok, choice, name, machine.system.platform, rows)


def render(found: Report) -> str:
    """Return the report as plain ASCII text: a line a row, why and what to do below it."""
    verdict = f"{found.device} works." if found.ok else "The chosen device does not work."
    return render_rows(f"TensorWasm doctor: --device {found.choice} on {found.platform}", found.rows, verdict)


def render_rows(title: str, rows: Sequence[Row], verdict: str) -> str:
    """Return rows as `render` does, between a title and what follows from them."""
    lines = [title, ""]
    for row in rows:
        lines += _lines(row)
    counts = Counter(row.status for row in rows)
    lines += ["", f"{counts[Status.FAIL]} FAIL, {counts[Status.WARN]} WARN. {verdict}"]
    return "\n".join(_printable(line) for line in lines) + "\n"


def _lines(row: Row) -> list[str]:
    head = f"{row.status:<4}  {row.check:<{_LABEL}}  "
    lines = _wrap(row.seen, head) or [head.rstrip()]
    for word, text in (("why: ", row.diagnosis), ("fix: ", row.fix)):
        lines += _wrap(text, " " * (6 + _LABEL + 2) + word)
    return lines


def _wrap(text: str, head: str) -> list[str]:
    """Wrap text after a head; commands and paths stay in one piece."""
    indent = " " * len(head)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _printable(line: str) -> str:
    return "".join(character if " " <= character <= "~" else "?" for character in line)
