"""`Spending`: what an invocation leaves for its account, and what an account is to it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tensorwasm.runtime.invoke.invocation import Invocation


class Policy(Protocol):
    """What holds for a tenant."""

    @property
    def weight(self) -> int:
        """Its share where tenants wait for one another."""

    @property
    def quotas(self) -> Mapping[str, int]:
        """Its limits, by name; one that is not in there is not limited."""


class UsageLedger(Protocol):
    """Where it is noted what tenants use."""

    def note(
        self,
        tenant: int,
        requests: int = 0,
        errors: int = 0,
        cpu_us: int = 0,
        gpu_us: int = 0,
        launches: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
    ) -> None:
        """Count what a tenant used."""


@dataclass(slots=True)
class Spending:
    """What is known of one invocation.

    Attributes:
        outcome: what came of it; None if it failed.
        sent_bytes: what it sent while it ran.
        began_s: when its guest was given to whoever runs it; None before that.
    """

    outcome: Invocation | None = None
    sent_bytes: int = 0
    began_s: float | None = None

    def begin(self) -> None:
        """Let its time begin."""
        self.began_s = time.perf_counter()


def sent_bytes_of(outcome: Invocation) -> int:
    """Return how many bytes an invocation gave back."""
    chunks = outcome.chunks
    return len(outcome.stdout) + len(outcome.stderr) + (sum(map(len, chunks)) if chunks else 0)
