"""Token buckets: how often somebody may ask. No clock in here: who calls says what time it is.

How the server uses them, once for each request after it has been authenticated::

    limiter = RateLimiter.from_settings(settings)
    wait_s = limiter.take(principal.id, tenant, policy.qps, policy.burst, time.monotonic_ns())
    if wait_s:
        raise RateLimited("too many requests", retry_after_s(wait_s))

All of it is for one thread, the event loop's, and never blocks.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from tensorwasm.settings.service import ServiceSettings

KEYS: Final = 1 << 16
"""Buckets kept at a time, unless said otherwise: some 15 MiB."""

MAX_RETRY_AFTER_S: Final = 86_400
"""What is said where nobody knows when there will be a token again: where none ever comes back."""

_ONE: Final = 1 - 1e-9  # a token, up to what rounding loses on the way
_LOOKS: Final = 2  # buckets looked at for each new one: more than come, so that what is idle is found
_LAST_LOOKS: Final = 32  # and where there is no room
_BACKSTOP_BURST: Final = 200
_BACKSTOP_QPS: Final = 100


class _Bucket:
    """What is left of one key's tokens, as of a time, and how they come back."""

    __slots__ = ("at_ns", "burst", "qps", "tokens")

    def __init__(self, qps: float, burst: float, now_ns: int) -> None:
        self.tokens = float(burst)
        self.at_ns = now_ns
        self.qps = qps
        self.burst = burst

    def lacks(self, now_ns: int) -> float:
        """Return how many tokens it is short of being full; 0.0 if nothing is lost with it."""
        return max(0.0, self.burst - self.tokens - max(0, now_ns - self.at_ns) * self.qps * 1e-9)


class Buckets:
    """Token buckets by key, refilled when they are looked at, so that an idle one costs nothing.

    There are never more than a fixed number. A full bucket is as good as none: each new key lets two old ones be looked
    at, and those that are full again are dropped. Where there is still no room, the one that lacks least is dropped,
    which gives its owner back no more than that; one that never refills is kept, and a new key waits instead.

    Args:
        keys: how many are kept at most.
    """

    def __init__(self, keys: int = KEYS) -> None:
        """Start without any: a key's bucket is full when it is first asked for."""
        self._keys = keys
        self._latest_ns = 0
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._buckets)

    def take(self, key: Hashable, qps: float, burst: float, now_ns: int) -> float:
        """Take one token, if there is one.

        A change of ``qps`` or ``burst`` counts from this call on: tokens over the new burst are lost.

        Args:
            key: whose bucket.
            qps: tokens that come back in a second; 0 for none ever, so that the burst is all there will be.
            burst: most tokens that it holds, at least 1; 0 or less for no limit at all.
            now_ns: the time on a clock that does not go back; where it does, no time has passed for anybody.

        Returns:
            0.0 if a token was taken; else the seconds after which there will be one, infinity for never.
        """
        if burst <= 0:
            return 0.0
        if now_ns < self._latest_ns:
            now_ns = self._latest_ns  # for everybody: a bucket that was full by then may be gone
        else:
            self._latest_ns = now_ns
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._add(key, qps, burst, now_ns)
            if bucket is None:
                return 1.0
        tokens = bucket.tokens
        passed_ns = now_ns - bucket.at_ns
        if passed_ns > 0:
            tokens += passed_ns * qps * 1e-9
            bucket.at_ns = now_ns
        if tokens > burst:  # noqa: PLR1730 - a call of min costs as much as half of this
            tokens = burst
        bucket.qps = qps
        bucket.burst = burst
        if tokens >= _ONE:
            bucket.tokens = tokens - 1.0
            return 0.0
        bucket.tokens = tokens
        return (1.0 - tokens) / qps if qps > 0 else math.inf

    def left(self, key: Hashable) -> float:
        """Return how many tokens a key had when it was last asked for; 0.0 if nothing is known of it."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else bucket.tokens

    def give_back(self, key: Hashable) -> None:
        """Give back a token that was taken for what then did not happen."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.tokens += 1.0  # the next look cuts what is over the burst

    def _add(self, key: Hashable, qps: float, burst: float, now_ns: int) -> _Bucket | None:
        """Return a new full bucket; None if there is no room and nothing that may go."""
        for _ in range(min(_LOOKS, len(self._buckets))):
            self._look(now_ns)
        if len(self._buckets) >= self._keys and not self._make_room(now_ns):
            return None
        bucket = self._buckets[key] = _Bucket(qps, burst, now_ns)
        return bucket

    def _look(self, now_ns: int) -> None:
        """Look at the bucket that was not looked at longest, and drop it if it is full."""
        key, bucket = self._buckets.popitem(last=False)
        if bucket.lacks(now_ns) > 0:
            self._buckets[key] = bucket

    def _make_room(self, now_ns: int) -> bool:
        """Drop the bucket that lacks least of some; False if all of them are such as never refill."""
        best: Hashable = None
        least = math.inf
        for _ in range(min(_LAST_LOOKS, len(self._buckets))):
            key, bucket = self._buckets.popitem(last=False)
            self._buckets[key] = bucket
            lacks = bucket.lacks(now_ns)
            if lacks < least and (bucket.qps > 0 or lacks == 0):
                best, least = key, lacks
        if least == math.inf:
            return False
        del self._buckets[best]
        return True


