"""Token buckets: rate limits of requests, of one process or of all that share a table. The caller has the clock.

For one thread, the event loop's.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.shared_table import HEAD, SharedTable

KEYS: Final = 1 << 16
"""Most buckets by default: some 15 MiB."""

MAX_RETRY_AFTER_S: Final = 86_400
"""The advice to a client whose bucket never refills."""

_ONE: Final = 1 - 1e-9  # a token, up to rounding errors
_SHARED_KEYS: Final = 1 << 14  # most buckets whose place in the table is remembered
_LOOKS: Final = 2  # buckets checked for each new one: more than are added, so that full ones are found
_LAST_LOOKS: Final = 32  # and where there is no room
_BACKSTOP_BURST: Final = 200
_BACKSTOP_QPS: Final = 100


@dataclass(slots=True)
class _Bucket:
    """The tokens of one key at a time, and how they come back."""

    tokens: float
    at_ns: int
    qps: float
    burst: float

    def lacks(self, now_ns: int) -> float:
        """Return how many tokens are missing until it is full; 0.0 if it can be dropped without loss."""
        return max(0.0, self.burst - self.tokens - max(0, now_ns - self.at_ns) * self.qps * 1e-9)


class Buckets:
    """At most ``keys`` token buckets by key, refilled when they are used, so that an idle one costs nothing.

    A full bucket is equivalent to none: each new key makes two old ones be checked, and full ones are dropped. If there
    is still no room, the bucket that lacks least is dropped, which gives its owner back no more than that. A bucket
    that never refills is kept, and a new key waits instead.
    """

    def __init__(self, keys: int = KEYS) -> None:
        self._keys = keys
        self._latest_ns = 0
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Hashable, qps: float, burst: float, now_ns: int) -> float:
        """Take one token, if there is one.

        A change of ``qps`` or ``burst`` counts from this call on: tokens over the new burst are lost.

        Args:
            key: of the bucket, which is full at first.
            qps: tokens that come back in a second; 0 for none ever.
            burst: most tokens that it holds, at least 1; 0 or less for no limit.
            now_ns: time of a monotonic clock; if it goes back, no time has passed for any key.

        Returns:
            0.0 if a token was taken; else the seconds until there is one, infinity for never.
        """
        if burst <= 0:
            return 0.0
        if now_ns < self._latest_ns:
            now_ns = self._latest_ns  # for all keys: a bucket that was full by then may be gone
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
        """Return how many tokens a key had at its last use; 0.0 for an unknown key."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else bucket.tokens

    def give_back(self, key: Hashable) -> None:
        """Return a token that was taken for a request that was then refused."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.tokens += 1.0  # the next use cuts what is over the burst

    def _add(self, key: Hashable, qps: float, burst: float, now_ns: int) -> _Bucket | None:
        """Return a new full bucket; None if there is no room, and no bucket that may be dropped."""
        for _ in range(min(_LOOKS, len(self._buckets))):
            oldest, bucket = self._buckets.popitem(last=False)
            if bucket.lacks(now_ns) > 0:
                self._buckets[oldest] = bucket
        if len(self._buckets) >= self._keys and not self._make_room(now_ns):
            return None
        bucket = self._buckets[key] = _Bucket(float(burst), now_ns, qps, burst)
        return bucket

    def _make_room(self, now_ns: int) -> bool:
        """Drop the bucket of some that lacks least; return False if none of them ever refills."""
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


@dataclass(slots=True)
class _SharedBucket:
    """Where this process finds a key's bucket in the table, and the tokens that it had at this process's last use.

    ``taken_word`` and ``lost_word`` are the row's own words, and ``at_byte`` is where all rows' words begin.
    """

    incarnation: int
    at_byte: int
    taken_word: int
    lost_word: int
    since_ns: int
    qps: float
    burst: float
    tokens: float


class SharedBuckets:
    """The buckets of all processes that share a table, with the interface of `Buckets`.

    A bucket has, since it began, taken in ``burst`` tokens and ``qps`` in each second after; of these some were taken,
    and some lost because it was full. Each row has two numbers of it: how many tokens its process took, which add up,
    and how many it knows to be lost, which only grow, so that the greatest is right. Hence no order in which processes
    read and write lets more through than one bucket would, except that those which read at the same time do not see
    one another: one request of each other process.

    A record has the rates it was made with. Where they change, it begins anew, with the tokens it has then.
    """

    def __init__(self, table: SharedTable) -> None:
        self._table = table
        self._records = table.buckets
        self._memory, self._words, self._floats = table.memory, table.words, table.floats
        self._rows, self._row = table.rows, table.row
        self._unpack = struct.Struct(f"{2 * table.rows}q{table.rows}dq").unpack_from
        self._latest_ns = 0
        self._buckets: dict[Hashable, _SharedBucket] = {}

    def take(self, key: Hashable, qps: float, burst: float, now_ns: int) -> float:
        """Take one token, if there is one; as `Buckets.take`, with the same clock in all processes."""
        if burst <= 0:
            return 0.0
        if now_ns < self._latest_ns:
            now_ns = self._latest_ns
        else:
            self._latest_ns = now_ns
        bucket = self._buckets.get(key)
        while True:
            if bucket is None or bucket.qps != qps or bucket.burst != burst:
                bucket = self._open(key, qps, burst, now_ns)
                if bucket is None:
                    return 1.0
            words = self._unpack(self._memory, bucket.at_byte)
            if words[-1] == bucket.incarnation:
                break
            bucket = None
        taken, lost = self._add_up(words, bucket.incarnation)
        tokens = burst + (now_ns - bucket.since_ns) * qps * 1e-9 - lost - taken
        if tokens > burst:
            lost += tokens - burst
            tokens = burst
        if tokens >= _ONE:
            self._floats[bucket.lost_word] = lost
            self._words[bucket.taken_word] = words[self._rows + self._row] + 1
            bucket.tokens = tokens - 1.0
            return 0.0
        bucket.tokens = tokens
        return (1.0 - tokens) / qps if qps > 0 else math.inf

    def left(self, key: Hashable) -> float:
        """Return how many tokens a key had at its last use by this process; 0.0 for an unknown key."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else max(0.0, bucket.tokens)

    def give_back(self, key: Hashable) -> None:
        """Return a token that was taken for a request that was then refused."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            words = self._unpack(self._memory, bucket.at_byte)
            if words[-1] == bucket.incarnation:
                self._words[bucket.taken_word] = words[self._rows + self._row] - 1
                bucket.tokens += 1.0

    def _add_up(self, words: tuple[float, ...], incarnation: int) -> tuple[float, float]:
        """Return how many tokens all rows took of a bucket, and how many were lost."""
        rows = self._rows
        owners, taken, lost = words[:rows], words[rows : 2 * rows], words[2 * rows : -1]
        if owners.count(incarnation) + owners.count(0) == rows:  # rows that never were used are zeros
            return sum(taken), max(lost)
        mine = [row for row in range(rows) if owners[row] == incarnation]
        return sum(taken[row] for row in mine), max((lost[row] for row in mine), default=0.0)

    def _open(self, key: Hashable, qps: float, burst: float, now_ns: int) -> _SharedBucket | None:
        """Find or add a key's bucket in the table; None if there is no room."""
        records, words, floats = self._records, self._words, self._floats
        self._buckets.pop(key, None)
        with self._table.exclusive():
            record = records.find(repr(key).encode(), lambda record, old: self._lacks(record, old, now_ns))
            if record is None:
                return None
            incarnation = records.join(record)
            lost_word = record + records.column(1) + self._row
            if not incarnation or floats[record] != float(qps) or floats[record + 1] != float(burst):
                tokens = min(burst, self._tokens(record, incarnation, now_ns)) if incarnation else burst
                incarnation = records.begin(record)
                floats[record], floats[record + 1], words[record + 2] = qps, burst, now_ns
                floats[lost_word] = burst - tokens
                records.publish(record, incarnation)
            since_ns = words[record + 2]
        if len(self._buckets) >= _SHARED_KEYS:
            del self._buckets[next(iter(self._buckets))]
        at_byte, taken_word = (record + HEAD) * 8, record + records.column(0) + self._row
        bucket = _SharedBucket(incarnation, at_byte, taken_word, lost_word, since_ns, qps, burst, 0.0)
        self._buckets[key] = bucket
        return bucket

    def _tokens(self, record: int, incarnation: int, now_ns: int) -> float:
        """Return how many tokens a record has."""
        qps, burst = self._floats[record], self._floats[record + 1]
        taken, lost = self._add_up(self._unpack(self._memory, (record + HEAD) * 8), incarnation)
        return min(burst, burst + (now_ns - self._words[record + 2]) * qps * 1e-9 - lost - taken)

    def _lacks(self, record: int, incarnation: int, now_ns: int) -> float:
        """Return how many tokens are missing in a record, infinity if they never come back."""
        lacks = self._floats[record + 1] - self._tokens(record, incarnation, now_ns)
        return math.inf if lacks and not self._floats[record] else lacks


