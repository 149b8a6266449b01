"""Rate limits over several processes: as one bucket while they take turns, and within its bound however they mix."""

import itertools
import json
import math
import os
import subprocess
import sys

from hypothesis import example, given
from hypothesis import strategies as st

from fakes.shared_tables import SteppedWords, Stepping, full_set, tables
from oracles.limits import BucketModel
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.buckets import RateLimiter, SharedBuckets
from tensorwasm.tenancy.shared_table import create_table

S = 1_000_000_000
ROWS = 3
PASSING_NS = st.one_of(st.integers(0, 3 * S), st.sampled_from([0, 1, 100_000_000, 3600 * S]))
RATES = st.sampled_from([(10, 20), (1, 1), (0, 3), (100, 1), (3, 7)])
ROW = st.integers(0, ROWS - 1)


@given(st.lists(st.tuples(ROW, st.integers(0, 4), PASSING_NS), max_size=80), st.lists(RATES, min_size=5, max_size=5))
def test_processes_in_turn_are_as_one_with_a_bucket_that_is_never_dropped(asks, rates):
    with tables(ROWS) as (_, views):
        buckets, models, now_ns = [SharedBuckets(view) for view in views], {}, 10**15
        for row, key, passing_ns in asks:
            now_ns += passing_ns
            qps, burst = rates[key]
            model = models.setdefault(key, BucketModel(burst, now_ns))
            model.judge(qps, burst, now_ns, buckets[row].take(key, qps, burst, now_ns))


@given(st.lists(st.tuples(ROW, RATES, st.integers(0, 2 * S)), max_size=60))
def test_a_rate_that_changes_counts_from_then_on_in_all_processes(asks):
    with tables(ROWS) as (_, views):
        buckets, model, now_ns, before = [SharedBuckets(view) for view in views], None, 0, None
        for row, (qps, burst), passing_ns in asks:
            now_ns += passing_ns
            model = model or BucketModel(burst, now_ns)
            if before not in (None, (qps, burst)):
                model.turn_to(*before, now_ns)  # until then the old rate counted
            before = qps, burst
            model.judge(qps, burst, now_ns, buckets[row].take("key", qps, burst, now_ns))


@given(st.lists(st.tuples(ROW, st.booleans()), max_size=40))
def test_what_is_given_back_can_be_taken_by_all(steps):
    with tables(ROWS) as (_, views):
        buckets, taken = [SharedBuckets(view) for view in views], 0
        for row, back in steps:
            assert (buckets[row].take("key", 0, 9, 0) == 0.0) is (taken < 9)
            assert buckets[row].left("key") == max(0, 8 - taken)
            if taken < 9 and back:
                buckets[row].give_back("key")
            elif taken < 9:
                taken += 1


def test_the_process_that_follows_a_dead_one_counts_on():
    with tables(2) as (_, views):
        first = SharedBuckets(views[0])
        assert [first.take("key", 0, 3, 0) for _ in range(2)] == [0.0, 0.0]
        second = SharedBuckets(views[0])  # of the same row
        assert [second.take("key", 0, 3, 0) for _ in range(2)] == [0.0, math.inf]
        assert SharedBuckets(views[1]).take("key", 0, 3, 0) == math.inf


def test_a_key_comes_in_for_a_full_bucket_and_not_for_one_that_never_refills():
    with tables(2) as (_, views):
        keys = full_set(views[0], views[0].buckets)
        one, other = (SharedBuckets(view) for view in views)
        for key in keys[:-2]:
            assert one.take(key, 0, 2, 0) == 0.0
        assert one.take(keys[-2], 1, 1, 0) == 0.0
        assert one.take(keys[-2], 1, 1, 0) == 1.0
        assert other.take(keys[-1], 0, 2, 9 * S) == 0.0  # the place of the last, which is full again
        assert one.take(keys[-2], 1, 1, 9 * S) == 1.0  # none is left
        assert [one.take(keys[0], 0, 2, 9 * S) for _ in range(2)] == [0.0, math.inf]
        assert [one.take(keys[-1], 0, 2, 9 * S) for _ in range(2)] == [0.0, math.inf]


