"""What sessions are built over, without guests or files: an instance is the list of what it was called with."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

from fakes.desks import connect_empty
from tensorwasm.errors import (
    ArtifactCorrupt,
    DatabaseUnavailable,
    GuestTrap,
    NotCapturable,
    NotFound,
    QuotaExceeded,
    StoreUnavailable,
)
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.snapshots.live import LiveStatistics
from tensorwasm.service.clock import Clock
from tensorwasm.tenancy.quotas import Quotas

FUNCTION = "11111111-1111-4111-8111-111111111111"


class FakeDesk:
    """A database in memory, on the caller's thread, with a clock that a test may give. Any call may be made to fail."""

    def __init__(self, unix_ms=lambda: 0) -> None:
        self._connection, driver = connect_empty()
        driver.create_function("unix_ms", 0, unix_ms)
        self.fails = False

    async def read(self, fn, *args, **kwargs):
        try:
            return fn(self._connection, *args, **kwargs)
        finally:
            self._connection.rollback()

    async def write(self, fn, *args, **kwargs):
        if self.fails:
            raise DatabaseUnavailable("locked")
        with self._connection.begin():
            return fn(self._connection, *args, **kwargs)


class FakeLive:
    """Remembers what it was called with. ``hang`` waits until it is cancelled, ``trap`` traps."""

    def __init__(self, shop: FakeShop, state: tuple[object, ...] = ()) -> None:
        self.shop = shop
        self.state = state
        self.closed = False
        self._cancelled = threading.Event()
        self._busy = threading.Lock()

    def call(self, export=None, args=(), *, input=None, deadline=None):  # noqa: A002 - the interface's own word for it
        assert self._busy.acquire(blocking=False), "two calls at a time"
        try:
            assert not self.closed
            if self._cancelled.is_set():
                raise GuestTrap("cancelled", "cancelled")
            self.state = (*self.state, *args)
            if export == "hang":
                self.shop.hanging.set()
                assert self._cancelled.wait(10)
                raise GuestTrap("cancelled", "cancelled")
            if export == "trap":
                raise GuestTrap("unreachable", "unreachable")
            return Invocation(export or "main", (len(self.state),), ("i32",), 0, b"", b"", (), 0.0, None)
        finally:
            self._busy.release()

    def cancel(self):
        self._cancelled.set()

    def resume(self):
        self._cancelled.clear()

    def statistics(self):
        return LiveStatistics(0, 0, 0.0, 1 << 16, None)

    def close(self):
        assert not self.closed, "closed twice"
        self.closed = True
        self.shop.alive -= 1


@dataclass
class FakeShop:
    """A workshop whose store is a dictionary."""

    saves: dict[tuple[int, str], tuple[object, ...]] = field(default_factory=dict)
    alive: int = 0
    made: int = 0
    store_fails: bool = False
    full: set[int] = field(default_factory=set)  # tenants whose quota is used up
    tried: int = 0  # saves that were asked for
    capturable: bool = True
    hanging: threading.Event = field(default_factory=threading.Event)

    def _make(self, state=()):
        self.alive += 1
        self.made += 1
        return FakeLive(self, state)

    def open(self, tenant, resolved, options, deadline):
        return self._make()

    def restore(self, tenant, resolved, options, snapshot, deadline):
        return self._make(snapshot)

    def load(self, tenant, resolved, options, name, deadline):
        if self.store_fails:
            raise StoreUnavailable("away")
        if (tenant, name) not in self.saves:
            raise ArtifactCorrupt("gone")
        return self._make(self.saves[tenant, name])

    def save(self, tenant, resolved, live, name):
        self.tried += 1
        if tenant in self.full:
            raise QuotaExceeded("artifacts")
        if not self.capturable:
            raise NotCapturable("it holds what cannot be saved")
        if self.store_fails:
            raise StoreUnavailable("away")
        self.saves[tenant, name] = live.state

    def copy(self, tenant, name, to):
        if self.store_fails:
            raise StoreUnavailable("away")
        self.saves[tenant, to] = self.saves[tenant, name]
        return bytes(32), 1

    def drop(self, tenant, names):
        if self.store_fails:
            raise StoreUnavailable("away")
        for name in names:
            self.saves.pop((tenant, name), None)

    def tenants(self):
        return tuple({str(tenant) for tenant, _ in self.saves})

    def names(self, tenant, folder, before_ns):
        return tuple(name for whose, name in self.saves if str(whose) == tenant and name.startswith(folder))


class FakeFunctions:
    """One function that every tenant has."""

    def __init__(self, *, cuda: bool = False) -> None:
        self.gone = False
        self.resolved = SimpleNamespace(
            version=SimpleNamespace(function_id=FUNCTION, number=1),
            limits=SimpleNamespace(memory_bytes=1 << 20),
            default_ns=10_000_000_000,
            cuda=cuda,
        )

    async def resolve(self, tenant, reference):
        if self.gone:
            raise NotFound("there is no such function")
        return self.resolved


class FakeQuotas:
    """Quotas that give each tenant a number of instances, and any memory."""

    def __init__(self, most: int = 1000) -> None:
        self.limits = {"instances": most, "memory_bytes": 1 << 62}
        self.quotas = Quotas()

    def hold(self, tenant, memory_bytes, instances=1):
        return self.quotas.hold(tenant, self.limits, instances=instances, memory_bytes=memory_bytes)

    @property
    def held(self):
        """Instances of each tenant that has any."""
        return self.quotas.held("instances")

    @property
    def memory(self):
        """Bytes of each tenant that has any."""
        return self.quotas.held("memory_bytes")


class FakeTime:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.clock = Clock(unix_ms=lambda: round(self.now_s * 1000), monotonic_s=lambda: self.now_s)
