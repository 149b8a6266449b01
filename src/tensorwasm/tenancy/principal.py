"""`Principal`: who makes a request, and the scopes there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar

from tensorwasm.errors import NotFound, ScopeDenied, TenantScopeDenied

MAX_TENANT: Final = (1 << 64) - 1

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
"""What a token is given unless its maker says otherwise."""


class Owned(Protocol):
    """A record that is one tenant's."""

    @property
    def tenant(self) -> int:
        """Whose it is."""


_Record = TypeVar("_Record", bound=Owned)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request.

    Attributes:
        kind: ``bearer`` for a token, ``oidc`` for a JWT, ``dev`` for anybody where nobody is asked.
        id: of the token, or issuer and subject: for logs and rate limits; never the secret.
        tenants: whom it may act for; None for all.
        scopes: what it may do.
        expires_unix_ms: when it ends; None for never.
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
        """Hold an operation against it; before anything is looked up, so that nobody learns what there is.

        Raises:
            TenantScopeDenied: it may not act for the tenant.
            ScopeDenied: it lacks the scope.
        """
        if tenant is not None and not self.covers(tenant):
            raise TenantScopeDenied("the token is not for this tenant")
        if scope not in self.scopes:
            raise ScopeDenied(f"the token lacks the scope {scope}")


def require_owned(found: _Record | None, tenant: int, noun: str) -> _Record:
    """Return a record that was looked up, if there is one and it is the tenant's that asks for it.

    Args:
        found: the record, of any tenant.
        tenant: who asks.
        noun: what it is, for the message.

    Raises:
        NotFound: it is not there, or another tenant's: the answer does not tell which.
    """
    if found is None or found.tenant != tenant:
        raise NotFound(f"there is no such {noun}")
    return found
