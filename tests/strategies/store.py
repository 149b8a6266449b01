"""Everything that can be done with a store, in any order, by two tenants, against a model."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oracles.store import Model, seen
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import TensorWasmError

TENANTS = ("default", "../Default")
QUOTA = Quota(artifact_bytes=400, count=5)
POOL = (b"", b"x", b"y" * 90, bytes(200), b"z" * 201, *(bytes([n]) * 40 for n in range(6)))
CONTENTS = st.sampled_from(POOL)
DIGESTS = st.sampled_from([*map(blake3, POOL), bytes(32), b"short"])
NAMES = st.sampled_from(["a", "b", "../../c", "\0", "d/e", "\N{SNOWMAN}", "f"])
SECOND_NS = 10**9


def outcome(action, *arguments):
    """Return what something returns, or the class of the error that it raises."""
    try:
        return action(*arguments)
    except TensorWasmError as error:
        return type(error)


class StoreMachine(RuleBasedStateMachine):
    """A store in a new place; `open_backend` returns one."""

    open_backend = None

    def __init__(self):
        super().__init__()
        self.now_ns = 10**18
        place = self.open_backend()
        self.stores = [ContentStore(place, QUOTA, recent_bytes=1000, now_ns=lambda: self.now_ns) for _ in range(2)]
        self.models = {tenant: Model(QUOTA) for tenant in TENANTS}

    @property
    def store(self):
        """One and the other in turn, as if they were in two processes."""
        self.stores.reverse()
        return self.stores[0]

    @rule(seconds=st.integers(0, 100))
    def wait(self, seconds):
        self.now_ns += seconds * SECOND_NS

    @rule(
        tenant=st.sampled_from(TENANTS),
        kind=st.sampled_from(["module", "module", "code", "tarball"]),
        data=CONTENTS,
        references=st.frozensets(DIGESTS, max_size=2),
    )
    def put(self, tenant, kind, data, references):
        expected = self.models[tenant].put(kind, data, references, self.now_ns)
        assert outcome(self.store.put, tenant, kind, data, references) == expected

    @rule(tenant=st.sampled_from(TENANTS), data=CONTENTS)
    def put_plainly(self, tenant, data):
        self.put(tenant, "module", data, frozenset())

    @rule(tenant=st.sampled_from(TENANTS), chain=st.lists(CONTENTS, min_size=2, max_size=3), name=NAMES)
    def put_chain(self, tenant, chain, name):
        """Put artifacts of which each refers to the one before, and name the last."""
        references = frozenset()
        for data in chain:
            self.put(tenant, "snapshot", data, references)
            references = frozenset({blake3(data)})
        self.bind(tenant, name, blake3(chain[-1]))

    @rule(tenant=st.sampled_from(TENANTS), digest=DIGESTS)
    def get(self, tenant, digest):
        assert outcome(self.store.get, tenant, digest) == self.models[tenant].get(digest)

    @rule(tenant=st.sampled_from(TENANTS), digest=DIGESTS)
    def delete(self, tenant, digest):
        assert outcome(self.store.delete, tenant, digest) == self.models[tenant].delete(digest)

    @rule(tenant=st.sampled_from(TENANTS), name=NAMES, digest=DIGESTS)
    def bind(self, tenant, name, digest):
        assert outcome(self.store.bind, tenant, name, digest) == self.models[tenant].bind(name, digest)

    @rule(tenant=st.sampled_from(TENANTS), name=NAMES)
    def resolve(self, tenant, name):
        assert outcome(self.store.resolve, tenant, name) == self.models[tenant].resolve(name)

    @rule(tenant=st.sampled_from(TENANTS), name=NAMES)
    def unbind(self, tenant, name):
        assert outcome(self.store.unbind, tenant, name) == self.models[tenant].unbind(name)

    @rule(grace_s=st.integers(0, 120))
    def collect(self, grace_s):
        expected = {
            (tenant, digest)
            for tenant, model in self.models.items()
            for digest in model.collect(self.now_ns - grace_s * SECOND_NS)
        }
        collected = self.store.collect(grace_s)
        assert (set(collected.artifacts), len(collected.artifacts)) == (expected, len(expected))
        assert collected.leftovers == 0

    @invariant()
    def agrees(self):
        for tenant, model in self.models.items():
            usage = self.store.usage(tenant)
            assert usage.artifact_bytes == sum(len(kept.data) for kept in model.artifacts.values())
            assert (usage.count, usage.names) == (len(model.artifacts), len(model.names))

    def teardown(self):
        for tenant, model in self.models.items():
            assert seen(self.store, tenant) == model.seen()
        findings = self.store.verify().findings
        assert [finding for finding in findings if finding.bad] == []


def store_machine(open_backend):
    """Return a state machine over stores in places that are opened in this way."""
    return type("Machine", (StoreMachine,), {"open_backend": staticmethod(open_backend)})
