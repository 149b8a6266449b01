import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.lane_memory import FlatLaneMemory
from tensorwasm.errors import KernelFault, MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.collective import compile_lane_op, cp_async
from tensorwasm.ptx.model import Address, Instruction, Int, Name, Not, Position

SOURCE, SLOTS, BARRIER = 0x10000, 0x100, 0x80
LANES = np.arange(32, dtype=np.int64)


def build(mnemonic, *operands, type_="u32"):
    """Compile; every register is of one type."""
    opcode, *modifiers = mnemonic.split(".")
    instruction = Instruction(opcode, tuple(modifiers), operands, position=Position(2, 9))
    return compile_lane_op(instruction, lambda operand: type_ if isinstance(operand, Name) else None)


def address(name):
    return Address(Name(name))


def copy_op(size, *more, mnemonic="cp.async.ca.shared.global", type_="u32"):
    return build(mnemonic, address("%r1"), address("%rd1"), Int(size), *more, type_=type_)


class Kernel:
    """Lanes that copy and wait, on a fake memory whose global bytes are known."""

    def __init__(self):
        self.memory = FlatLaneMemory()
        self.data = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
        for offset, byte in enumerate(self.data.tolist()):
            self.memory.bytes[("global", None, SOURCE + offset)] = byte

    def copy(self, size, place=0, lanes=LANES, start=0, limit=None, type_="u32"):
        """Copy ``size`` bytes per lane from ``start`` into slot number ``place``."""
        op = copy_op(size) if limit is None else copy_op(size, Name("%x"), type_=type_)
        targets = (SLOTS + 1024 * place + lanes * size).astype(np.uint64)
        sources = (SOURCE + start + lanes * size).astype(np.uint64)
        limits = [] if limit is None else [np.broadcast_to(limit, lanes.shape)]
        op.run(self.memory, lanes, targets, sources, np.full(lanes.shape, size, np.uint32), *limits)

    def commit(self, lanes=LANES):
        build("cp.async.commit_group").run(self.memory, lanes)

    def wait_group(self, count, lanes=LANES):
        build("cp.async.wait_group", Int(count)).run(self.memory, lanes, np.full(lanes.shape, count, np.uint32))

    def wait_all(self, lanes=LANES):
        build("cp.async.wait_all").run(self.memory, lanes)

    def read(self, size, place=0, lanes=LANES):
        targets = (SLOTS + 1024 * place + lanes * size).astype(np.uint64)
        return self.memory.load("shared", lanes, targets, np.dtype(np.uint8), size)

    def expected(self, size, start=0, lanes=LANES):
        return self.data[start : start + 32 * size].reshape(32, size)[lanes]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_data_arrives_at_the_wait_and_not_before(size):
    kernel = Kernel()
    kernel.copy(size)
    with pytest.raises(KernelFault, match="uninitialised"):
        kernel.read(size)
    kernel.wait_all()
    np.testing.assert_array_equal(kernel.read(size), kernel.expected(size))


def test_a_copy_hides_what_was_there_until_the_wait():
    kernel = Kernel()
    kernel.copy(4)
    kernel.wait_all()
    kernel.copy(4, start=256)
    with pytest.raises(KernelFault, match="uninitialised"):
        kernel.read(4)


def test_the_source_is_read_when_the_copy_is_issued():
    kernel = Kernel()
    kernel.copy(4)
    kernel.memory.bytes[("global", None, SOURCE)] ^= 0xFF
    kernel.wait_all()
    np.testing.assert_array_equal(kernel.read(4), kernel.expected(4))


def test_waiting_for_a_group_leaves_the_younger_ones():
    kernel = Kernel()
    for place in range(3):
        kernel.copy(16, place, start=512 * place)
        kernel.commit()
    kernel.wait_group(1)
    for place in range(2):
        np.testing.assert_array_equal(kernel.read(16, place), kernel.expected(16, 512 * place))
    with pytest.raises(KernelFault, match="uninitialised"):
        kernel.read(16, 2)
    kernel.wait_group(0)
    np.testing.assert_array_equal(kernel.read(16, 2), kernel.expected(16, 1024))


