"""What a test leaves behind: threads of ours, child processes, descriptors. Linux only.

Judged by what is there that was not there before, one by one: what an earlier test had left may go away meanwhile.
Templates of worker processes, and the sockets at which they are asked, stay as long as this process.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tensorwasm.runtime.workers import template


def threads() -> set[threading.Thread]:
    """Return the threads that this project started and that have not ended."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("tensorwasm-")}


def children() -> set[tuple[int, str]]:
    """Return this process's children: number, and when each began, for numbers are used again."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that is ending as it is looked at
            found |= {(number, _began(number)) for number in map(int, (task / "children").read_text().split())}
    kept = [*(each.process for each in template._kept.values()), *template._leaving]
    return {(number, began) for number, began in found if number not in {each.pid for each in kept}}


def descriptors() -> Counter[str]:
    """Return how many descriptors are open of what: a socket and a pipe have a number of their own."""
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that the folder was read through
            found[str(entry.readlink())] += 1
    for each in template._kept.values():
        del found[str(Path(f"/proc/self/fd/{each.asking.fileno()}").readlink())]
    return found


def _began(number: int) -> str:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Before:
    """What was there when it was made."""

    threads: set[threading.Thread] = field(default_factory=threads)
    children: set[tuple[int, str]] = field(default_factory=children)
    descriptors: Counter[str] = field(default_factory=descriptors)

    def new(self, patience_s: float) -> dict[str, object]:
        """Return what has come since and is still there, by kind; nothing for nothing.

        Args:
            patience_s: how long threads may take to end: a listener's ends a moment after its ticket.
        """
        for thread in threads() - self.threads:
            thread.join(patience_s)
        came = {
            "threads": threads() - self.threads,
            "children": children() - self.children,
            "descriptors": descriptors() - self.descriptors,
        }
        return {kind: what for kind, what in came.items() if what}
