"""Checks of the numbers that are set for a tenant: its weight, quotas and rates."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tensorwasm.errors import InvalidArgs, InvalidRequest
from tensorwasm.tenancy.quotas import CAPS, MAX_LIMIT
from tensorwasm.values import MAX_WEIGHT


def parse_caps(text: str) -> dict[str, int]:
    """Return caps from a text such as ``qps=10,burst=20,instances=100``.

    Raises:
        InvalidArgs: there is no such cap, or its number is not from 0 to 2**63 - 1; the message has the entry.
    """
    caps = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, number = entry.partition("=")
        if name not in CAPS or re.fullmatch("[0-9]{1,19}", number) is None or int(number) > MAX_LIMIT:
            raise InvalidArgs(f"a cap is NAME=NUMBER, of {', '.join(CAPS)}, not {entry[:64]!r}")
        caps[name] = int(number)
    return caps


def checked_weight(weight: int) -> int:
    """Return a valid weight, or raise InvalidRequest."""
    if not 1 <= weight <= MAX_WEIGHT:
        raise InvalidRequest(f"weight is from 1 to {MAX_WEIGHT}")
    return weight


def checked_quotas(quotas: Mapping[str, int | None]) -> dict[str, int]:
    """Return valid quotas, without those that are None, which mean the service's own.

    Raises:
        InvalidRequest: there is no such cap, or a number is not from 0 to 2**63 - 1.
    """
    if not quotas.keys() <= CAPS.keys():
        raise InvalidRequest(f"quotas are {', '.join(CAPS)}")
    chosen = {name: limit for name, limit in quotas.items() if limit is not None}
    for name, limit in chosen.items():
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"the quota {name} is from 0 to 2**63 - 1")
    return chosen
