"""What warp instructions do, for one warp, in plain Python. A lane that is absent is None.

Source: PTX ISA 9.7.9.6 (shfl.sync), 9.7.13.9 (vote.sync), 9.7.13.10 (match.sync), 9.7.13.12 (redux.sync).
"""

from __future__ import annotations

import functools
import operator


def shuffle(mode, values, b, c):
    """Return (value, predicate) of each lane; the value of a lane that reads an absent one is its own."""
    found = []
    for lane, own in enumerate(values):
        bval, segment, clamp = b & 31, c >> 8 & 31, c & 31
        high, low = (lane & segment) | (clamp & ~segment & 31), lane & segment
        source = {"up": lane - bval, "down": lane + bval, "bfly": lane ^ bval, "idx": low | (bval & ~segment & 31)}[
            mode
        ]
        valid = source >= high if mode == "up" else source <= high
        source = source if valid else lane
        there = 0 <= source < len(values) and values[source] is not None
        found.append((values[source] if there else own, valid))
    return found


def ballot(predicates, mask):
    """Return the ballot of the lanes in a mask."""
    return sum(1 << lane for lane, value in enumerate(predicates) if value and mask >> lane & 1)


def equals(values, mask):
    """Return for each lane the lanes of the mask that hold its value."""
    return [sum(1 << j for j, other in enumerate(values) if other == own and mask >> j & 1) for own in values]


REDUCTIONS = {
    "add.u32": lambda values: sum(values) % 2**32,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda values: min(values, key=lambda v: v - (v >> 31 << 32)),
    "max.s32": lambda values: max(values, key=lambda v: v - (v >> 31 << 32)),
    "and.b32": functools.partial(functools.reduce, operator.and_),
    "or.b32": functools.partial(functools.reduce, operator.or_),
    "xor.b32": functools.partial(functools.reduce, operator.xor),
}
