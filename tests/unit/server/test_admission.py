"""Routes about the installation: nobody pays with another tenant's name, and nobody is locked out by one."""

import asyncio
import functools

import pytest

from fakes.applications import ALPHA, ANY, BETA, bearer, serving
from fakes.wire import ask
from tensorwasm.server.http.routing import Reply, Route
from tensorwasm.tenancy.quotas import TenantPolicy

ABOUT = Route(
    "GET", "/about", lambda call: Reply({"tenant": call.tenant}), "See.", "things", "usage:read", tenant=False
)


@pytest.fixture
def served(tmp_path):
    return functools.partial(serving, tmp_path / "data", (ABOUT,))


def statuses(served, *headers, prepare=lambda service: None):
    async def test():
        async with served() as (service, pipeline):
            prepare(service)
            return [
                (found.status, found.kind)
                for found in [await ask(pipeline, "GET", "/about", headers=each) for each in headers]
            ]

    return asyncio.run(test())


def test_a_tenant_that_is_named_is_one_that_the_token_is_for(served):
    assert statuses(served, bearer(ALPHA, 7), bearer(ALPHA, 8), bearer(ANY, 8)) == [
        (200, None),
        (403, "tenant_scope_denied"),
        (200, None),
    ]


def test_naming_another_costs_that_one_nothing(served):
    def limit(service):
        service.identities.policies[8] = TenantPolicy(quotas={"qps": 1, "burst": 1})

    assert statuses(served, *[bearer(ALPHA, 8)] * 3, bearer(BETA), prepare=limit)[-1] == (200, None)


def test_disabling_the_default_tenant_refuses_only_requests_that_name_it(served):
    def disable(service):
        service.identities.policies[0] = TenantPolicy(disabled=True)

    assert statuses(served, bearer(ANY), bearer(ANY, 0), prepare=disable) == [(200, None), (403, "tenant_scope_denied")]


@pytest.mark.parametrize(("quotas", "let_through"), [({"qps": 0}, 0), ({"qps": 0, "burst": 2}, 2)])
def test_without_a_rate_only_the_burst_is_let_through_ever(served, quotas, let_through):
    def limit(service):
        service.identities.policies[7] = TenantPolicy(quotas=quotas)

    found = statuses(served, *[bearer(ALPHA)] * 4, prepare=limit)
    assert found == [(200, None)] * let_through + [(429, "rate_limited")] * (4 - let_through)


def test_a_burst_without_a_rate_is_no_limit(served):
    def limit(service):
        service.identities.policies[7] = TenantPolicy(quotas={"burst": 1})

    assert statuses(served, *[bearer(ALPHA)] * 4, prepare=limit) == [(200, None)] * 4
