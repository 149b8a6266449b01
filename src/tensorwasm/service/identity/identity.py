"""`open_identity`: tokens of the operator's list and of the database, JWTs of an issuer, and tenants."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.service.clock import SYSTEM, Clock
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.identity.tenants import Tenants
from tensorwasm.service.identity.tokens import NewToken, Tokens
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.authentication import Authenticator, TokenTable, parse_digests, parse_tokens
from tensorwasm.tenancy.oidc import open_verifier
from tensorwasm.tenancy.principal import Registry
from tensorwasm.tenancy.quotas import parse_caps

PUBLISHERS: Final = "TENSOR_WASM_API_KERNEL_PUBLISH_TOKENS"


@dataclass(frozen=True, slots=True)
class Identity:
    """Tokens and tenants; see `tensorwasm.service.service.Service` for the first token."""

    authenticator: Authenticator
    identities: IdentityCache
    tokens: Tokens
    tenants: Tenants
    first_token: NewToken | None = field(repr=False)


async def open_identity(
    settings: ServiceSettings,
    database: DatabaseExecutor,
    clock: Clock = SYSTEM,
) -> Identity:
    """Open tokens and tenants; the caller must run `IdentityCache.follow`. Raise InvalidArgs for an invalid setting.

    Requests without a token are accepted only if the operator allows it and there is no token and no issuer. If there
    is no token otherwise, the first one is made. The capability that makes it is not kept.
    """
    table = TokenTable(parse_tokens(settings.tokens), parse_digests(settings.kernel_publish_tokens, PUBLISHERS))
    verifier = await asyncio.to_thread(open_verifier, settings.oidc_issuer, settings.oidc_audience, settings.oidc_jwks)
    listed = len(table) > 0
    identities = IdentityCache(database, table, clock, caps=parse_caps(settings.tenant_caps))
    await identities.catch_up()
    developing = settings.allow_dev_mode and verifier is None and not len(table)
    registry, everything = Registry.open()
    tokens = Tokens(database, identities, registry, clock)
    return Identity(
        Authenticator(table, identities.catch_up, verifier=verifier, developing=developing, now_unix_ms=clock.unix_ms),
        identities,
        tokens,
        Tenants(database, identities, registry, clock),
        None if developing or listed else await tokens.ensure_first_token(everything),
    )
