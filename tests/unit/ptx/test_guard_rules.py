"""Every rule counts: a guard without it is refused, and if the verifier lacks it too, the exam fails."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from oracles.guarding import EMULATOR_SHARED_BASE, GuardedText, verified_text
from oracles.windows import Exam
from strategies.hostile import DELIBERATE
from tensorwasm import ptx
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx import guarded, templates
from tensorwasm.ptx.guard import Guarded, fences, guard, polls
from tensorwasm.ptx.model import Address, Instruction, Int, Name, Statement, Vector
from tensorwasm.ptx.verifier import confinement, convergence, reading, turns, verify, warp_forms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a window maps one file again and again")
GUARD = sys.modules["tensorwasm.ptx.guard"]
AGREEMENTS = sys.modules["tensorwasm.ptx.guard.agreements"]
LOWER = sys.modules["tensorwasm.ptx.guard.lower"]
VERIFY = sys.modules[verify.__module__]
KERNELS_EACH = 60
Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Rule:
    """A rule, and how it is switched off.

    Attributes:
        kernels: how the names of the attacks begin that it is for.
        without: switches it off in the guard.
        unverified: switches it off in the verifier.
        shown: whether the emulator shows what happens without it.
        width: of the kernels that it is for.
    """

    name: str
    kernels: tuple[str, ...]
    without: Patch | None
    unverified: Patch
    shown: bool = True
    width: guarded.Width = "narrow"


def unfenced(space: str) -> Patch:
    """Leave the addresses of a state space as they are."""
    method = {"global": "global_"}.get(space, space)

    def leave(self: fences._Fences, address: Address, access: fences.MemoryAccess) -> Address:
        start = EMULATOR_SHARED_BASE if space == "shared" else 0
        return (
            Address(address.base, address.offset + start)
            if self._offset(address, space) is None
            else saved(self, address, access)
        )

    saved = getattr(fences._Fences, method)

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(fences._SPACES, space, leave)

    return patch


def anywhere(*spaces: str) -> Patch:
    """Accept every access to state spaces."""
    saved = confinement._Confinement._is_inside

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            confinement._Confinement,
            "_is_inside",
            lambda self, at, address, access: access.space in spaces or saved(self, at, address, access),
        )

    return patch


def put(owner: object, name: str, value: object) -> Patch:
    """Replace an attribute."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def nothing(*_: object, **__: object) -> None:
    """Check nothing."""


def proved_anyway(self: fences._Fences, base: Name, _displacement: int, access: fences.MemoryAccess) -> bool:
    """Take every offset in static shared memory for one inside of it."""
    return not self._context.arrays.dynamic and not access.row and fences.register_width(base) == 32


def bounded_by(most_work: int = turns.MOST_WORK, *, summed: bool = True, **lax: object) -> Callable[..., turns.Turns]:
    """Return a search for loops with a greatest number of turns that lacks some of its checks, or their work."""
    lenient = type("LenientTurns", (turns.Turns,), {"__slots__": (), **lax})

    def find(function, body, lists, work, watch, **options):
        definitions = turns.Definitions(body, lists, options.get("leaving", ()), watch)
        made = lenient(definitions, turns.Ranges(definitions, 1024), options.get("counting", ()), work, most_work)
        made.find()
        if not summed:
            made.more.clear()
        return made

    return find


def anything_ends(self: turns.Turns, head: int, end: int) -> turns.BoundedLoop:
    """Take every loop for one of three turns."""
    return turns.BoundedLoop(head, end, 3, "", 0)


def entered_anywhere(self: turns.Turns, name: str, head: int, end: int) -> turns.Range:
    """Take every register for 0 where a loop is entered."""
    return turns.Range(0, 0)


def bounded_without(**lax: object) -> dict[str, Patch]:
    """Return how checks of the turns of loops are switched off in the guard and in the verifier."""
    find = bounded_by(**lax)
    return {"without": put(GUARD, "find_turns", find), "unverified": put(VERIFY, "find_turns", find)}


FENCE_BOUND = confinement._Confinement._fence_bound
PROLOGUE = templates.prologue
HAND_OVER = templates.hand_over
WILD = ("wild/", "address/", "access/")
DROPPED_CLEARS = {"mov.pred", "mov.b16", "mov.b32", "mov.b64"}


def without_clears(*args: object, **named: object) -> list[Statement]:
    """Return a prologue that leaves the program's registers as they are."""
    return [
        each
        for each in PROLOGUE(*args, **named)
        if not (isinstance(each, Instruction) and each.mnemonic in DROPPED_CLEARS and "tw" not in each.operands[0].name)
    ]