def stepped(buckets, step):
    """Make a process's accesses to words of buckets steps: all writes, and each word that is read."""
    unpack = buckets._unpack

    def words(memory, at_byte):
        read = []
        for place in range(3 * buckets._rows + 1):
            step()
            read.append(unpack(memory, at_byte)[place])
        return tuple(read)

    buckets._unpack = words
    buckets._words = SteppedWords(buckets._words, step)
    buckets._floats = SteppedWords(buckets._floats, step)
    return buckets


# All read a full bucket, and the first empties it, and waits until it is full again, before the others write.
@example((1, 1), [(0, 9, 0), (1, 11, 0), (2, 11, 0), (0, 40, S), (1, 40, 0), (2, 40, 0)])
@given(
    RATES,
    st.lists(st.tuples(ROW, st.integers(1, 40), st.sampled_from([0, 0, 0, 1, S // 100, S])), max_size=60),
)
def test_however_processes_mix_they_exceed_the_limit_by_one_request_of_each_other_process(rate, schedule):
    qps, burst = rate
    now_ns = 10**15
    admitted = []
    with tables(ROWS) as (_, views):
        parts = [SharedBuckets(view) for view in views]
        for buckets in parts:
            buckets.take("key", qps, burst, now_ns)
            buckets.give_back("key")  # the key is known in all processes
        now_ns += 3600 * S
        stopped, stepping = False, Stepping()

        def process(buckets):
            def run():
                while not stopped:
                    stepping.step()
                    began_ns = now_ns
                    if buckets.take("key", qps, burst, began_ns) == 0.0:
                        admitted.append(began_ns)

            return run

        stepping.start([process(stepped(buckets, stepping.step)) for buckets in parts])
        for row, accesses, passing_ns in schedule:
            now_ns += passing_ns
            for _ in range(accesses):
                stepping.resume(row)
        stopped = True
        stepping.finish()
    admitted.sort()
    for first, last in itertools.combinations_with_replacement(range(len(admitted)), 2):
        bound = burst + qps * (admitted[last] - admitted[first]) / S + ROWS - 1
        assert last - first + 1 <= bound + 1e-6


HAMMER = """
import json, sys, time
from tensorwasm.tenancy.buckets import SharedBuckets
from tensorwasm.tenancy.shared_table import SharedTable
descriptor, rows, row, qps, burst, seconds = map(int, sys.argv[1:])
buckets = SharedBuckets(SharedTable(descriptor, rows, row))
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic_ns() + seconds * 10**9
first, now, admitted = time.monotonic_ns(), 0, 0
while now < until:
    now = time.monotonic_ns()
    admitted += buckets.take("key", qps, burst, now) == 0.0
print(json.dumps([first, now, admitted]))
"""


def test_four_processes_that_ask_as_fast_as_they_can_share_one_limit():
    processes, qps, burst = 4, 2000, 50
    descriptor = create_table(processes)
    running = []
    try:
        for row in range(processes):
            numbers = map(str, (descriptor, processes, row, qps, burst, 1))
            running.append(
                subprocess.Popen(
                    [sys.executable, "-c", HAMMER, *numbers],
                    pass_fds=[descriptor],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in running:
            assert process.stdout.readline() == "ready\n"
        for process in running:
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
        os.close(descriptor)
    passed_s = (max(last for _, last, _ in results) - min(first for first, _, _ in results)) / S
    admitted = sum(count for _, _, count in results)
    assert admitted <= burst + qps * passed_s + processes - 1
    assert admitted >= (burst + qps * passed_s) / 2


def test_a_limiter_with_a_table_counts_for_all_processes():
    environment = {"TENSOR_WASM_API_RATE_LIMIT_QPS": "1", "TENSOR_WASM_API_RATE_LIMIT_BURST": "3"}
    settings = ServiceSettings.from_environment(environment)
    with tables(2) as (_, views):
        one, other = (RateLimiter.from_settings(settings, view) for view in views)
        assert one.count("token", 1, 0, 2, 0)[0] == other.count("token", 1, 0, 2, 0)[0] == 0.0
        assert one.count("token", 1, 0, 2, 0)[0] == math.inf  # the tenant's, and the token's is given back
        assert other.count("token", 2, 0, 2, 0)[0] == 0.0
        standing = ("token", 1, 3, 0.0), ("tenant", 0, 2, 0.0)
        assert one.count("token", 2, 0, 2, 0) == (1.0, standing)  # the token's
