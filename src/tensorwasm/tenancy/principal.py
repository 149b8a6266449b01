"""The authenticated caller of a request, the scopes, and capabilities: unforgeable rights to administer."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar, final
from weakref import WeakKeyDictionary

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
    """Return a record that was looked up, if it exists and belongs to the requesting tenant.

    Raises:
        NotFound: it does not exist, or belongs to another tenant: the message, with the noun, does not say which.
    """
    if found is None or found.tenant != tenant:
        raise NotFound(f"there is no such {noun}")
    return found


ADMIN: Final = "admin"


@final
class AdminCapability:
    """The right to administer. It has no content that could be changed or copied: only its identity counts."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Authority:
    """The extent of a capability: tenants that it administers, None for all, and scopes that it may pass on."""

    tenants: frozenset[int] | None
    scopes: frozenset[str]

    def covers(self, tenants: Iterable[int] | None) -> bool:
        """Return whether it covers all of these tenants; None means every tenant."""
        return self.tenants is None or (tenants is not None and self.tenants.issuperset(tenants))

    def require(self, tenants: Iterable[int] | None, scopes: Iterable[str] = ()) -> None:
        """Raise TenantScopeDenied unless it covers the tenants, ScopeDenied unless it has the scopes to pass on."""
        if not self.covers(tenants):
            raise TenantScopeDenied("the token is not for these tenants")
        if lacking := sorted(set(scopes) - self.scopes):
            raise ScopeDenied(f"the token lacks what it would pass on: {', '.join(lacking)}")


class Registry:
    """Issues the capabilities for one installation's tenants and tokens. Thread-safe.

    Opening it gives the one capability for everything; all others come from principals, and allow no more than those.
    """

    def __init__(self) -> None:
        self._given: WeakKeyDictionary[AdminCapability, Authority] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @classmethod
    def open(cls) -> tuple[Registry, AdminCapability]:
        """Return a new registry and the capability for everything in it."""
        registry = cls()
        return registry, registry._give(Authority(None, frozenset(SCOPES)))

    def admit(self, principal: Principal) -> AdminCapability:
        """Return a capability for what a principal may administer; without the admin scope, raise ScopeDenied."""
        principal.require(ADMIN)
        return self._give(Authority(principal.tenants, principal.scopes.intersection(SCOPES)))

    def authority(self, capability: AdminCapability) -> Authority:
        """Return the extent of a capability; for one of another registry, raise ScopeDenied."""
        with self._lock:
            found = self._given.get(capability) if type(capability) is AdminCapability else None
        if found is None:
            raise ScopeDenied("this is no capability of this registry")
        return found

    def _give(self, authority: Authority) -> AdminCapability:
        capability = AdminCapability()
        with self._lock:
            self._given[capability] = authority
        return capability