def local_as_it_is(*args: object, **named: object) -> list[Statement]:
    """Return a prologue that leaves local memory as it is."""
    return [each for each in PROLOGUE(*args, **named) if not getattr(each, "mnemonic", "").startswith("st.local")]


def as_it_is(self: fences._Fences, base: Name, _added: int) -> tuple[Name, Name]:
    """Return both halves of an address, neither of them confined."""
    low, high = self._new("l"), self._new("l")
    self._emit("mov.b64", Vector((low, high)), base)
    return low, high


def moved(self: fences._Fences, base: Name, added: int) -> tuple[Name, Name]:
    """Return both halves of an address, of which the high one is not confined, but has the right register."""
    low, high = as_it_is(self, base, added)
    made = self._new("h")
    self._emit("mov.b32", made, high)
    return low, made


def written_anyhow(self: confinement._Confinement, family: str, instruction: Instruction) -> int | None:
    """Take every instruction that writes a high half for a fence."""
    return 0 if family == guarded.HIGH_HALF else FENCE_BOUND(self, family, instruction)


def prologue_with(target: Name, made: Instruction) -> Callable[..., list[Statement]]:
    """Return a prologue that writes a register of the guard in another way."""

    def changed(*args: object, **named: object) -> list[Statement]:
        return [made if getattr(each, "operands", ())[:1] == (target,) else each for each in PROLOGUE(*args, **named)]

    return changed


ALL_BITS = prologue_with(guarded.MASK, templates.instruction("mov.u32", guarded.MASK, Int(-1)))
FIRST = Name(f"{guarded.HIGH_HALF}0")
FIRST_ZERO = prologue_with(FIRST, templates.instruction("mov.b32", FIRST, Int(0)))
WIDE_RULES = [
    Rule(
        "high halves",
        WILD,
        put(fences._Fences, "_halves", as_it_is),
        put(confinement._Confinement, "_is_source", lambda *_: True),
    ),
    Rule(
        "what writes high halves",
        WILD,
        put(fences._Fences, "_halves", moved),
        put(confinement._Confinement, "_fence_bound", written_anyhow),
    ),
    Rule("high halves are masked", WILD, put(fences, "AND_OR", 0xFE), put(guarded, "AND_OR", 0xFE)),
    Rule("the launch says the mask", WILD, put(GUARD, "prologue", ALL_BITS), put(templates, "prologue", ALL_BITS)),
    Rule("high halves begin confined", WILD, put(GUARD, "prologue", FIRST_ZERO), nothing, shown=False),
    Rule(
        "functions get the mask",
        ("control/", "local/"),
        put(LOWER, "hand_over", lambda *given: HAND_OVER(*given)[:13] + HAND_OVER(*given)[15:]),
        nothing,
        shown=False,
    ),
]

