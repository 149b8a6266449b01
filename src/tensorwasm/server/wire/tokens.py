"""Tokens in JSON. The token itself is in the answer that it was made for, and nowhere else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tensorwasm.database.identity import ALL_TENANTS, TokenRecord
from tensorwasm.server.wire.functions import Name
from tensorwasm.service.identity.tokens import MAX_OVERLAP_S, MAX_TENANTS, NewToken
from tensorwasm.tenancy.principal import MAX_TENANT, SCOPES

Millis = Annotated[int, Meta(ge=0, description="Milliseconds since 1970.")]
_Tenants = Annotated[
    list[Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_TENANT})]],
    Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_TENANTS}),
]
TenantSet = Annotated[_Tenants | Literal["*"], Meta(description="Numbers of tenants, or `*` for all.")]
Scopes = Annotated[
    list[Annotated[str, Meta(extra_json_schema={"enum": list(SCOPES)})]], Meta(extra_json_schema={"minItems": 1})
]


class CreateToken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token to be made.

    Attributes:
        name: 1 to 256 bytes, not blank, without control characters.
        tenants: whom it may act for.
        scopes: what it may do; without, what users may.
        expires_unix_ms: when it ends; without, never.
    """

    name: Name
    tenants: TenantSet
    scopes: Scopes | None = None
    expires_unix_ms: Millis | None = None


class RotateToken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a token is replaced.

    Attributes:
        overlap_s: seconds that the old one is still good, at most 30 days.
        expires_unix_ms: when the new one ends; without, when the old one would have.
    """

    overlap_s: Annotated[float, Meta(ge=0, extra_json_schema={"maximum": MAX_OVERLAP_S})] = 0.0
    expires_unix_ms: Millis | None = None


class TokenBody(msgspec.Struct, kw_only=True):
    """A token, without itself.

    Attributes:
        id: UUID.
        name: for people.
        tenants: whom it may act for.
        scopes: what it may do.
        created_unix_ms: when it was made.
        expires_unix_ms: when it ends; null for never.
        revoked_unix_ms: when it was revoked; null if it was not.
        replaces: UUID of the token that it was made from; null for none.
    """

    id: str
    name: str
    tenants: TenantSet
    scopes: list[str]
    created_unix_ms: Millis
    expires_unix_ms: Millis | None
    revoked_unix_ms: Millis | None
    replaces: str | None

    @classmethod
    def of(cls, record: TokenRecord) -> TokenBody:
        """Return the service's."""
        return cls(**_fields(record))


class MadeToken(TokenBody, kw_only=True):
    """A token that was just made.

    Attributes:
        token: what a client sends as a bearer token. It is shown this once.
    """

    token: str

    @classmethod
    def made(cls, new: NewToken) -> MadeToken:
        """Return the service's."""
        return cls(**_fields(new.record), token=new.text)

    def __repr__(self) -> str:
        return f"MadeToken(id={self.id!r})"


class TokenPage(msgspec.Struct):
    """Some tokens, oldest first, ended ones too.

    Attributes:
        tokens: them.
        next: what `after` is to be for those that follow; null if there are none.
    """

    tokens: list[TokenBody]
    next: str | None


def _fields(record: TokenRecord) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in TokenBody.__struct_fields__}
    tenants = ALL_TENANTS if record.tenants is None else sorted(record.tenants)
    return fields | {"tenants": tenants, "scopes": sorted(record.scopes)}
