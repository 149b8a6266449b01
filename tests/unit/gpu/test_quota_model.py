"""Any sequence of operations leaves accounts, ledger, slabs and pools where a plain model says."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes.pools import FakePools
from tensorwasm.errors import DeviceLost, InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger, MemoryLedgerStatistics, Reservation
from tensorwasm.gpu.memory.suballocator import Suballocator
from tensorwasm.values import MIB, Region

TENANTS = ("a", "b")
PROCESS_BYTES, PROCESS_ALLOCATIONS = 5 * MIB, 12
DEVICE_BYTES = 4 * MIB
tenants = st.sampled_from(TENANTS)
sessions = st.integers(0, 2)
caps = st.sampled_from([0, 1, 1000, MIB, 3 * MIB, 8 * MIB, 80 * MIB, 1 << 40])
sizes = st.sampled_from([1, 255, 256, 257, 100_000, MIB, 2 * MIB]) | st.integers(1, 3 * MIB)
errors = st.sampled_from([QuotaExceeded, DeviceLost, ValueError])
failures = st.dictionaries(st.sampled_from(["open_pool", "pool_allocate"]), errors, max_size=1)
numbers = st.integers(0, 1 << 16)


@dataclass
class Charge:
    """What the model knows of one charge: a reservation that a session made, or a region of a slab."""

    tenant: str
    session: int
    charged_bytes: int
    held: Reservation | Region
    pinned: bool = False
    committed: bool = False

    @property
    def in_slab(self):
        return isinstance(self.held, Region)


class QuotaModel(RuleBasedStateMachine):
    """Two tenants' sessions on one device."""

    @initialize(a=caps, b=caps)
    def start(self, a, b):
        self.ledger = MemoryLedger(PROCESS_BYTES, PROCESS_ALLOCATIONS)
        self.accounts = Accounts(self.ledger)
        self.pools = FakePools(device_bytes=DEVICE_BYTES, granularity_bytes=1 << 16)
        self.caps = {"a": (a, a), "b": (b, b)}
        self.registered = set(TENANTS)
        self.account = {tenant: self.accounts.register(tenant, *self.caps[tenant]) for tenant in TENANTS}
        self.slabs = {tenant: Suballocator(self.pools, self.account[tenant]) for tenant in TENANTS}
        self.charges = []
        self.refusals = dict.fromkeys(TENANTS, 0)
        self.failures = 0

    def charged_bytes(self, tenant=None, *, pinned=False):
        return sum(c.charged_bytes for c in self.charges if c.tenant in (tenant or TENANTS) and c.pinned == pinned)

    def allocations(self, tenant=None):
        return sum(1 for c in self.charges if c.tenant in (tenant or TENANTS) and not c.pinned)

    def admits(self, tenant, size, *, pinned=False):
        if tenant not in self.registered:
            return False
        if self.charged_bytes(tenant, pinned=pinned) + size > self.caps[tenant][pinned]:
            return False
        if pinned:
            return True
        return self.charged_bytes() + size <= PROCESS_BYTES and self.allocations() < PROCESS_ALLOCATIONS

    @rule(tenant=tenants, cap=caps, pinned=caps | st.none())
    def register(self, tenant, cap, pinned):
        assert self.accounts.register(tenant, cap, pinned) is self.account[tenant]
        self.caps[tenant] = (cap, self.caps[tenant][1] if pinned is None else pinned)
        self.registered.add(tenant)

    @rule(tenant=tenants)
    def unregister(self, tenant):
        if tenant in self.registered:
            self.accounts.unregister(tenant)
            self.registered.remove(tenant)
        else:
            with pytest.raises(InvalidArgs):
                self.accounts.unregister(tenant)

    @rule(tenant=tenants, session=sessions, size=sizes, pinned=st.booleans())
    def reserve(self, tenant, session, size, pinned):
        account = self.account[tenant]
        admitted = self.admits(tenant, size, pinned=pinned)
        try:
            held = account.reserve_pinned(size) if pinned else account.reserve(size)
        except QuotaExceeded:
            assert not admitted
            self.refusals[tenant] += 1
        else:
            assert admitted
            self.charges.append(Charge(tenant, session, size, held, pinned))

    @rule(tenant=tenants, size=sizes, commits=st.booleans())
    def reserve_and_fail(self, tenant, size, commits):
        if not self.admits(tenant, size):
            return
        reservation = self.account[tenant].reserve(size)
        if commits:
            reservation.commit()
            reservation.release()
        with pytest.raises(ZeroDivisionError), reservation:
            raise ZeroDivisionError

    @precondition(lambda self: any(not charge.in_slab for charge in self.charges))
    @rule(number=numbers)
    def commit(self, number):
        reservations = [charge for charge in self.charges if not charge.in_slab]
        charge = reservations[number % len(reservations)]
        if charge.committed:
            with pytest.raises(InternalError):
                charge.held.commit()
        else:
            charge.held.commit()
            charge.committed = True

    @precondition(lambda self: self.charges)
    @rule(number=numbers)
    def give_back(self, number):
        charge = self.charges.pop(number % len(self.charges))
        self.release(charge)
        self.release_again(charge)

    @rule(session=sessions)
    def crash(self, session):
        for charge in [charge for charge in self.charges if charge.session == session]:
            self.charges.remove(charge)
            self.release(charge)

    @rule(tenant=tenants, session=sessions, size=sizes, planted=failures)
    def allocate(self, tenant, session, size, planted):
        taken_bytes = -(-size // 256) * 256
        admitted = self.admits(tenant, taken_bytes)
        asked = len(self.pools.calls)
        self.pools.failures |= {name: error("planted") for name, error in planted.items()}
        try:
            region = self.slabs[tenant].allocate(size)
        except QuotaExceeded:
            # A refusal of what the account would admit is the device's, or for want of one whole piece.
            assert not admitted or len(self.pools.calls) > asked or self.in_pieces(tenant)
            self.refusals[tenant] += 1
        except tuple(planted.values()):
            assert admitted
        else:
            assert admitted
            assert region.size_bytes == size
            self.charges.append(Charge(tenant, session, taken_bytes, region))
        assert admitted or len(self.pools.calls) == asked
        for name in planted:
            self.pools.failures.pop(name, None)

    @rule(error=errors)
    def let_the_next_release_fail(self, error):
        self.pools.failures["pool_free"] = error("planted")

    @rule(tenant=tenants)
    def close_the_slab(self, tenant):
        for charge in [charge for charge in self.charges if charge.tenant == tenant and charge.in_slab]:
            self.charges.remove(charge)
        self.slabs[tenant].close()
        self.failures += self.slabs[tenant].statistics().release_failures
        self.slabs[tenant] = Suballocator(self.pools, self.account[tenant])

    def in_pieces(self, tenant):
        slab = self.slabs[tenant].statistics()
        return slab.chunk_bytes > self.charged_slab_bytes(tenant) or slab.release_failures > 0

    def charged_slab_bytes(self, tenant):
        return sum(charge.charged_bytes for charge in self.charges if charge.tenant == tenant and charge.in_slab)

    def release(self, charge):
        if charge.in_slab:
            self.slabs[charge.tenant].free(charge.held)
        else:
            charge.held.release()

    def release_again(self, charge):
        with pytest.raises(InternalError):
            self.release(charge)

    @invariant()
    def books_are_exact(self):
        assert self.ledger.statistics() == MemoryLedgerStatistics(self.allocations(), self.charged_bytes())
        for tenant in TENANTS:
            got = self.account[tenant].statistics()
            assert got.device_bytes == self.charged_bytes(tenant) <= got.peak_bytes
            assert got.pinned_bytes == self.charged_bytes(tenant, pinned=True) <= got.peak_pinned_bytes
            assert got.allocations == self.allocations(tenant)
            assert got.refusals == self.refusals[tenant]
            assert got.registered == (tenant in self.registered)
            assert (got.max_bytes, got.max_pinned_bytes) == self.caps[tenant]
            assert self.slabs[tenant].statistics().allocated_bytes == self.charged_slab_bytes(tenant)

    @invariant()
    def nobody_is_shown_who_is_gone(self):
        shown = {each.tenant for each in self.accounts.statistics()} - {"default"}
        assert shown == {tenant for tenant in TENANTS if tenant in self.registered or self.account[tenant].charged}

    @invariant()
    def live_regions_are_apart_and_in_chunks_of_the_device(self):
        regions = sorted((c.held for c in self.charges if c.in_slab), key=lambda region: region.address)
        for before, after in pairwise(regions):
            assert before.end <= after.address
        chunks = [(start, start + size) for pool in self.pools.live for start, size in pool.live.items()]
        for region in regions:
            assert any(start <= region.address and region.end <= end for start, end in chunks)
        assert not self.pools.broken

    @invariant()
    def only_what_is_in_use_or_kept_is_held(self):
        for tenant in TENANTS:
            slab = self.slabs[tenant].statistics()
            assert slab.chunk_bytes <= self.pools.held_bytes
            assert slab.chunks <= slab.allocations + 1

    def teardown(self):
        if not hasattr(self, "slabs"):
            return
        self.pools.failures.clear()
        for charge in self.charges:
            self.release(charge)
        for slab in self.slabs.values():
            slab.close()
            self.failures += slab.statistics().release_failures
        assert self.ledger.statistics() == MemoryLedgerStatistics(0, 0)
        assert not any(account.charged for account in self.account.values())
        assert not self.pools.broken
        assert sum(len(pool.live) for pool in self.pools.live) <= self.failures


QuotaModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestQuotas = QuotaModel.TestCase
