"""`Stalls`: whose calls have held up the thread that reads all connections, and may not again for a while."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.1
LONGEST_S: Final = 1.0


class Stalls:
    """Tenants whose short calls were long. For the leading thread of a crew.

    After one, a tenant's calls are made on other threads for a tenth of a second, and for twice as long after each
    further one: so a tenant holds up the others for two ticks in a second in the long run. One that holds nobody up
    for a second more begins anew.
    """

    def __init__(self) -> None:
        self._until_s: dict[str, tuple[float, float]] = {}

    def may_lead(self, tenant: str, now_s: float) -> bool:
        """Return whether a tenant's call may be made on the thread that reads."""
        return not self._until_s or self._until_s.get(tenant, (0.0, 0.0))[0] <= now_s

    def note(self, tenant: str, now_s: float) -> None:
        """Note that a tenant's call has held up the thread that reads."""
        self._until_s = {name: each for name, each in self._until_s.items() if now_s < each[0] + LONGEST_S}
        last_s = self._until_s.get(tenant, (0.0, FIRST_S / 2))[1]
        length_s = min(2 * last_s, LONGEST_S)
        self._until_s[tenant] = now_s + length_s, length_s
