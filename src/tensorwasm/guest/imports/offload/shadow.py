"""Shadow runs: now and then a region runs elsewhere and in the guest too, and what came of both is compared.

The guard of such a run has the region's code run elsewhere, keeps what that would have written, leaves memory as it was
and declines. The region then runs as WebAssembly, and the guest goes on with that. At its end the module calls the
guard once more, which compares the outputs and all bytes that the region may write.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from tensorwasm.artifacts.hashing import blake3

if TYPE_CHECKING:
    from tensorwasm.guest.memory.linear_memory import GuestMemory
    from tensorwasm.offload.analysis.regions import LoopRegion
    from tensorwasm.offload.plan_cache import PlanKey

LOOK_S: Final = 5.0
"""How long a region may still run after another process has found a run of it that differs."""
_MOST_RANGES: Final = 4
_MOST_NUMBERS: Final = 32
"""Of both, what is shown has less than `tensorwasm.values.MOST_EVIDENCE` characters."""

KeptRanges = list[tuple[int, bytes]]
"""First byte in linear memory and content of what a run would have written."""

_log: Final = logging.getLogger(__name__)


class SwitchedOff(Protocol):
    """The regions of a module that are off because a run differed, in this process or another one. Thread-safe."""

    def is_off(self, region: int) -> bool:
        """Return whether a region is."""

    def add(self, region: int, evidence: str) -> None:
        """Switch a region off."""


class ShadowSampler:
    """Which runs of a module's regions are compared, and which regions are off because one differed. Thread-safe.

    Args:
        module: BLAKE3 of the module.
        regions: how many there are.
        every: of so many runs of a region one is compared; 0 for none.
        records: what other processes know too, asked every `LOOK_S`; None if there is no such thing.
    """

    def __init__(self, module: bytes, regions: int, every: int, records: SwitchedOff | None = None) -> None:
        self.module = module
        self._every = every
        self._runs = [itertools.count(1) for _ in range(regions)]
        self._off: set[int] = set()
        self._records = records
        self._looks_s = [-math.inf] * regions  # when each was last asked for

    def is_due(self, number: int) -> bool:
        """Count a run of a region; return whether it is to be compared."""
        return next(self._runs[number]) % self._every == 0 if self._every else False

    def is_off(self, number: int) -> bool:
        """Return whether a run of a region differed."""
        if number in self._off:
            return True
        if self._records is None or (now_s := time.monotonic()) < self._looks_s[number] + LOOK_S:
            return False
        self._looks_s[number] = now_s
        if self._records.is_off(number):
            self._off.add(number)
        return number in self._off

    def switch_off(self, number: int, evidence: str) -> None:
        """Have a region run in the guest alone from now on, in all processes, and log why."""
        self._off.add(number)
        if self._records is not None:
            self._records.add(number, evidence)
        _log.error("a region that ran elsewhere differed from WebAssembly and is off: %s", evidence)


@dataclass(slots=True)
class ShadowRun:
    """A region that has run elsewhere, and is running in the guest.

    Attributes:
        expected: what the outputs would be, as the guard gives them.
        kept: what memory would be.
    """

    number: int
    key: PlanKey
    region: LoopRegion
    values: Sequence[int]
    expected: list[int]
    kept: KeptRanges = field(repr=False)

    def evidence(self, sampler: ShadowSampler, outputs: list[int], memory: GuestMemory | None) -> str:
        """Return how the run in the guest, which trapped without a memory, differs; empty if it does not."""
        ranges: list[dict[str, object]] = []
        if memory is not None:
            differing = [each for each in self.kept if memory.view(each[0], len(each[1])) != each[1]]
            if not differing and outputs == self.expected:
                return ""
            ranges = [_describe(memory, *each) for each in differing[:_MOST_RANGES]]
        found: Mapping[str, object] = {
            "unix_ms": time.time_ns() // 1_000_000,
            "module": sampler.module.hex(),
            "region": self.number,
            "function": self.region.function,
            "integers": self.key.integers[:_MOST_NUMBERS],
            "memory_bytes": self.key.memory_bytes,
            "inputs": self.values[:_MOST_NUMBERS],
            "outputs_elsewhere": self.expected[:_MOST_NUMBERS],
            "outputs": "trap" if memory is None else outputs[:_MOST_NUMBERS],
            "ranges": ranges,
        }
        return json.dumps(found)


def _describe(memory: GuestMemory, first: int, elsewhere: bytes) -> dict[str, object]:
    here = bytes(memory.view(first, len(elsewhere)))
    at = next(at for at, (one, other) in enumerate(zip(here, elsewhere, strict=True)) if one != other)
    hashes = {"hash": blake3(here).hex(), "hash_elsewhere": blake3(elsewhere).hex()}
    return {"first": first, "bytes": len(here), "differs_at": first + at, **hashes}
