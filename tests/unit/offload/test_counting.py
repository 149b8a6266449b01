"""How often loops run at most is computed before they do: with all relations, steps and values at which i32 wraps."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracles.wasm import Running, fault_of
from tensorwasm.offload import polling
from tensorwasm.offload.analysis.regions import LoopRegion
from tensorwasm.offload.counting import find_count
from tensorwasm.offload.cut import INTERFACE, LONG, OFF, ON, SHORT_NS, cut, few_trips
from tensorwasm.offload.polling import add_polls
from tensorwasm.wasm.definitions import CodeEntry, Global
from tensorwasm.wasm.module import Module, encode
from tensorwasm.wasm.preamble import Export
from tensorwasm.wasm.types import FuncType, GlobalType, MemoryType

VALUE, BOUND, SUM = range(3)
RELATIONS = ("ne", *(f"{name}_{sign}" for name in ("lt", "le", "gt", "ge") for sign in "su"))
EXAMPLES = settings(max_examples=300)
CAP = 3000
ACCESS_NS = 21

edges = st.builds(
    lambda edge, distance: (edge + distance) % (1 << 32), st.sampled_from((0, 1 << 31, 1 << 32)), st.integers(-40, 40)
)
steps = st.sampled_from((1, 2, 3, 4, 7, 8, 1 << 30, 1 << 31)).flatmap(lambda step: st.sampled_from((step, -step)))


def signed(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


@st.composite
def counting_loops(draw):
    """Draw the body of a loop that adds to `SUM`, and what says whether it goes on for a value and a bound."""
    relation, step = draw(st.sampled_from(RELATIONS)), signed(draw(steps))
    early, swapped, negated = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    shift = draw(st.sampled_from((0, 5, -8))) if early else 0
    added = [("local.get", VALUE), ("i32.const", step), ("i32.add",)]
    value = [("local.get", VALUE), ("i32.const", shift), ("i32.add",)] if early else [*added, ("local.tee", VALUE)]
    bound = [("local.get", BOUND)]
    test = [*(bound + value if swapped else value + bound), (f"i32.{relation}",)]
    test += [("i32.eqz",)] if negated else []
    body = [("local.get", SUM), ("local.get", VALUE), ("i32.add",), ("i32.const", 7), ("i32.mul",), ("local.set", SUM)]
    body += [*test, ("br_if", 0)] if not early else []
    if early:
        body += [("local.get", VALUE), ("drop",), *test, *_early_end(step)]
    return body, _goes_on(relation, step, shift, early=early, swapped=swapped, negated=negated)


def _early_end(step: int) -> list[tuple]:
    """Leave a test on the stack, step, and go on if it holds: what compilers write for a counter that is read later."""
    return [("local.get", VALUE), ("i32.const", step), ("i32.add",), ("local.set", VALUE), ("br_if", 0)]


def _goes_on(relation: str, step: int, shift: int, *, early: bool, swapped: bool, negated: bool):
    name, _, sign = relation.partition("_")

    def goes_on(start: int, bound: int) -> bool:
        value = (start + (shift if early else step)) % (1 << 32)
        sides = (bound, value) if swapped else (value, bound)
        one, other = map(signed, sides) if sign == "s" else sides
        holds = {"ne": one != other, "lt": one < other, "le": one <= other, "gt": one > other, "ge": one >= other}[name]
        return holds != negated

    def turns(start: int, bound: int) -> int:
        return next(n for n in count() if n == CAP or not goes_on((start + n * step) % (1 << 32), bound))

    return turns


def module_of(code: list[tuple], results: tuple[str, ...] = ()) -> Module:
    return Module(
        types=(FuncType(("i32", "i32", "i32"), results),),
        functions=(0,),
        memories=(MemoryType(1, 1),),
        exports=(Export("f", "func", 0), Export("memory", "memory", 0)),
        bodies=(CodeEntry.build([], code),),
    )


@EXAMPLES
@given(counting_loops(), edges, edges)
def test_a_loop_goes_on_no_more_often_than_was_computed(loop, start, bound):
    body, turns = loop
    found = find_count(body)
    assume(found is not None)
    most = Running(encode(module_of(list(found.turns()), ("i32",)))).call("f", signed(start), signed(bound), 0)
    assert most % (1 << 32) >= turns(start, bound)


def test_counts_are_exact_where_nothing_wraps():
    body = [("local.get", VALUE), ("i32.const", 3), ("i32.add",), ("local.tee", VALUE), ("local.get", BOUND)]
    found = find_count([*body, ("i32.lt_s",), ("br_if", 0)])
    running = Running(encode(module_of(list(found.turns()), ("i32",))))
    assert [running.call("f", 0, bound, 0) for bound in (-5, 0, 3, 4, 6, 7, 10)] == [0, 0, 0, 1, 1, 2, 3]
    assert running.call("f", 0, (1 << 31) - 1, 0) == -1  # the value may pass by the bound, to the other end


MORE = [("local.get", VALUE), ("i32.const", 1), ("i32.add",)]
NOT_COUNTING = {
    "no step": [("local.get", VALUE), ("local.get", BOUND), ("i32.ne",)],
    "it may miss 0": [("local.get", VALUE), ("i32.const", 3), ("i32.add",), ("local.tee", VALUE)],
    "away from the bound": [*MORE, ("local.tee", VALUE), ("i32.const", 9), ("i32.gt_s",)],
    "the bound moves": [*MORE, ("local.tee", VALUE), ("local.get", VALUE), ("i32.ne",)],
    "a branch may pass by": [("block", None), *MORE, ("local.set", VALUE), ("end",), ("local.get", VALUE)],
    "another way back": [("local.get", BOUND), ("br_if", 0), *MORE, ("local.tee", VALUE)],
}


@pytest.mark.parametrize("body", NOT_COUNTING.values(), ids=NOT_COUNTING)
def test_other_loops_do_not_count(body):
    assert find_count([*body, ("br_if", 0)]) is None


@EXAMPLES
@given(counting_loops(), edges, edges, st.sampled_from((-5, 1, 60, 3000, 1 << 24)), st.integers(0, 2))
def test_a_loop_that_counts_does_the_same_with_polls(loop, start, bound, budget, leaves):
    body, turns = loop
    assume(turns(start, bound) < CAP)
    leave = [("local.get", SUM), ("i32.const", 64), ("i32.and",), ("br_if", leaves)] if leaves else []
    stored = [("i32.const", 0), ("local.get", SUM), ("i32.store", (2, 0, 0))]
    stored += [("i32.const", 4), ("local.get", VALUE), ("i32.store", (2, 0, 0))]
    code = [("block", None), ("block", None), ("loop", None), *leave, *body, ("end",)]
    code += [("i32.const", 8), ("i32.const", 1), ("i32.store", (2, 0, 0)), ("end",), *stored, ("end",), *stored]
    module = module_of(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polling, "BUDGET", budget)
        edited = add_polls(module, "host")
    poll = CodeEntry.build([], [("i32.const", budget)])
    kinds = [item.type for item in edited.imports]
    edited = replace(edited, imports=(), functions=(*kinds, *edited.functions), bodies=(poll, *edited.bodies))
    assert fault_of(encode(edited)) is None
    before, after = Running(encode(module)), Running(encode(edited))
    for running in (before, after):
        running.call("f", signed(start), signed(bound), 1)
    assert after.memory() == before.memory()


# ---------------------------------------------------------------------------------- in front of guards

STEP = [("local.get", VALUE), ("i32.const", 1), ("i32.add",), ("local.tee", VALUE), ("local.get", BOUND), ("i32.ne",)]
STORING = [("local.get", VALUE), ("i32.const", 2), ("i32.shl",), ("local.get", VALUE), ("i32.store", (2, 64, 0))]
SINGLE = [("loop", None), *STORING, *STEP, ("br_if", 0), ("end",)]
NESTED = [
    *(("loop", None), ("i32.const", 0), ("local.set", VALUE), *SINGLE),
    *(("local.get", SUM), ("i32.const", -1), ("i32.add",), ("local.tee", SUM), ("br_if", 0), ("end",)),
]


def with_counting_guard(code: list[tuple], state: int) -> Running:
    """Return a module whose region's guard declines, says a state, and counts its calls in an exported function."""
    kinds = ("i32", "i32", "i32")
    region = LoopRegion(0, 0, len(code) - 1, ((0, "i32"), (1, "i32"), (2, "i32")), (), (), 1)
    edited = cut(module_of(code), [region])
    assert [item.module for item in edited.imports] == [INTERFACE]
    counter = len(edited.globals)
    guard = [("global.get", counter), ("i32.const", 1), ("i32.add",), ("global.set", counter)]
    guard += [("i32.const", 0), ("i32.const", state)]
    types = (*edited.types, FuncType((), ("i32",)))
    edited = replace(
        edited,
        types=types,
        imports=(),
        functions=(edited.imports[0].type, *edited.functions, len(types) - 1),
        bodies=(CodeEntry.build([], guard), *edited.bodies, CodeEntry.build([], [("global.get", counter)])),
        globals=(*edited.globals, Global(GlobalType("i32", mutable=True), (("i32.const", 0),))),
        exports=(*edited.exports, Export("calls", "func", 2)),
    )
    assert edited.types[edited.functions[0]].params == kinds
    return Running(encode(edited))


