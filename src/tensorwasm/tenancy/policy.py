"""`TenantPolicy`: the rules for a tenant that each of its requests needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tensorwasm.errors import InvalidRequest
from tensorwasm.tenancy.quotas import CAPS

MAX_WEIGHT: Final = 1000
MAX_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """The rules for a tenant.

    Attributes:
        weight: its share where tenants wait for one another, 1 to 1000.
        quotas: by name of `tensorwasm.tenancy.quotas.CAPS`; a missing one is unlimited.
    """

    weight: int = 1
    quotas: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    disabled: bool = False


def checked_weight(weight: int) -> int:
    """Return a valid weight, or raise InvalidRequest."""
    if not 1 <= weight <= MAX_WEIGHT:
        raise InvalidRequest(f"weight is from 1 to {MAX_WEIGHT}")
    return weight


def checked_quotas(quotas: Mapping[str, int | None]) -> dict[str, int]:
    """Return valid quotas, without those that are None, which mean the service's own.

    Raises:
        InvalidRequest: there is no such cap, or a number is not from 0 to 2**63 - 1.
    """
    if not quotas.keys() <= CAPS.keys():
        raise InvalidRequest(f"quotas are {', '.join(CAPS)}")
    chosen = {name: limit for name, limit in quotas.items() if limit is not None}
    for name, limit in chosen.items():
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"the quota {name} is from 0 to 2**63 - 1")
    return chosen
