"""The gate against a plain model: who comes, waits, is held, gives up and leaves."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes.gate import Sitter
from tensorwasm.errors import CapacityExhausted
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.values import NEVER, Deadline

PEOPLE = 9
TENANTS = ("ann", "bob", "carol")
people = st.integers(0, PEOPLE - 1)


class GateModel(RuleBasedStateMachine):
    """Some people of a few tenants at one gate.

    The model: who has a place, who stands in line, who has been told, and since when each tenant has been without one
    or without giving one back.
    """

    @initialize(capacity=st.integers(0, 3), each=st.none() | st.integers(1, 3))
    def start(self, capacity, each):
        self.capacity, self.each = capacity, each
        self.asks = 0
        self.gate = Gate(capacity, start=self.count_start, each=each)
        self.people = [Sitter(tenant=TENANTS[number % len(TENANTS)]) for number in range(PEOPLE)]
        self.told = []
        self.held, self.line, self.expected, self.asked = [], [], [], False
        self.paused, self.since, self.now = frozenset(), dict.fromkeys(TENANTS, 0), 0

    def count_start(self, ask):
        assert ask == self.gate.ask
        self.asks += 1
        return True

    def tenant(self, who):
        return self.people[who].tenant

    def end_turn(self, tenant):
        self.now += 1
        self.since[tenant] = self.now

    def has_room(self, tenant):
        own = sum(self.tenant(each) == tenant for each in self.held)
        return len(self.held) < self.capacity and (self.each is None or own < self.each)

    def wanted(self):
        return any(self.tenant(each) not in self.paused for each in self.line)

    def drop(self, who):
        if who in self.held:
            self.held.remove(who)
            self.end_turn(self.tenant(who))

    def admit(self, who, *, asking):
        """Return whether somebody gets a place at once, and give it."""
        tenant = self.tenant(who)
        if tenant in self.paused:
            return False
        if who in self.held:
            return True
        if not self.has_room(tenant):
            if not asking or self.wanted():
                return False
            for each in list(self.held):
                if self.people[each].idle:
                    self.drop(each)
                    if self.has_room(tenant):
                        break
            if not self.has_room(tenant):
                return False
        self.held.append(who)
        self.end_turn(tenant)
        return True

    def grant(self, who):
        self.line.remove(who)
        if who not in self.held:
            self.held.append(who)
        self.expected.append(who)
        self.end_turn(self.tenant(who))

    def hand_over(self):
        while ready := [
            each for each in self.line if self.tenant(each) not in self.paused and self.has_room(self.tenant(each))
        ]:
            self.grant(min(ready, key=lambda each: self.since[self.tenant(each)]))

    @rule(who=people, idle=st.booleans())
    def become(self, who, idle):
        self.people[who].idle = idle

    @rule(who=people)
    def offer(self, who):
        assert self.gate.offer(self.people[who]) == self.admit(who, asking=False)

    @rule(who=people)
    def request(self, who):
        assert self.gate.request(self.people[who]) == self.admit(who, asking=True)

    @rule(who=people)
    def enter_without_time(self, who):
        if who in self.line:
            return
        admitted = self.admit(who, asking=True)
        try:
            self.gate.enter(Deadline(at_ns=0), self.people[who])
        except CapacityExhausted:
            assert not admitted
            self.drop(who)  # one that is held had a permit, perhaps
            self.hand_over()
        else:
            assert admitted

    @rule(who=people, late=st.booleans())
    def join(self, who, late):
        if who in self.line:
            return
        admitted = self.admit(who, asking=True)
        refused = not admitted and (late or self.capacity == 0)
        starts = self.asks + (not admitted and not refused and not self.asked)
        try:
            until = Deadline(at_ns=0) if late else NEVER
            assert self.gate.join(self.people[who], lambda: self.told.append(who), until) != admitted
        except CapacityExhausted:
            assert refused
        else:
            assert not refused
            if not admitted:
                if not any(self.tenant(each) == self.tenant(who) for each in self.line):
                    self.end_turn(self.tenant(who))
                self.line.append(who)
                self.asked = True
        assert self.asks == starts

    @rule(who=people)
    def give_up(self, who):
        try:
            self.gate.give_up(self.people[who])
        except CapacityExhausted:
            assert who in self.line
            self.line.remove(who)
        else:
            assert who not in self.line

    @rule(who=people)
    def leave(self, who):
        if who in self.line:
            self.line.remove(who)
        self.drop(who)
        self.hand_over()
        self.gate.leave(self.people[who])

    @rule()
    def ask(self):
        self.hand_over()
        for who in list(self.held):
            if self.wanted() and self.people[who].idle:
                self.drop(who)
                self.hand_over()
        self.asked = bool(self.line)
        assert self.gate.ask() == self.asked

    @rule(tenants=st.frozensets(st.sampled_from(TENANTS)))
    def hold(self, tenants):
        suspended = [
            each.suspended + (number in self.held and each.tenant in tenants) for number, each in enumerate(self.people)
        ]
        going_on, self.paused = self.paused - tenants, tenants
        for who in list(self.held):
            if who in self.line and self.tenant(who) in going_on:
                self.grant(who)
        self.hand_over()
        self.gate.hold(tenants)
        assert [each.suspended for each in self.people] == suspended

    @invariant()
    def places_are_where_they_should_be(self):
        if not hasattr(self, "gate"):
            return
        assert self.gate.in_use == len(self.held) <= self.capacity
        assert self.gate.waiting == len(self.line)
        assert self.told == self.expected
        assert self.gate.holders() == (
            tuple(map(self.people.__getitem__, self.held)),
            {self.tenant(each) for each in self.line},
        )
        for who in self.line:
            assert self.asked
            assert self.tenant(who) in self.paused or not self.has_room(self.tenant(who))
        for who in self.held:
            assert self.gate.offer(self.people[who]) == (self.tenant(who) not in self.paused)

    def teardown(self):
        if not hasattr(self, "gate"):
            return
        self.hold(frozenset())
        for who in range(PEOPLE):
            self.leave(who)
        assert (self.gate.in_use, self.gate.waiting, self.told) == (0, 0, self.expected)


GateModel.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestGate = GateModel.TestCase