def test_a_wait_for_groups_spares_copies_that_no_group_has():
    kernel = Kernel()
    kernel.copy(4)
    kernel.wait_group(0)
    with pytest.raises(KernelFault, match="uninitialised"):
        kernel.read(4)


def test_lanes_count_their_own_groups():
    kernel = Kernel()
    even, odd = LANES[::2], LANES[1::2]
    kernel.copy(8)
    kernel.commit(even)
    kernel.wait_group(0, even)
    np.testing.assert_array_equal(kernel.read(8, lanes=even), kernel.expected(8, lanes=even))
    kernel.wait_group(0, odd)
    with pytest.raises(KernelFault, match="uninitialised"):
        kernel.read(8, lanes=odd)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_beyond_the_given_source_size_are_zeros(size):
    kernel, limits = Kernel(), (LANES % (size + 1)).astype(np.uint32)
    kernel.copy(size, limit=limits)
    kernel.wait_all()
    covered = np.arange(size) < limits[:, None]
    np.testing.assert_array_equal(kernel.read(size), np.where(covered, kernel.expected(size), 0))


def test_an_ignored_source_is_not_read():
    kernel = Kernel()
    kernel.copy(16, start=1 << 20, limit=True, type_="pred")
    kernel.wait_all()
    assert not kernel.read(16).any()


def test_a_source_size_of_zero_needs_no_source():
    kernel = Kernel()
    kernel.copy(16, start=(1 << 20) + 1, limit=np.uint32(0))
    kernel.wait_all()
    assert not kernel.read(16).any()


def test_a_source_larger_than_the_copy_faults():
    with pytest.raises(KernelFault, match="larger than the 4 bytes"):
        Kernel().copy(4, limit=np.uint32(5))


def test_a_part_of_a_crooked_source_faults():
    with pytest.raises(KernelFault, match="misaligned"):
        Kernel().copy(8, start=4, limit=np.uint32(3))


def test_a_crooked_target_faults_where_the_copy_is_issued():
    kernel = Kernel()
    with pytest.raises(KernelFault, match="misaligned"):
        copy_op(8).run(
            kernel.memory,
            LANES[:1],
            np.array([SLOTS + 4], np.uint64),
            np.array([SOURCE], np.uint64),
            np.array([8], np.uint32),
        )


def test_another_lane_races_with_a_copy_that_was_not_waited_for():
    kernel = Kernel()
    kernel.copy(4)
    kernel.wait_all()
    with pytest.raises(KernelFault, match="race"):
        kernel.memory.load("shared", LANES[:1], np.array([SLOTS + 4], np.uint64), np.dtype(np.uint32))
    kernel.memory.barrier()
    kernel.memory.load("shared", LANES[:1], np.array([SLOTS + 4], np.uint64), np.dtype(np.uint32))