Standing = tuple[str, float, float, float]
"""How a token stands with one limit: its name, requests that come back in a second, most at once, how many are left."""


@dataclass(slots=True)
class RateLimiter:
    """The two limits of a request: of its token for its tenant, and of its token for all tenants together.

    Attributes:
        buckets: of both.
        backstop_qps: requests a second of one token; 0 with a burst of 0 for no such limit.
        backstop_burst: requests of one token at once; 0 for no such limit.
    """

    buckets: Buckets
    backstop_qps: float = 0
    backstop_burst: float = 0

    @classmethod
    def from_settings(cls, settings: ServiceSettings) -> RateLimiter:
        """Read the backstop from the settings: if only one of its two numbers is set, the other has a default."""
        qps, burst = settings.rate_qps, settings.rate_burst
        if qps == 0 or burst == 0 or (qps is None and burst is None):
            return cls(Buckets())
        return cls(Buckets(), _BACKSTOP_QPS if qps is None else qps, _BACKSTOP_BURST if burst is None else burst)

    def take(self, token_id: str, tenant: int, qps: float, burst: float, now_ns: int) -> float:
        """Count one request against both limits, or against neither.

        Args:
            token_id: the principal's; nobody's requests share a bucket with those of others.
            tenant: for whom it acts.
            qps: of the tenant's policy, as in `Buckets.take`.
            burst: likewise; 0 for no such limit.
            now_ns: as in `Buckets.take`.

        Returns:
            0.0 if the request is let through; else the seconds after which it would be.
        """
        if not self.backstop_burst:
            return self.buckets.take((token_id, tenant), qps, burst, now_ns)
        wait_s = self.buckets.take(token_id, self.backstop_qps, self.backstop_burst, now_ns)
        if wait_s:
            return wait_s
        wait_s = self.buckets.take((token_id, tenant), qps, burst, now_ns)
        if wait_s:
            self.buckets.give_back(token_id)
        return wait_s

    def standing(self, token_id: str, tenant: int, qps: float, burst: float) -> tuple[Standing, ...]:
        """Return how a token stands with each limit that there is, after `take`; the arguments are the same."""
        own: Standing = ("tenant", qps, burst, self.buckets.left((token_id, tenant)))
        if not self.backstop_burst:
            return (own,) if burst > 0 else ()
        whole: Standing = ("token", self.backstop_qps, self.backstop_burst, self.buckets.left(token_id))
        return (whole, own) if burst > 0 else (whole,)


def retry_after_s(wait_s: float) -> int:
    """Return what the header Retry-After says of a wait: whole seconds, at least 1."""
    return max(1, min(MAX_RETRY_AFTER_S, math.ceil(min(wait_s, MAX_RETRY_AFTER_S))))