LimitState = tuple[str, float, float, float]
"""State of a token's limit: its name, requests in a second, burst, and tokens left."""


@dataclass(slots=True)
class RateLimiter:
    """The two limits of a request: of its token for its tenant, and of its token for all tenants together (backstop).

    A ``backstop_burst`` of 0 is no limit.
    """

    buckets: Buckets | SharedBuckets
    backstop_qps: float = 0
    backstop_burst: float = 0

    @classmethod
    def from_settings(cls, settings: ServiceSettings, table: SharedTable | None = None) -> RateLimiter:
        """Read the limit for all tenants from the settings; if only one number is set, the other has a default.

        With a table, both limits hold over all processes that share it.
        """
        buckets = Buckets() if table is None else SharedBuckets(table)
        qps, burst = settings.rate_qps, settings.rate_burst
        if qps == 0 or burst == 0 or (qps is None and burst is None):
            return cls(buckets)
        return cls(buckets, _BACKSTOP_QPS if qps is None else qps, _BACKSTOP_BURST if burst is None else burst)

    def count(
        self, token_id: str, tenant: int, qps: float, burst: float, now_ns: int
    ) -> tuple[float, tuple[LimitState, ...]]:
        """Count one request against both limits, or against neither.

        ``qps`` and ``burst`` are the tenant's; they and ``now_ns`` are as in `Buckets.take`.

        Returns:
            0.0 or the seconds to wait, and the state of each limit then.
        """
        buckets, key = self.buckets, (token_id, tenant)
        if not self.backstop_burst:
            wait_s = buckets.take(key, qps, burst, now_ns)
            return wait_s, (("tenant", qps, burst, buckets.left(key)),) if burst > 0 else ()
        wait_s = buckets.take(token_id, self.backstop_qps, self.backstop_burst, now_ns)
        if not wait_s:
            wait_s = buckets.take(key, qps, burst, now_ns)
            if wait_s:
                buckets.give_back(token_id)
        whole: LimitState = ("token", self.backstop_qps, self.backstop_burst, buckets.left(token_id))
        return wait_s, (whole, ("tenant", qps, burst, buckets.left(key))) if burst > 0 else (whole,)


def retry_after_s(wait_s: float) -> int:
    """Return the value of the header Retry-After for a wait: whole seconds, at least 1."""
    return max(1, min(MAX_RETRY_AFTER_S, math.ceil(min(wait_s, MAX_RETRY_AFTER_S))))
