"""Fences of shared memory for accesses below their base register."""

from __future__ import annotations

import re

import pytest

from fakes.emulation import kernel
from oracles.guarding import guarded_text


def fenced(accesses: str) -> int:
    """Return how many fenced offsets the guarded kernel has."""
    before = ".shared .align 16 .b8 tile[2048];"
    text = guarded_text(kernel(f"mov.u32 %r2, tile; add.u32 %r2, %r2, %r0; {accesses}", before=before), "k").text
    return len(set(re.findall(r"and.b32 (%tw_s\d+),", text)))


@pytest.mark.parametrize(
    ("accesses", "masks"),
    [
        ("ld.shared.u32 %r1, [%r2-64]; ld.shared.u32 %r1, [%r2]; ld.shared.u32 %r1, [%r2+48];", 1),
        ("ld.shared.u32 %r1, [%r2+48]; ld.shared.u32 %r1, [%r2-32]; ld.shared.u32 %r1, [%r2-64];", 1),
        # What may not happen is no reason: at an offset below 64 the second access is right.
        ("@%p0 ld.shared.u32 %r1, [%r2-64]; ld.shared.u32 %r1, [%r2];", 2),
        ("ld.shared.u32 %r1, [%r2]; @%p0 bra $there; ld.shared.u32 %r1, [%r2-64]; $there:", 2),
        ("ld.shared.u32 %r1, [%r2-64]; add.u32 %r2, %r2, 4; ld.shared.u32 %r1, [%r2];", 2),
        # A distance that is no multiple of the alignment stays inside.
        ("ld.shared.u32 %r1, [%r2-60]; ld.shared.v4.u32 {%r1, %r3, %r4, %r5}, [%r2];", 2),
    ],
)
def test_one_fence_serves_the_accesses_that_a_block_makes_in_any_case(accesses, masks):
    assert fenced(accesses) == masks
