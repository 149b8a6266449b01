"""What a check has to say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How bad a row is."""

    OK = "OK"
    INFO = "INFO"  # neither good nor bad
    WARN = "WARN"  # something does not work that the chosen device does not need
    FAIL = "FAIL"  # keeps the chosen device from working


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        check: what was looked at; stable.
        status: how bad it is.
        seen: what was found.
        diagnosis: why, empty where there is nothing to explain.
        fix: what to do, empty where there is nothing to do.
    """

    check: str
    status: Status
    seen: str
    diagnosis: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was looked at.

    Attributes:
        ok: whether the chosen device works and nothing failed.
        choice: the device that was asked for.
        device: the kind and name of the device that was tried, empty if none opened.
        platform: the operating system.
        rows: in the order in which they were looked at.
    """

    ok: bool
    choice: str
    device: str
    platform: str
    rows: tuple[Row, ...]
