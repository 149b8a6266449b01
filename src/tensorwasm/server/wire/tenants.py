"""Tenants in JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tensorwasm.database.identity import TenantRecord
from tensorwasm.service.identity.tenants import TenantChange
from tensorwasm.tenancy.policy import MAX_LIMIT, MAX_WEIGHT
from tensorwasm.tenancy.principal import MAX_TENANT
from tensorwasm.tenancy.quotas import CAPS

Millis = Annotated[int, Meta(ge=0, description="Milliseconds since 1970.")]
_NAMES = ", ".join(f"`{name}` ({meaning})" for name, meaning in CAPS.items())
_Cap = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_LIMIT})]
Quotas = Annotated[
    dict[str, _Cap | None],
    Meta(
        description=f"Caps by name, null for none of its own: {_NAMES}.",
        extra_json_schema={"propertyNames": {"enum": list(CAPS)}},
    ),
]


class UpdateTenant(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is to be different of a tenant; what is left out stays.

    Attributes:
        name: for people.
        weight: its share where tenants wait for one another, 1 to 1000.
        quotas: caps to set by name.
        disabled: whether nothing of it is served.
    """

    name: Annotated[str, Meta(extra_json_schema={"pattern": r"^[^\x00-\x1f\x7f-\x9f]{0,256}$"})] | None = None
    weight: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": MAX_WEIGHT})] | None = None
    quotas: Quotas | None = None
    disabled: bool | None = None

    def to_change(self) -> TenantChange:
        """Return it as the service takes it."""
        return TenantChange(self.name, self.weight, self.quotas, self.disabled)


class CreateTenant(UpdateTenant, kw_only=True):
    """A tenant of whom nothing was said before.

    Attributes:
        tenant: its number, 0 to 2**64 - 1.
    """

    tenant: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_TENANT})]


class TenantBody(msgspec.Struct, kw_only=True):
    """A tenant.

    Attributes:
        tenant: its number.
        name: for people.
        weight: its share where tenants wait for one another.
        quotas: its own caps by name.
        disabled: whether nothing of it is served.
        created_unix_ms: when it was first spoken of; null for one who has only the service's own rules.
    """

    tenant: int
    name: str
    weight: int
    quotas: dict[str, int]
    disabled: bool
    created_unix_ms: Millis | None

    @classmethod
    def of(cls, record: TenantRecord) -> TenantBody:
        """Return the service's."""
        return cls(
            tenant=record.tenant,
            name=record.name,
            weight=record.weight,
            quotas=dict(record.quotas),
            disabled=record.disabled,
            created_unix_ms=record.created_unix_ms or None,
        )


class TenantPage(msgspec.Struct):
    """Some tenants, by their numbers.

    Attributes:
        tenants: them.
        next: what `after` is to be for those that follow; null if there are none.
    """

    tenants: list[TenantBody]
    next: str | None
