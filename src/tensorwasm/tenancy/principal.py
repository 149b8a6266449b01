"""`Principal`: the authenticated maker of a request, and the scopes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar

from tensorwasm.errors import NotFound, ScopeDenied, TenantScopeDenied

MAX_TENANT: Final = (1 << 64) - 1
REFUSAL: Final = "no credentials that are known, in time and not revoked"
"""The message of every Unauthorized, so that it never says what is wrong with the credentials."""

SCOPES: Final[dict[str, str]] = {
    "functions:read": "see functions, versions and aliases",
    "functions:write": "deploy, update and delete functions",
    "invoke": "invoke functions, by stream and session too, and use the OpenAI routes",
    "jobs": "see, start and cancel jobs",
    "snapshots": "save, see and restore snapshots",
    "kernels:read": "see and fetch kernels",
    "kernels:publish": "publish kernels",
    "usage:read": "see usage",
    "admin": "administer tenants and tokens, of the tenants that the token is for",
}
"""What each scope allows."""

USER_SCOPES: Final = frozenset(SCOPES) - {"admin", "kernels:publish"}
"""The scopes of a token by default."""


class Owned(Protocol):
    """A record that belongs to one tenant."""

    @property
    def tenant(self) -> int:
        """The owner."""


_Record = TypeVar("_Record", bound=Owned)


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated maker of a request.

    Attributes:
        kind: ``bearer`` for a token, ``oidc`` for a JWT, ``dev`` for every client in dev mode.
        id: of the token, or issuer and subject: for logs and rate limits; never the secret.
        tenants: those that it may act for; None for all.
    """

    kind: Literal["bearer", "oidc", "dev"]
    id: str
    tenants: frozenset[int] | None = field(default=frozenset())
    scopes: frozenset[str] = USER_SCOPES
    expires_unix_ms: int | None = None

    def covers(self, tenant: int) -> bool:
        """Return whether it may act for a tenant."""
        return self.tenants is None or tenant in self.tenants

    def require(self, scope: str, tenant: int | None = None) -> None:
        """Check that an operation is allowed; called before any look-up, so that a refusal reveals nothing.

        Raises:
            TenantScopeDenied: it may not act for the tenant.
            ScopeDenied: it lacks the scope.
        """
        if tenant is not None and not self.covers(tenant):
            raise TenantScopeDenied("the token is not for this tenant")
        if scope not in self.scopes:
            raise ScopeDenied(f"the token lacks the scope {scope}")


def require_owned(found: _Record | None, tenant: int, noun: str) -> _Record:
    """Return a record that was looked up, if it exists and belongs to the tenant that asks for it.

    Raises:
        NotFound: it does not exist, or belongs to another tenant: the message, with the noun, does not say which.
    """
    if found is None or found.tenant != tenant:
        raise NotFound(f"there is no such {noun}")
    return found
