"""Reading metrics as a server exposes them, and quantiles of what a histogram counted.

Source: Prometheus, "Exposition formats", text-based format 0.0.4; `histogram_quantile` for the interpolation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPED: Final = re.compile(r'\\[\\"n]')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line.

    Attributes:
        name: of the series, a histogram's with its suffix.
        labels: by name.
        value: may be infinite or NaN.
    """

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> list[Sample]:
    """Return the samples of a text; lines that are none are passed over."""
    return list(_parse_all(text.split("\n")))


def total(samples: Iterable[Sample], name: str, **labels: str) -> float | None:
    """Return the sum of a family's samples that have these labels, None if there are none."""
    found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
    return math.fsum(found) if found else None


def buckets(samples: Iterable[Sample], name: str, **labels: str) -> dict[float, float]:
    """Return how many a histogram has counted up to each bound, over all series that have these labels."""
    found: dict[float, float] = {}
    for sample in samples:
        if sample.name == f"{name}_bucket" and labels.items() <= sample.labels.items():
            bound = _number(sample.labels.get("le", ""))
            if bound is not None:
                found[bound] = found.get(bound, 0.0) + sample.value
    return found


def quantile(counts: Mapping[float, float], q: float) -> float | None:
    """Return the value below which a share of the counted lies, on a straight line within its bucket.

    Args:
        counts: up to each bound, the last of them infinite.
        q: the share, 0 to 1.

    Returns:
        None if nothing was counted; the last finite bound where the value lies beyond it.
    """
    bounds = sorted(counts)
    if not bounds or not math.isinf(bounds[-1]) or not counts[bounds[-1]] > 0:
        return None
    rank = q * counts[bounds[-1]]
    below, floor = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if math.isinf(bound):
                return floor
            inside = counts[bound] - below
            return bound if inside <= 0 else floor + (bound - floor) * (rank - below) / inside
        below, floor = counts[bound], bound
    return floor


def _parse_all(lines: Iterable[str]) -> Iterator[Sample]:
    for line in lines:
        match = _SAMPLE.fullmatch(line.strip())
        value = _number(match[3]) if match else None
        if match and value is not None:
            labels = {
                name: _ESCAPED.sub(lambda m: _ESCAPES[m[0]], text) for name, text in _LABEL.findall(match[2] or "")
            }
            yield Sample(match[1], labels, value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
