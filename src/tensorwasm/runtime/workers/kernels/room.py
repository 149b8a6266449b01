"""How many kernels and plans may wait, for one tenant and for all."""

from __future__ import annotations

from typing import Final, NamedTuple

from tensorwasm.values import MIB


class Amount(NamedTuple):
    """Kernels, and the bytes of their texts."""

    kernels: int
    text_bytes: int


class Room:
    """Counts the kernels that tenants hold, within limits. Not thread-safe.

    Args:
        each: most of one tenant.
        total: most of all.
    """

    def __init__(self, each: Amount, total: Amount) -> None:
        self._each = each
        self._total = total
        self._held: dict[str, Amount] = {}
        self._all = Amount(0, 0)

    def enter(self, tenant: str, text_bytes: int) -> bool:
        """Count a kernel until it leaves; return False if there is no room for it."""
        own, both = _add(self._held.get(tenant, Amount(0, 0)), 1, text_bytes), _add(self._all, 1, text_bytes)
        if not (_within(own, self._each) and _within(both, self._total)):
            return False
        self._held[tenant], self._all = own, both
        return True

    def leave(self, tenant: str, text_bytes: int) -> None:
        """Count a kernel no more."""
        own, self._all = _add(self._held.pop(tenant), -1, -text_bytes), _add(self._all, -1, -text_bytes)
        if own.kernels:
            self._held[tenant] = own


def _add(amount: Amount, kernels: int, text_bytes: int) -> Amount:
    return Amount(amount.kernels + kernels, amount.text_bytes + text_bytes)


def _within(amount: Amount, limit: Amount) -> bool:
    return amount.kernels <= limit.kernels and amount.text_bytes <= limit.text_bytes


ASKS_EACH: Final = Amount(4, 16 * MIB)
ASKS: Final = Amount(64, 128 * MIB)
"""What a worker asks for at a time."""
PLANS_EACH: Final = Amount(4, 32 * MIB)
PLANS: Final = Amount(16, 128 * MIB)
"""Plans that it asks for, and the bytes of their jobs."""
WAITING_EACH: Final = Amount(64, 64 * MIB)
WAITING: Final = Amount(1024, 256 * MIB)
"""What waits to be compiled for all workers."""
PREPARED_EACH: Final = Amount(64, 16 * MIB)
PREPARED: Final = Amount(1024, 64 * MIB)
"""Kernels that wait to be compiled before their first call."""
