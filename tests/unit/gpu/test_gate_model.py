"""Whoever comes, waits, gives up and leaves: the gate is where a plain model says."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes.gate import Sitter
from tensorwasm.errors import CapacityExhausted
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.values import NEVER, Deadline

PEOPLE = 7
people = st.integers(0, PEOPLE - 1)


class GateModel(RuleBasedStateMachine):
    """Some people at one gate. The model: who has a place, who stands in line, and who has been told."""

    @initialize(capacity=st.integers(0, 3))
    def start(self, capacity):
        self.capacity = capacity
        self.asks = 0
        self.gate = Gate(capacity, start=self.count_start)
        self.people = [Sitter() for _ in range(PEOPLE)]
        self.told = []
        self.held, self.line, self.expected, self.asked = [], [], [], False

    def count_start(self, gate):
        assert gate is self.gate
        self.asks += 1
        return True

    def admit(self, who, *, asking):
        """Return whether somebody gets a place at once, and give it."""
        if who in self.held:
            return True
        if self.line:
            return False
        if len(self.held) == self.capacity:
            idle = [each for each in self.held if self.people[each].idle] if asking else []
            if not idle:
                return False
            self.held.remove(idle[0])
        self.held.append(who)
        return True

    def hand_over(self):
        while self.line and len(self.held) < self.capacity:
            first = self.line.pop(0)
            self.held.append(first)
            self.expected.append(first)

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
        for group in (self.held, self.line):
            if who in group:
                group.remove(who)
        self.hand_over()
        self.gate.leave(self.people[who])

    @rule()
    def ask(self):
        for who in list(self.held):
            if self.line and self.people[who].idle:
                self.held.remove(who)
                self.hand_over()
        self.asked = bool(self.line)
        assert self.gate.ask() == self.asked

    @invariant()
    def places_are_where_they_should_be(self):
        if not hasattr(self, "gate"):
            return
        assert self.gate.in_use == len(self.held) <= self.capacity
        assert self.gate.waiting == len(self.line)
        assert self.told == self.expected
        assert not self.line or (len(self.held) == self.capacity and self.asked)
        for who in self.held:
            assert self.gate.offer(self.people[who])

    def teardown(self):
        if not hasattr(self, "gate"):
            return
        for who in range(PEOPLE):
            self.leave(who)
        assert (self.gate.in_use, self.gate.waiting, self.told) == (0, 0, self.expected)


GateModel.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestGate = GateModel.TestCase
