"""The headers that say how often a client may ask, and how often it still may.

Source: draft-ietf-httpapi-ratelimit-headers-10. A quota is `q` requests in `w` seconds; `r` of them are left, and all
are back after `t` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from tensorwasm.tenancy.buckets import Standing


def limit_fields(standings: Sequence[Standing]) -> tuple[tuple[str, str], ...]:
    """Return the headers of an answer, none where nothing limits it. Every request pays for this, so it is short."""
    if len(standings) == 1:
        ((name, qps, burst, left),) = standings
        return (("ratelimit-policy", _policy(name, qps, burst)), ("ratelimit", _left(name, qps, burst, left)))
    if not standings:
        return ()
    policies = [_policy(name, qps, burst) for name, qps, burst, _ in standings]
    return (("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join([_left(*each) for each in standings])))


def _left(name: str, qps: float, burst: float, left: float) -> str:
    if qps <= 0:
        return f'"{name}";r={int(left)}'
    return f'"{name}";r={int(left)};t={int(-((left - burst) // qps))}'


@lru_cache(1024)
def _policy(name: str, qps: float, burst: float) -> str:
    text = f'"{name}";q={int(burst)}'
    return text if qps <= 0 else f"{text};w={max(1, math.ceil(burst / qps))}"
