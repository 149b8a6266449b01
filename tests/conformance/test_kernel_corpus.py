"""Every kernel of the corpus with a small input gives what NumPy gives."""

from __future__ import annotations

import re

import pytest
from numpy.testing import assert_allclose

from cases import Buffer, cases


@pytest.mark.parametrize("case", cases("small"), ids=lambda case: case.name)
def test_a_kernel_of_the_corpus_agrees_with_its_reference(launcher, case):
    text = case.text()
    target = re.search(r"^\.target\s+sm_(\d+)", text, re.MULTILINE)[1]
    launcher.require(int(target), re.search(r"^\.version\s+(\S+)", text, re.MULTILINE)[1])
    arguments = case.arguments()
    left = launcher.launch(
        text,
        case.entry,
        [each.array if isinstance(each, Buffer) else each for each in arguments],
        grid=case.grid,
        block=case.block,
        shared_bytes=case.shared_bytes,
    )
    buffers = [index for index, each in enumerate(arguments) if isinstance(each, Buffer)]
    after = dict(zip(buffers, left, strict=True))
    for index, expected in case.expected(arguments).items():
        assert_allclose(after[index], expected, rtol=case.rtol, atol=case.atol)
    for index in buffers:
        if not arguments[index].written:
            assert (after[index] == arguments[index].array).all()
