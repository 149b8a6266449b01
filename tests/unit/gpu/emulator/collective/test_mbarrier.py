import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fakes.lane_memory import FlatLaneMemory
from tensorwasm.errors import KernelFault
from tensorwasm.gpu.emulator.collective import compile_lane_op
from tensorwasm.gpu.emulator.collective.mbarrier import MAX_COUNT, MBarrier
from tensorwasm.ptx.model import Address, Instruction, Int, Name

PLACE = Address(Name("%r1"))
BARRIER, SOURCE, SLOTS = 0x40, 0x1000, 0x100
ONE = np.zeros(1, np.int64)


def build(mnemonic, *operands):
    opcode, *modifiers = mnemonic.split(".")
    return compile_lane_op(Instruction(opcode, tuple(modifiers), operands), lambda _operand: "b32")


def at(lanes, address=BARRIER):
    return np.full(lanes.shape, address, np.uint64)


def column(lanes, value, dtype=np.uint32):
    return np.broadcast_to(np.asarray(value, dtype), lanes.shape)


class Objects:
    """mbarrier instructions on a fake memory."""

    def __init__(self, expected=None):
        self.memory = FlatLaneMemory()
        if expected is not None:
            self.run("init", ONE, expected)
            self.memory.barrier()

    def run(self, name, lanes, *values, result=False, address=BARRIER):
        operands = ([Name("%d")] if result else []) + [PLACE] + [Int(0)] * len(values)
        op = build(f"mbarrier.{name}.shared.b64", *operands)
        dtypes = [np.dtype(f"u{int(type_[1:]) // 8}") for type_ in op.sources[1:]]
        columns = [column(lanes, value, dtype) for value, dtype in zip(values, dtypes, strict=True)]
        results = op.run(self.memory, lanes, at(lanes, address), *columns)
        return results[0] if results else None

    def arrive(self, lanes, *count, name="arrive"):
        return self.run(name, lanes, *count, result=True)

    def passed(self, state, lanes=ONE):
        return bool(self.run("test_wait", lanes, state, result=True).all())

    def parity(self, parity, lanes=ONE):
        return bool(self.run("try_wait.parity", lanes, parity, result=True).all())


def pending_count(states):
    op = build("mbarrier.pending_count.b64", Name("%d"), Name("%s"))
    (counts,) = op.run(None, np.arange(len(states), dtype=np.int64), states)
    return counts.tolist()


def test_a_phase_ends_with_its_last_arrival():
    objects = Objects(3)
    first = objects.arrive(ONE)
    assert not objects.passed(first)
    objects.arrive(ONE, 2)
    assert objects.passed(first)
    second = objects.arrive(ONE)
    assert pending_count(second) == [3]
    assert not objects.passed(second)


def test_lanes_that_meet_in_one_step_take_turns():
    objects, lanes = Objects(8), np.arange(8, dtype=np.int64)
    states = objects.arrive(lanes)
    assert pending_count(states) == [8, 7, 6, 5, 4, 3, 2, 1]
    assert objects.passed(states, lanes)


def test_one_step_can_go_through_several_phases():
    objects, lanes = Objects(2), np.arange(5, dtype=np.int64)
    states = objects.arrive(lanes)
    assert pending_count(states) == [2, 1, 2, 1, 2]
    assert [objects.passed(states[index : index + 1]) for index in (2, 3, 4)] == [True, True, False]
    assert objects.parity(1)
    assert not objects.parity(0)


def test_blocks_have_objects_of_their_own_at_one_address():
    objects = Objects()
    lanes = np.array([0, 1, 32, 33], np.int64)
    objects.run("init", lanes[[0, 2]], 2)
    objects.memory.barrier()
    states = objects.arrive(lanes)
    assert pending_count(states) == [2, 1, 2, 1]
    assert objects.passed(states, lanes)


def test_parity_waits_see_the_phase_before_the_first_as_over():
    objects = Objects(1)
    assert objects.parity(1)
    assert not objects.parity(0)
    objects.arrive(ONE)
    assert objects.parity(0)
    assert not objects.parity(1)


