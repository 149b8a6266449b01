"""What token buckets, quotas and the fair gate are to do, the slow and plain way."""

from fractions import Fraction

DOUBT = Fraction(1, 10**6)
"""Tokens by which floating point may differ; within them the bucket is believed."""


class BucketModel:
    """A token bucket in exact numbers, which forgets nothing."""

    def __init__(self, burst, now_ns):
        self.tokens = Fraction(burst)
        self.at_ns = now_ns

    def turn_to(self, qps, burst, now_ns):
        """Let time pass at a rate."""
        passed_ns = max(0, now_ns - self.at_ns)
        self.at_ns = max(now_ns, self.at_ns)
        self.tokens = min(Fraction(burst), self.tokens + Fraction(passed_ns * qps, 10**9))

    def judge(self, qps, burst, now_ns, wait_s):
        """Hold an answer of `Buckets.take` against what it should be."""
        self.turn_to(qps, burst, now_ns)
        through = wait_s == 0.0
        if abs(self.tokens - 1) > DOUBT:
            assert through == (self.tokens >= 1), (float(self.tokens), wait_s)
        if through:
            self.tokens -= 1
        elif qps:
            assert abs(Fraction(wait_s) - (1 - self.tokens) / qps) < DOUBT, (float(self.tokens), wait_s)
        else:
            assert wait_s == float("inf")


class LedgerModel:
    """What a tenant holds, as a dict."""

    def __init__(self, limits):
        self.limits = limits
        self.held = {}

    def fits(self, amounts):
        return all(self.held.get(name, 0) + n <= self.limits.get(name, 1 << 80) for name, n in amounts.items())

    def change(self, amounts, sign):
        for name, n in amounts.items():
            self.held[name] = self.held.get(name, 0) + sign * n