RULES = [
    *(replace(rule, width="wide") for rule in WIDE_RULES),
    Rule("global", WILD, unfenced("global"), anywhere("global")),
    Rule("global, wide", WILD, unfenced("global"), anywhere("global"), width="wide"),
    Rule("shared", ("shared/",), unfenced("shared"), anywhere("shared")),
    Rule("local", ("local/",), unfenced("local"), anywhere("local")),
    Rule("const", ("constant/",), unfenced("const"), anywhere("const")),
    Rule(
        "alignment",
        ("wild/", "immediate/", "access/"),
        put(fences._Fences, "_cleared", lambda _self, low, _align: low),
        put(confinement, "aligned_registers", lambda *_: defaultdict(lambda: 16)),
    ),
    Rule(
        "displacement",
        ("wild/", "immediate/"),
        put(fences, "MAX_DISPLACEMENT_BYTES", 1 << 62),
        put(guarded, "MAX_DISPLACEMENT_BYTES", 1 << 62),
    ),
    Rule("shared memory is cleared", ("shared/",), None, put(templates, "_clear_shared", lambda _size: [])),
    Rule("registers are cleared", ("unwritten/",), put(GUARD, "prologue", without_clears), nothing, shown=False),
    Rule("local memory is cleared", ("local/",), put(GUARD, "prologue", local_as_it_is), nothing, shown=False),
    Rule(
        "loops are counted",
        ("control/",),
        put(GUARD, "add_charges", lambda body, *_: polls.Charged(list(body))),
        put(VERIFY, "_check_work", nothing),
    ),
    Rule(
        "the deadline is checked first",
        ("wild/", "control/"),
        put(GUARD, "is_quick", lambda _statement: True),
        nothing,
        shown=False,
    ),
    Rule("loops have one entry", ("turns/", "control/"), **bounded_without(_is_closed=lambda *_: True)),
    Rule("turns of loops are bounded", ("turns/",), **bounded_without(_bounded=anything_ends)),
    Rule("where counters begin", ("turns/",), **bounded_without(_entering=entered_anywhere)),
    Rule("work of all turns together", ("turns/",), **bounded_without(most_work=1 << 62, summed=False)),
    Rule(
        "ranges of offsets in shared memory",
        ("turns/access", "shared/"),
        put(fences._Fences, "_is_proved", proved_anyway),
        put(confinement._Confinement, "_is_in_range", lambda *_: True),
    ),
    Rule(
        "indices of branches",
        ("control/",),
        put(LOWER._Lowering, "_index", lambda _self, index, _most: index),
        put(confinement._Confinement, "_indexed_branch", nothing),
    ),
    Rule(
        "warps agree",
        ("sync/",),
        put(GUARD, "add_agreements", lambda _function, body, *_: (body, set())),
        nothing,
        shown=False,
    ),
    Rule(
        "no thread leaves a loop early whose turns decide where it waits",
        ("sync/after-an-early-leave",),
        put(AGREEMENTS, "_staying", lambda *_: set()),
        nothing,
        shown=False,
    ),
    Rule(
        "whole warps",
        ("sync/",),
        put(GUARD, "widen_masks", nothing),
        put(warp_forms, "_require_whole_warp", nothing),
    ),
    Rule(
        "arguments of calls are written",
        ("unwritten/argument",),
        put(LOWER._Lowering, "_fill", nothing),
        nothing,
        shown=False,
    ),
    Rule(
        "calls that may not happen have no results",
        ("unwritten/result-of-a-call",),
        put(GUARD, "resolve_pointers", nothing),
        nothing,
        shown=False,
    ),
    Rule(
        "results of functions are cleared",
        ("unwritten/result",),
        put(GUARD, "prologue", lambda *args, **named: PROLOGUE(*args[:2], (), **named)),
        nothing,
        shown=False,
    ),
    Rule(
        "threads that return early wait elsewhere",
        ("sync/function-left-early",),
        None,
        put(convergence._Analysis, "_returns", lambda *_: False),
    ),
    Rule(
        "programs end before the guard's code",
        ("sync/behind-the-end",),
        put(GUARD, "_ends", lambda _statements: True),
        put(reading._FunctionReader, "_require_end", nothing),
    ),
    Rule(
        "functions get the launch parameter",
        ("control/", "local/"),
        put(LOWER, "hand_over", lambda *given: HAND_OVER(*given)[:-1]),
        nothing,
        shown=False,
    ),
]


def kernels_of(rule: Rule) -> Iterator[tuple[str, Guarded]]:
    """Yield attacks that a rule is for, guarded by whatever guard there is now."""
    names = [name for name in DELIBERATE if name.startswith(rule.kernels)]
    for name in names[:: max(1, len(names) // KERNELS_EACH)]:
        hostile = DELIBERATE[name]
        try:
            module = ptx.extract(ptx.parse(hostile.text), hostile.entry)
            yield name, guard(module, EMULATOR_SHARED_BASE, width=rule.width)
        except MalformedPtx:
            continue


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.without], ids=lambda rule: rule.name)
def test_the_verifier_refuses_what_a_guard_without_a_rule_writes(monkeypatch, rule):
    usual = {name: ptx.render(made.module) for name, made in kernels_of(rule)}
    rule.without(monkeypatch)
    refused = 0
    for name, made in kernels_of(rule):
        text = ptx.render(made.module)
        if text != usual.get(name):
            with pytest.raises(UnsupportedPtx):
                verify(text, EMULATOR_SHARED_BASE)
            refused += 1
    assert refused


@pytest.fixture(scope="module")
def exam():
    exams = {"narrow": Exam(3), "wide": Exam(3, 16 << 30)}
    yield exams
    for each in exams.values():
        each.close()


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.shown], ids=lambda rule: rule.name)
def test_the_exam_fails_without_a_rule(monkeypatch, exam, rule):
    if rule.without is not None:
        rule.without(monkeypatch)
    rule.unverified(monkeypatch)
    for name, made in kernels_of(rule):
        try:
            text: GuardedText = verified_text(made)
        except MalformedPtx:
            continue
        if exam[rule.width].run(DELIBERATE[name], text, grace_s=2.0).violations:
            return
    pytest.fail("no attack was noticed")
