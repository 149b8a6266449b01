"""What an answer says of how often one may ask, against what a client that believes it finds."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.server.http.head import limit_fields
from tensorwasm.tenancy.buckets import Buckets, RateLimiter

LIMITS = st.tuples(st.integers(1, 50), st.integers(1, 100))


@given(LIMITS, st.none() | LIMITS, st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_the_ratelimit_field_states_how_many_more_are_admitted_and_when(own, whole, pauses_ns):
    limiter, now_ns = RateLimiter(Buckets(), *(whole or (0, 0))), 0
    for pause_ns in pauses_ns:
        now_ns += pause_ns
        _, standing = limiter.count("token", 7, *own, now_ns)
    fields = dict(limit_fields(standing))
    said = re.findall(r'"(token|tenant)";r=(\d+);t=(\d+)', fields["ratelimit"])
    assert [name for name, _, _ in said] == (["token", "tenant"] if whole else ["tenant"])
    quotas = {"tenant": own, "token": whole}
    for (name, left, wait), (named, quota, window) in zip(
        said, re.findall(r'"(\w+)";q=(\d+);w=(\d+)', fields["ratelimit-policy"]), strict=True
    ):
        qps, burst = quotas[name]
        assert (named, int(quota), int(window)) == (name, burst, max(1, math.ceil(burst / qps)))
        assert 0 <= int(left) <= burst
        assert int(wait) <= int(window)
    for _ in range(min(int(left) for _, left, _ in said)):
        assert not limiter.count("token", 7, *own, now_ns)[0]
    back_ns = now_ns + max(int(window) for window in re.findall(r";w=(\d+)", fields["ratelimit-policy"])) * 10**9
    for _ in range(min(quota for _, quota in (own, whole or own))):
        assert not limiter.count("token", 7, *own, back_ns)[0]


def test_the_fields_of_limits_that_never_refill_and_of_no_limits():
    assert RateLimiter(Buckets()).count("token", 7, 0, 0, 0) == (0.0, ())
    assert limit_fields(RateLimiter(Buckets()).count("token", 7, 0, 3, 0)[1]) == (
        ("ratelimit-policy", '"tenant";q=3'),
        ("ratelimit", '"tenant";r=2'),
    )
