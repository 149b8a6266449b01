"""How jobs are run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_ATTEMPTS: Final = 100
MAX_DELAY_S: Final = 30 * 86_400.0
MAX_PENDING: Final = 10_000
"""Jobs of one tenant that wait, before more are refused."""

REQUEST_BYTES: Final = 1 << 20
"""The longest call, encoded."""

RESULT_BYTES: Final = 1 << 20
"""The longest answer; a job that gives more has failed as too large."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How jobs are run.

    Attributes:
        attempts: how often a job is tried unless it says otherwise.
        keep_s: how long an ended job is kept.
        places: jobs that this process runs at a time.
        share: those of one tenant, so that a flood of long ones leaves places to others.
        lease_s: how long a process that is not heard of keeps its jobs. Where several processes share a database, their
            clocks must agree much better than that.
        renew_s: how often leases are renewed, and cancelling elsewhere is noticed; at most a third of ``lease_s``.
        sweep_s: how often late, old and lost jobs are looked for.
        poll_s: how often due jobs are looked for that nobody told this process of.
        back_off_s: the longest pause after the first attempt; it doubles with each further one.
        back_off_most_s: the longest pause at all.
    """

    attempts: int = 3
    keep_s: float = 86_400.0
    places: int = 32
    share: int = 16
    lease_s: float = 30.0
    renew_s: float = 3.0
    sweep_s: float = 5.0
    poll_s: float = 2.0
    back_off_s: float = 1.0
    back_off_most_s: float = 300.0
