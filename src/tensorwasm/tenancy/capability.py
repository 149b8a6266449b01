"""Admin capabilities: unforgeable rights to administer, whose extent only the registry that gave them knows."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final
from weakref import WeakKeyDictionary

from tensorwasm.errors import ScopeDenied, TenantScopeDenied
from tensorwasm.tenancy.principal import SCOPES, Principal

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
