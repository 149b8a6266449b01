"""`MismatchRecords`: which regions of a tenant's module are off because a run of them differed from WebAssembly.

Records are kept beside plans, signed, each under a hash of the tenant, the region's code, and our own code: a later
version makes other plans, and may try again. All processes of this user on this machine look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tensorwasm.gpu.resources.kernel_store import name_of
from tensorwasm.offload.module import LoneRegion
from tensorwasm.runtime.offload.plan_job import code_digest, region_name

if TYPE_CHECKING:
    from tensorwasm.gpu.resources.kernel_store import KernelStore

MOST_KEPT: Final = 4
"""Runs whose evidence a record keeps, the latest ones."""


class MismatchRecord(msgspec.Struct, frozen=True):
    """Runs of a region that differed.

    Attributes:
        count: how many there were; processes that write at once may miss one.
        evidence: of the latest ones, each a JSON object (`tensorwasm.guest.imports.offload.shadow.ShadowRun`).
    """

    count: int
    evidence: tuple[str, ...]


_decoder: Final = msgspec.json.Decoder(MismatchRecord)


class MismatchRecords:
    """The records of one module's regions. Thread-safe.

    Args:
        store: where they are kept; None for nowhere.
        tenant: whose module it is.
        lone: its regions.
    """

    def __init__(self, store: KernelStore | None, tenant: str, lone: Sequence[LoneRegion]) -> None:
        self._store, self._tenant, self._lone = store, tenant, lone

    def find(self, region: int) -> MismatchRecord | None:
        """Return the record of a region, by its number; None if none of its runs is known to have differed."""
        data = None if self._store is None else self._store.get(self._name(region))
        return None if data is None else _decoder.decode(data)

    def is_off(self, region: int) -> bool:
        """Return whether a region has a record."""
        return self.find(region) is not None

    def add(self, region: int, evidence: str) -> None:
        """Record a run that differed."""
        if self._store is None:
            return
        known = self.find(region) or MismatchRecord(0, ())
        record = MismatchRecord(known.count + 1, (*known.evidence, evidence)[-MOST_KEPT:])
        self._store.put(self._name(region), msgspec.json.encode(record))

    def _name(self, region: int) -> bytes:
        return name_of("mismatch", code_digest(), self._tenant, region_name(self._lone[region]))