def test_dropping_out_lowers_the_next_phases():
    objects = Objects(3)
    state = objects.arrive(ONE, name="arrive_drop")
    objects.arrive(ONE, 2)
    assert objects.passed(state)
    assert pending_count(objects.arrive(ONE)) == [2]


def test_transactions_hold_a_phase_open():
    objects = Objects(1)
    state = objects.run("arrive.expect_tx", ONE, 64, result=True)
    assert not objects.passed(state)
    objects.run("complete_tx", ONE, 48)
    objects.run("expect_tx", ONE, 16)
    objects.run("complete_tx", ONE, 16)
    assert not objects.passed(state)
    objects.run("complete_tx", ONE, 16)
    assert objects.passed(state)


def test_transactions_may_complete_before_they_are_expected():
    objects = Objects(1)
    objects.run("complete_tx", ONE, 8)
    state = objects.run("arrive.expect_tx", ONE, 8, result=True)
    assert objects.passed(state)


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda o: o.run("init", ONE, 0), "1 to 1048575"),
        (lambda o: o.run("init", ONE, MAX_COUNT + 1), "1 to 1048575"),
        (lambda o: o.arrive(ONE, 3), "3 arrivals at an mbarrier that waits for 2"),
        (lambda o: o.arrive(ONE, 0), "0 arrivals"),
        (lambda o: o.arrive(ONE, 2, name="arrive.noComplete"), "noComplete"),
        (lambda o: o.arrive(ONE, 3, name="arrive_drop"), "3 arrivals dropped"),
        (lambda o: o.run("expect_tx", ONE, MAX_COUNT + 1), "transactions"),
        (lambda o: o.run("complete_tx", ONE, 0xFFFFFFFF), "transactions"),
    ],
)
def test_breaking_an_objects_rules_faults(work, reason):
    with pytest.raises(KernelFault, match=reason):
        work(Objects(2))


@pytest.mark.parametrize("name", ["arrive", "test_wait", "test_wait.parity", "inval"])
def test_memory_that_holds_no_object_faults(name):
    objects = Objects()
    objects.memory.store("shared", ONE, at(ONE), np.array([[7]], np.uint64))
    values = [0] if "wait" in name else []
    with pytest.raises(KernelFault, match="no mbarrier"):
        objects.run(name, ONE, *values, result=name != "inval")


def test_an_invalidated_object_is_uninitialised_memory():
    objects = Objects(1)
    objects.run("inval", ONE)
    with pytest.raises(KernelFault, match="uninitialised"):
        objects.arrive(ONE)


def test_an_object_that_another_lane_made_needs_a_barrier_first():
    objects = Objects()
    objects.run("init", ONE, 2)
    with pytest.raises(KernelFault, match="race"):
        objects.arrive(ONE + 1)


def test_a_completed_phase_orders_what_came_before():
    objects, lanes = Objects(2), np.arange(2, dtype=np.int64)
    objects.memory.store("shared", ONE, at(ONE, SLOTS), np.array([[5]], np.uint32))
    states = objects.arrive(lanes)
    assert objects.passed(states, lanes)
    read = objects.memory.load("shared", ONE + 1, at(ONE, SLOTS), np.dtype(np.uint32))
    assert read.item() == 5


@given(
    expected=st.integers(0, MAX_COUNT),
    pending=st.integers(0, MAX_COUNT),
    tx=st.integers(-MAX_COUNT, MAX_COUNT),
    phase=st.integers(0, 1),
)
def test_words_hold_every_state(expected, pending, tx, phase):
    barrier = MBarrier(expected, pending, tx, phase)
    word = barrier.encode()
    assert 0 <= word < 1 << 64
    assert MBarrier.decode(word) == barrier


@pytest.mark.parametrize("word", [0, 1 << 62, 3 << 62, (1 << 64) - 1])
def test_other_words_are_no_objects(word):
    assert MBarrier.decode(word) is None


def test_waits_let_other_lanes_go_first():
    for name in ("test_wait", "try_wait"):
        assert build(f"mbarrier.{name}.shared.b64", Name("%p"), PLACE, Name("%s")).waits
    assert build("mbarrier.try_wait.parity.shared::cta.b64", Name("%p"), PLACE, Int(0), Int(100)).waits
    assert not build("mbarrier.arrive.shared.b64", Name("%s"), PLACE).waits


