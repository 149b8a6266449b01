"""A session's place at the gate, whether or not it was ever used."""

from __future__ import annotations

from tensorwasm.gpu.pad import PadLayout
from tensorwasm.gpu.place import Place
from tensorwasm.gpu.quota import Gate
from tensorwasm.gpu.sheet import Sheet
from tensorwasm.values import NEVER


def test_a_place_that_came_and_was_not_taken_ends_with_its_session():
    gate = Gate(1)
    first, second = Place(gate, Sheet(PadLayout())), Place(gate, Sheet(PadLayout()))
    first.take(NEVER)
    assert second.join(lambda: None, NEVER)
    first.leave()
    assert (gate.in_use, gate.waiting) == (1, 0)
    second.leave()
    assert gate.in_use == 0
