"""Tokens: their JSON, and the routes that create, show, rotate and revoke them.

A token itself is in the reply that created it, and nowhere else.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta

from tensorwasm.database.identity import ALL_TENANTS, TokenRecord
from tensorwasm.errors import Conflict, InvalidName, InvalidRequest
from tensorwasm.server.http.decoding import AFTER, LIMIT, STORED, UNAVAILABLE, page_limit
from tensorwasm.server.http.routing import HttpRequest, QueryParam, Reply, Route
from tensorwasm.server.http.schemas import Millis, Name, RecordBody
from tensorwasm.server.routes.tenants import TenantNumber, capability_of
from tensorwasm.service.identity.identity import MAX_OVERLAP_S, MAX_TENANTS, NewToken
from tensorwasm.tenancy.principal import SCOPES, USER_SCOPES

TenantSet = Annotated[
    Annotated[list[TenantNumber], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_TENANTS})] | Literal["*"],
    Meta(description="Numbers of tenants, or `*` for all."),
]
Scopes = Annotated[
    list[Annotated[str, Meta(extra_json_schema={"enum": list(SCOPES)})]], Meta(extra_json_schema={"minItems": 1})
]


class CreateToken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new token.

    Attributes:
        name: 1 to 256 bytes, not blank, without control characters.
        tenants: the tenants that it acts for.
        scopes: what it permits; default: the scopes of users.
        expires_unix_ms: when it expires; default: never.
    """

    name: Name
    tenants: TenantSet
    scopes: Scopes | None = None
    expires_unix_ms: Millis | None = None


class RotateToken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a token is replaced.

    Attributes:
        overlap_s: seconds for which the old one stays valid, at most 30 days.
        expires_unix_ms: when the new one expires; default: when the old one would have.
    """

    overlap_s: Annotated[float, Meta(ge=0, extra_json_schema={"maximum": MAX_OVERLAP_S})] = 0.0
    expires_unix_ms: Millis | None = None


class TokenBody(RecordBody, kw_only=True):
    """A token, without its secret: the tenants that it acts for, and the scopes that it permits.

    Attributes:
        expires_unix_ms: null for never.
        revoked_unix_ms: null if it was not revoked.
        replaces: UUID of the token that it replaced; null for none.
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
    def of(cls, record: TokenRecord, **more: Any) -> Self:
        """Return the JSON of a token, with more fields of a subclass."""
        tenants = ALL_TENANTS if record.tenants is None else sorted(record.tenants)
        return cls.copy(record, tenants=tenants, scopes=sorted(record.scopes), **more)


class MadeToken(TokenBody, kw_only=True):
    """A new token, with the bearer token itself, which is shown only once."""

    token: str

    def __repr__(self) -> str:
        return f"MadeToken(id={self.id!r})"


class TokenPage(msgspec.Struct):
    """Some tokens, oldest first, ended ones too. `next` is the `after` of the following page, null on the last."""

    tokens: list[TokenBody]
    next: str | None


async def create(request: HttpRequest) -> Reply:
    """Create a token that permits no more than the caller's."""
    body: CreateToken = request.body
    tenants = None if body.tenants == "*" else body.tenants
    scopes = USER_SCOPES if body.scopes is None else body.scopes
    capability, tokens = capability_of(request), request.service.tokens
    return _made(request, await tokens.create(capability, body.name, tenants, scopes, body.expires_unix_ms))


async def list_tokens(request: HttpRequest) -> Reply:
    """Return some of the tokens that the caller administers."""
    limit = page_limit(request)
    found = await request.service.tokens.list(capability_of(request), request.query.get("after") or None, limit)
    following = found[-1].id if len(found) == limit else None
    return Reply(TokenPage([TokenBody.of(each) for each in found], following))


async def get(request: HttpRequest) -> Reply:
    """Return a token, without its secret."""
    return Reply(TokenBody.of(await request.service.tokens.get(capability_of(request), request.params["id"])))


async def rotate(request: HttpRequest) -> Reply:
    """Replace a token by a new one."""
    body: RotateToken = request.body
    token_id = request.audit["replaces"] = request.params["id"]
    capability, tokens = capability_of(request), request.service.tokens
    return _made(request, await tokens.rotate(capability, token_id, body.overlap_s, body.expires_unix_ms))


async def revoke(request: HttpRequest) -> Reply:
    """Revoke a token."""
    token_id = request.audit["token_id"] = request.params["id"]
    await request.service.tokens.revoke(capability_of(request), token_id)
    return Reply()


def _made(request: HttpRequest, new: NewToken) -> Reply:
    request.audit["token_id"] = new.record.id
    return Reply(MadeToken.of(new.record, token=new.text), headers=(("cache-control", "no-store"),))


_route = partial(Route, group="tokens", scope="admin", kind="admin", tenant=False, errors=STORED)

ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "GET", "/tokens", list_tokens, "List tokens.", response=TokenPage, errors=(InvalidRequest, *UNAVAILABLE),
        query={"after": QueryParam(AFTER, {"type": "string"}), "limit": LIMIT}, etag=True,
    ),
    _route(
        "POST", "/tokens", create, "Create a token, which is shown once.", request=CreateToken, response=MadeToken,
        status=201, action="create_token", errors=(InvalidName, InvalidRequest, *UNAVAILABLE),
    ),
    _route("GET", "/tokens/{id}", get, "Show a token.", response=TokenBody, etag=True),
    _route(
        "POST", "/tokens/{id}/rotate", rotate, "Replace a token by a new one, which is shown once.",
        request=RotateToken, optional_body=True, response=MadeToken, status=201, action="rotate_token",
        errors=(Conflict, InvalidRequest, *STORED),
    ),
    _route("DELETE", "/tokens/{id}", revoke, "Revoke a token.", status=204, action="revoke_token"),
)  # fmt: skip