# ------------------------------------------------------------------------------------------- arrivals by copies


def start_copy(objects, lanes):
    for offset in range(256):
        objects.memory.bytes[("global", None, SOURCE + offset)] = offset
    copy = build("cp.async.ca.shared.global", PLACE, Address(Name("%rd1")), Int(4))
    places = (lanes * 4).astype(np.uint64)
    copy.run(objects.memory, lanes, places + np.uint64(SLOTS), places + np.uint64(SOURCE), column(lanes, 4))


def read_slots(objects, lanes):
    places = (lanes * 4 + SLOTS).astype(np.uint64)
    return objects.memory.load("shared", lanes, places, np.dtype(np.uint8), 4)


@pytest.mark.parametrize(("suffix", "expected"), [("", 1), (".noinc", 8)])
def test_copies_arrive_when_they_are_done(suffix, expected):
    """With ``.noinc`` the arrivals are among the expected ones; without, each first raises the count it then lowers."""
    objects, lanes = Objects(expected), np.arange(8, dtype=np.int64)
    start_copy(objects, lanes)
    build(f"cp.async.mbarrier.arrive{suffix}.shared.b64", PLACE).run(objects.memory, lanes, at(lanes))
    with pytest.raises(KernelFault, match="uninitialised"):
        read_slots(objects, lanes)
    if not suffix:
        assert not objects.parity(0)
        objects.arrive(ONE)
    assert objects.parity(0)
    np.testing.assert_array_equal(read_slots(objects, lanes[::-1]).ravel(), np.arange(32).reshape(8, 4)[::-1].ravel())


def test_a_wait_for_all_copies_includes_those_that_arrive_at_a_barrier():
    objects, lanes = Objects(8), np.arange(8, dtype=np.int64)
    start_copy(objects, lanes)
    build("cp.async.mbarrier.arrive.noinc.shared.b64", PLACE).run(objects.memory, lanes, at(lanes))
    build("cp.async.wait_all").run(objects.memory, lanes)
    np.testing.assert_array_equal(read_slots(objects, lanes).ravel(), np.arange(32))


def test_copies_after_the_arrival_are_not_part_of_it():
    objects = Objects(1)
    build("cp.async.mbarrier.arrive.noinc.shared.b64", PLACE).run(objects.memory, ONE, at(ONE))
    start_copy(objects, ONE)
    assert objects.parity(0)
    with pytest.raises(KernelFault, match="uninitialised"):
        read_slots(objects, ONE)


# ---------------------------------------------------------------------------------------------------- model


class Protocol(RuleBasedStateMachine):
    """One object against the ISA's words: counts, phases and states in plain variables."""

    def __init__(self):
        super().__init__()
        self.objects = Objects(4)
        self.expected = self.pending = 4
        self.phase = 0
        self.states = []

    def finish(self):
        if self.pending == 0:
            self.phase += 1
            self.pending = self.expected
            self.states = [(word, phase) for word, phase in self.states if phase >= self.phase - 1]

    @rule(count=st.integers(1, 4))
    def arrive(self, count):
        count = min(count, self.pending)
        state = self.objects.arrive(ONE, count)
        assert pending_count(state) == [self.pending]
        self.states.append((int(state[0]), self.phase))
        self.pending -= count
        self.finish()

    @precondition(lambda self: self.expected > 1)
    @rule()
    def drop(self):
        state = self.objects.arrive(ONE, name="arrive_drop")
        self.states.append((int(state[0]), self.phase))
        self.expected -= 1
        self.pending -= 1
        self.finish()

    @precondition(lambda self: self.pending > 1)
    @rule()
    def arrive_without_completing(self):
        self.objects.arrive(ONE, 1, name="arrive.noComplete")
        self.pending -= 1

    @invariant()
    def waits_tell_the_phase(self):
        for word, phase in self.states:
            assert self.objects.passed(np.array([word], np.uint64)) == (phase < self.phase)
        assert self.objects.parity(self.phase & 1) is False
        assert self.objects.parity(self.phase + 1 & 1) is True


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
