"""Token buckets against a model that counts exactly and never drops a bucket."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oracles.limits import BucketModel
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.buckets import MAX_RETRY_AFTER_S, Buckets, RateLimiter, retry_after_s

S = 1_000_000_000
PASSING_NS = st.one_of(st.integers(0, 3 * S), st.integers(-S, 0), st.sampled_from([0, 1, 100_000_000, 3600 * S]))
RATES = st.sampled_from([(10, 20), (1, 1), (0, 3), (100, 1), (3, 7)])


# Found: a bucket was full, and dropped, at a time that the clock then went back from.
@example([(0, 0), (1, 10_000_000), (0, -11)], [(100, 1)] * 10)
@given(st.lists(st.tuples(st.integers(0, 9), PASSING_NS), max_size=150), st.lists(RATES, min_size=10, max_size=10))
def test_every_answer_is_that_of_a_bucket_that_is_never_dropped(asks, rates):
    buckets, models, now_ns, latest_ns = Buckets(), {}, 10**15, 0
    for key, passing_ns in asks:
        now_ns += passing_ns
        latest_ns = max(latest_ns, now_ns)
        qps, burst = rates[key]
        model = models.setdefault(key, BucketModel(burst, latest_ns))
        model.judge(qps, burst, latest_ns, buckets.take(key, qps, burst, now_ns))


@given(st.lists(st.tuples(RATES, st.integers(0, 2 * S)), max_size=100))
def test_a_changed_rate_counts_from_then_on(asks):
    buckets, now_ns = Buckets(), 0
    model = None
    for (qps, burst), passing_ns in asks:
        now_ns += passing_ns
        model = model or BucketModel(burst, now_ns)
        model.judge(qps, burst, now_ns, buckets.take("key", qps, burst, now_ns))


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 50), RATES, st.integers(0, S)), max_size=150))
def test_the_number_of_keys_is_bounded_and_no_key_gets_more_than_a_full_bucket(keys, asks):
    buckets, now_ns = Buckets(keys), 0
    for key, (qps, burst), passing_ns in asks:
        now_ns += passing_ns
        assert buckets.take((key, qps), qps, burst, now_ns) >= 0.0
        assert len(buckets) <= keys


def test_full_buckets_are_dropped_as_others_are_added():
    buckets = Buckets()
    for key in range(1000):
        buckets.take(key, 10, 20, key * S)
    assert len(buckets) < 4


def test_a_bucket_that_never_refills_survives_any_number_of_other_keys():
    buckets = Buckets(8)
    assert [buckets.take("once", 0, 2, 0) for _ in range(3)] == [0.0, 0.0, math.inf]
    for key in range(10_000):
        buckets.take(key, 10, 20, key)
    assert buckets.take("once", 0, 2, 10**18) == math.inf


def test_if_no_bucket_ever_refills_a_new_key_waits():
    buckets = Buckets(2)
    for key in "ab":
        buckets.take(key, 0, 1, 0)
    assert buckets.take("c", 10, 20, 0) == 1.0
    assert len(buckets) == 2


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_a_client_that_waits_as_long_as_advised_is_admitted(qps, burst):
    buckets = Buckets()
    for _ in range(burst):
        assert buckets.take("key", qps, burst, 0) == 0.0
    wait_s = buckets.take("key", qps, burst, 0)
    assert wait_s > 0
    assert buckets.take("key", qps, burst, math.ceil(wait_s * 1e9)) == 0.0


def test_a_burst_of_zero_is_no_limit():
    buckets = Buckets()
    assert {buckets.take("key", 0, 0, 0) for _ in range(100)} == {0.0}
    assert len(buckets) == 0


@pytest.mark.parametrize(
    ("wait_s", "said"), [(0.0001, 1), (1.0, 1), (1.01, 2), (math.inf, MAX_RETRY_AFTER_S), (1e300, MAX_RETRY_AFTER_S)]
)
def test_retry_after_is_whole_seconds_and_at_least_one(wait_s, said):
    assert retry_after_s(wait_s) == said


def test_a_request_refused_by_one_limit_is_not_counted_by_the_other():
    limiter = RateLimiter(Buckets(), 0, 5)
    assert limiter.count("token", 1, 0, 2, 0)[0] == limiter.count("token", 1, 0, 2, 0)[0] == 0.0
    assert limiter.count("token", 1, 0, 2, 0)[0] == math.inf  # the tenant's
    assert [limiter.count("token", 2, 0, 99, 0)[0] for _ in range(4)] == [0.0, 0.0, 0.0, math.inf]  # the token's
    assert limiter.count("other", 2, 0, 99, 0)[0] == 0.0


@pytest.mark.parametrize(
    ("variables", "backstop"),
    [({}, (0, 0)), ({"QPS": "7"}, (7, 200)), ({"BURST": "9"}, (100, 9)), ({"QPS": "0", "BURST": "9"}, (0, 0))],
)
def test_the_backstop_is_off_unless_it_is_set(variables, backstop):
    environment = {f"TENSOR_WASM_API_RATE_LIMIT_{name}": value for name, value in variables.items()}
    limiter = RateLimiter.from_settings(ServiceSettings.from_environment(environment))
    assert (limiter.backstop_qps, limiter.backstop_burst) == backstop
