"""Admin capabilities: who holds one may administer, and what, is known to the registry that gave it alone."""

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
    """The right to administer. There is nothing in it to be changed or copied: it is known by its identity."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Authority:
    """What a capability stands for.

    Attributes:
        tenants: that may be administered; None for all.
        scopes: that may be passed on.
    """

    tenants: frozenset[int] | None
    scopes: frozenset[str]

    def covers(self, tenants: Iterable[int] | None) -> bool:
        """Return whether it reaches all of these tenants; None is all there are."""
        return self.tenants is None or (tenants is not None and self.tenants.issuperset(tenants))

    def require(self, tenants: Iterable[int] | None, scopes: Iterable[str] = ()) -> None:
        """Hold what is to be administered, or passed on, against it.

        Raises:
            TenantScopeDenied: it does not reach one of the tenants.
            ScopeDenied: it has not one of the scopes itself.
        """
        if not self.covers(tenants):
            raise TenantScopeDenied("the token is not for these tenants")
        if lacking := sorted(set(scopes) - self.scopes):
            raise ScopeDenied(f"the token lacks what it would pass on: {', '.join(lacking)}")


class Registry:
    """What one installation's tenants and tokens are administered through. Thread-safe.

    Whoever opens it gets the one capability for everything; all others come from principals, and can do no
    more than they.
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
        """Return a capability for what a principal may administer.

        Raises:
            ScopeDenied: it may not administer.
        """
        principal.require(ADMIN)
        return self._give(Authority(principal.tenants, principal.scopes.intersection(SCOPES)))

    def authority(self, capability: AdminCapability) -> Authority:
        """Return what a capability stands for.

        Raises:
            ScopeDenied: this registry did not give it.
        """
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
