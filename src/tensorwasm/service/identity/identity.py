"""`open_identity`: who may do what: tokens of the operator's list and of the database, an issuer's JWTs, tenants."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.service.clock import Clock
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.identity.tenants import Tenants
from tensorwasm.service.identity.tokens import NewToken, Tokens
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.authentication import Authenticator
from tensorwasm.tenancy.capability import Registry
from tensorwasm.tenancy.oidc import open_verifier
from tensorwasm.tenancy.quotas import parse_caps
from tensorwasm.tenancy.tokens import TokenTable, parse_digests, parse_tokens

PUBLISHERS: Final = "TENSOR_WASM_API_KERNEL_PUBLISH_TOKENS"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who may do what.

    Attributes:
        authenticator: from a header to a principal.
        directory: what holds for a tenant.
        tokens: administers tokens.
        tenants: administers tenants.
        first_token: for everything, made just now because there was none; for the operator to see once.
    """

    authenticator: Authenticator
    directory: IdentityCache
    tokens: Tokens
    tenants: Tenants
    first_token: NewToken | None = field(repr=False)


async def open_identity(
    settings: ServiceSettings,
    desk: DatabaseExecutor,
    clock: Clock = Clock(),  # noqa: B008 - frozen
) -> Identity:
    """Open all that knows who may do what; `IdentityCache.follow` has to run besides.

    Everybody is let through only where the operator allows it and there is no token and no issuer at all. Where there
    is no token and he does not, the first is made. The capability that makes it is kept by nobody.

    Args:
        settings: of the service.
        desk: of the database.
        clock: what time it is.

    Raises:
        InvalidArgs: a list of tokens or of caps, or what is said of the issuer, makes no sense.
        DatabaseUnavailable: it does not answer.
    """
    roll = TokenTable(parse_tokens(settings.tokens), parse_digests(settings.kernel_publish_tokens, PUBLISHERS))
    verifier = await asyncio.to_thread(open_verifier, settings.oidc_issuer, settings.oidc_audience, settings.oidc_jwks)
    listed = len(roll) > 0
    directory = IdentityCache(desk, roll, clock, caps=parse_caps(settings.tenant_caps))
    await directory.catch_up()
    developing = settings.allow_dev_mode and verifier is None and not len(roll)
    registry, everything = Registry.open()
    tokens = Tokens(desk, directory, registry, clock)
    return Identity(
        Authenticator(roll, directory.catch_up, verifier=verifier, developing=developing, now_unix_ms=clock.unix_ms),
        directory,
        tokens,
        Tenants(desk, directory, registry, clock),
        None if developing or listed else await tokens.ensure_first_token(everything),
    )
