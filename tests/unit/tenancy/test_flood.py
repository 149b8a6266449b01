"""A flood does not delay others: one tenant requests ten times the capacity, another a tenth of it."""

import asyncio
import random

import pytest

from fakes.virtual_time import run_virtually
from tensorwasm.errors import RateLimited
from tensorwasm.tenancy.buckets import Buckets, RateLimiter
from tensorwasm.tenancy.fairness import FairGate
from tensorwasm.tenancy.quotas import Quotas

SERVICE_S = 0.01
FLOOD, POLITE = 1, 2
LASTS_S = 5.0


async def _serve(slots, rates, caps, seed):
    """Serve a flood at random and others evenly; return how long each tenant's requests waited, and how many could not.

    Args:
        slots: requests that are served at a time, each for `SERVICE_S`.
        rates: requests a second, by tenant.
        caps: qps and burst, by tenant.
    """
    loop = asyncio.get_running_loop()
    gate, limiter, quotas = FairGate(slots, queue_per_tenant=200), RateLimiter(Buckets()), Quotas()
    waited_s, refused = {tenant: [] for tenant in rates}, dict.fromkeys(rates, 0)
    chance = random.Random(seed)

    async def request(tenant):
        came_s = loop.time()
        if limiter.count("token", tenant, *caps[tenant], round(came_s * 1e9))[0]:
            refused[tenant] += 1
            return
        try:
            with quotas.hold(tenant, {"requests": 300}, requests=1):
                async with gate.turn(tenant) as turn:
                    waited_s[tenant].append(loop.time() - came_s)
                    await asyncio.sleep(SERVICE_S)
                    turn.spent = 1.0
        except RateLimited:
            refused[tenant] += 1

    async def send(tenant):
        async with asyncio.TaskGroup() as group:
            while loop.time() < LASTS_S:
                await asyncio.sleep(chance.expovariate(rates[tenant]) if tenant == FLOOD else 1 / rates[tenant])
                group.create_task(request(tenant))

    await asyncio.gather(*map(send, rates))
    assert gate.statistics().free == slots
    assert all(quotas.usage(tenant)["requests"] == 0 for tenant in rates)
    return waited_s, refused


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slots", [1, 4])
def test_beside_a_flood_another_tenant_waits_for_one_turn_at_most(slots, seed):
    capacity = slots / SERVICE_S
    rates = {FLOOD: 10 * capacity, POLITE: 0.1 * capacity}
    waited_s, refused = run_virtually(lambda: _serve(slots, rates, dict.fromkeys(rates, (0, 0)), seed))
    assert refused[POLITE] == 0
    assert max(waited_s[POLITE]) <= SERVICE_S + 1e-9
    assert refused[FLOOD] > 0.8 * rates[FLOOD] * LASTS_S
    assert len(waited_s[FLOOD]) > 0.85 * capacity * LASTS_S  # nothing is left idle for the sake of fairness


def test_a_flood_over_its_own_rate_is_refused_before_it_waits():
    capacity = 1 / SERVICE_S
    rates = {FLOOD: 10 * capacity, POLITE: 0.1 * capacity}
    waited_s, refused = run_virtually(lambda: _serve(1, rates, {FLOOD: (50, 10), POLITE: (50, 10)}, 0))
    assert refused[POLITE] == 0
    assert len(waited_s[FLOOD]) <= 50 * LASTS_S + 10
    assert max(waited_s[POLITE]) <= SERVICE_S + 1e-9