def calls_of(running: Running, arguments: list[tuple[int, int, int]]) -> list[int]:
    found = []
    for each in arguments:
        running.call("f", *each)
        found.append(running.call("calls"))
    return found


def test_a_guard_is_not_called_for_few_trips_once_it_says_so():
    few, many = (0, 10, 1), (0, SHORT_NS // ACCESS_NS + 1, 1)
    assert calls_of(with_counting_guard(SINGLE, LONG), [few, few, many, few, many]) == [1, 1, 2, 2, 3]
    assert calls_of(with_counting_guard(SINGLE, ON), [few, few]) == [1, 2]
    assert calls_of(with_counting_guard(SINGLE, OFF), [many, many]) == [1, 1]


def test_trips_of_nested_loops_are_multiplied():
    few, many = (0, 30, 10), (0, 30, 40)
    assert calls_of(with_counting_guard(NESTED, LONG), [few, few, many, many]) == [1, 1, 2, 3]


def test_a_guard_is_called_where_trips_wrap_or_are_not_known():
    assert calls_of(with_counting_guard(SINGLE, LONG), [(0, 10, 1), (0, 1, 1)]) == [1, 1]
    triangle = [*NESTED[:1], ("local.get", SUM), ("local.set", BOUND), *NESTED[1:]]
    assert few_trips(triangle) == []
    assert few_trips([("loop", None), *STORING, ("local.get", SUM), ("br_if", 0), ("end",)]) == []


@EXAMPLES
@given(counting_loops(), edges, edges)
def test_what_is_short_by_the_test_in_front_of_a_guard_is_short(loop, start, bound):
    body, turns = loop
    test = few_trips([("loop", None), *body, ("end",)])
    if test:
        short = Running(encode(module_of(test, ("i32",)))).call("f", signed(start), signed(bound), 0)
        assert not short or turns(start, bound) < CAP