def test_the_queue_is_bounded(monkeypatch):
    monkeypatch.setattr(cp_async, "QUEUE_BYTES", 1 << 14)
    kernel = Kernel()
    for _ in range(64):
        kernel.copy(4)
        kernel.memory.barrier()
    queue = kernel.memory.queue["copies"]
    assert len(queue.copies) < 16
    assert queue.size_bytes <= 1 << 14
    kernel.wait_all()
    np.testing.assert_array_equal(kernel.read(4), kernel.expected(4))


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("copy"), st.integers(0, 7), st.integers(0, 3)),
            st.tuples(st.just("commit"), st.integers(0, 7), st.just(0)),
            st.tuples(st.just("wait"), st.integers(0, 7), st.integers(0, 3)),
            st.tuples(st.just("wait_all"), st.integers(0, 7), st.just(0)),
        ),
        max_size=20,
    )
)
def test_groups_follow_a_list_per_lane(steps):
    """Judge: per lane a list of groups of slots, as the ISA tells it."""
    kernel = Kernel()
    groups, landed = {lane: [[]] for lane in range(8)}, {lane: set() for lane in range(8)}
    for what, lane, number in steps:
        lanes = LANES[lane : lane + 1]
        mine = groups[lane]
        if what == "copy":
            kernel.copy(4, number, lanes)
            mine[-1].append(number)
            landed[lane].discard(number)
        elif what == "commit":
            kernel.commit(lanes)
            mine.append([])
        else:
            keep = len(mine) if what == "wait_all" else max(len(mine) - 1 - number, 0)
            if what == "wait_all":
                kernel.wait_all(lanes)
            else:
                kernel.wait_group(number, lanes)
            for group in mine[:keep]:
                landed[lane].update(group)
                group.clear()
    for lane in range(8):
        for number in range(4):
            place = SLOTS + 1024 * number + lane * 4
            assert (("shared", 0, place) in kernel.memory.bytes) == (number in landed[lane])


@pytest.mark.parametrize(
    ("operands", "mnemonic"),
    [
        ((address("%r1"), address("%rd1"), Name("%r2")), "cp.async.ca.shared.global"),
        ((address("%r1"), address("%rd1"), Int(12)), "cp.async.ca.shared.global"),
        ((address("%r1"), address("%rd1"), Name("%r2")), "cp.ca.async.shared.global"),
        ((address("%r1"), address("%rd1"), Int(8)), "cp.async.cg.shared.global"),
        ((address("%r1"), address("%rd1"), Int(16), Name("%r1"), Name("%r2")), "cp.async.cg.shared.global"),
        ((address("%r1"), Name("%rd1"), Int(16)), "cp.async.cg.shared.global"),
        ((Name("%r1"),), "cp.async.wait_group"),
        ((Name("%r1"),), "cp.wait_group.async"),
        ((Int(-1),), "cp.async.wait_group"),
    ],
)
def test_operands_that_do_not_fit_are_malformed(operands, mnemonic):
    with pytest.raises(MalformedPtx) as refusal:
        build(mnemonic, *operands)
    assert not isinstance(refusal.value, UnsupportedPtx)
    assert (refusal.value.line, refusal.value.column) == (2, 9)


def test_the_type_of_the_operand_after_the_size_decides_its_meaning():
    assert copy_op(4, Name("%x"), type_="pred").sources[-1] == "pred"
    assert copy_op(4, Name("%x"), type_="u32").sources[-1] == "u32"
    assert copy_op(4, Not(Name("%x"))).sources[-1] == "pred"
    assert copy_op(4, Int(2)).sources[-1] == "u32"


def test_a_cache_policy_is_taken_and_ignored():
    mnemonic = "cp.async.ca.shared.global.L2::cache_hint.L2::128B"
    op = copy_op(4, Name("%rd9"), mnemonic=mnemonic, type_="b64")
    assert op.sources == ("u64", "u64", "u32", "b64")


@pytest.mark.parametrize(
    ("mnemonic", "named"),
    [
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "bulk copies"),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.tile", "bulk copies"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32", "bulk copies"),
        ("cp.async.bulk.commit_group", "bulk copies"),
        ("cp.async.ca.shared::cluster.global", "clusters"),
        ("cp.async.cv.shared.global", "cp.async.cv"),
        ("mbarrier.arrive.shared::cluster.b64", "clusters"),
    ],
)
def test_unsupported_forms_are_refused_by_name_and_place(mnemonic, named):
    with pytest.raises(UnsupportedPtx, match=named) as refusal:
        build(mnemonic, address("%r1"), address("%rd1"), Int(16))
    assert (refusal.value.line, refusal.value.column) == (2, 9)


def test_other_instructions_are_not_ours():
    assert build("add.s32", Name("%r1")) is None
