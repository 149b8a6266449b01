"""Admin capabilities: known by identity to one registry, and never wider than their principal."""

import copy
import gc
import pickle

import pytest
from hypothesis import given

from strategies.identity import scope_sets, tenant_sets
from tensorwasm.errors import ScopeDenied, TenantScopeDenied
from tensorwasm.tenancy.principal import SCOPES, AdminCapability, Principal, Registry

ADMIN = Principal("bearer", "a", frozenset({7}), frozenset({"admin", "invoke"}))


@pytest.mark.rule("14-capability")
def test_a_registry_knows_only_what_it_gave():
    registry, everything = Registry.open()
    other, others = Registry.open()
    assert registry.authority(everything).tenants is None
    assert registry.authority(everything).scopes == frozenset(SCOPES)
    for forged in (
        others,
        other.admit(ADMIN),
        AdminCapability(),
        copy.copy(everything),
        copy.deepcopy(everything),
        None,
    ):
        with pytest.raises(ScopeDenied):
            registry.authority(forged)


def test_a_capability_cannot_be_widened_subclassed_or_pickled():
    registry, everything = Registry.open()
    with pytest.raises(AttributeError):
        everything.tenants = None

    class Same(AdminCapability):
        def __hash__(self):
            return hash(everything)

        def __eq__(self, other):
            return True

    with pytest.raises(ScopeDenied):
        registry.authority(Same())
    with pytest.raises(ScopeDenied):
        registry.authority(pickle.loads(pickle.dumps(everything)))


@given(tenant_sets, scope_sets)
def test_a_principal_administers_what_it_acts_for_and_only_with_the_scope(tenants, scopes):
    registry = Registry()
    principal = Principal("bearer", "p", tenants, scopes)
    if "admin" not in scopes:
        with pytest.raises(ScopeDenied):
            registry.admit(principal)
        return
    authority = registry.authority(registry.admit(principal))
    assert (authority.tenants, authority.scopes) == (tenants, scopes)


@given(tenant_sets, scope_sets, tenant_sets, scope_sets)
def test_a_principal_passes_on_no_more_than_it_has(tenants, scopes, asked, passed):
    registry = Registry()
    authority = registry.authority(registry.admit(Principal("bearer", "p", tenants, scopes | {"admin"})))
    within = (tenants is None or (asked is not None and asked <= tenants)) and passed <= scopes | {"admin"}
    try:
        authority.require(asked, passed)
    except (TenantScopeDenied, ScopeDenied):
        assert not within
    else:
        assert within


def test_dropped_capabilities_are_forgotten():
    registry = Registry()
    for _ in range(100):
        registry.admit(ADMIN)
    gc.collect()
    assert len(registry._given) == 0
