"""The body of one LLVM function, written from top to bottom as text, and the loops and branches in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.declined import Declined, DeclineReason

MAX_LINES: Final = 20_000
"""Of one function."""

LLVM_TYPES: Final = {"f32": "float", "f64": "double"}
"""Names of types that differ from ours."""


@dataclass(frozen=True, slots=True)
class SsaValue:
    """A value of LLVM's: a scalar, or a vector of lanes.

    Attributes:
        name: of a register, or a literal.
        type: of an element: ``i1``, ``i8``, ``i16``, ``i32``, ``i64``, ``f32`` or ``f64``.
        lanes: 1 for a scalar.
    """

    name: str
    type: str
    lanes: int = 1

    @property
    def typed(self) -> str:
        """The value behind its type, as an operand is written."""
        return f"{spelled(self.type, self.lanes)} {self.name}"


def spelled(kind: str, lanes: int = 1) -> str:
    """Return LLVM's name of a type."""
    name = LLVM_TYPES.get(kind, kind)
    return name if lanes == 1 else f"<{lanes} x {name}>"


def suffix(kind: str, lanes: int = 1) -> str:
    """Return how the names of intrinsics end that work on a type."""
    return kind if lanes == 1 else f"v{lanes}{kind}"


def literal(kind: str, value: int, lanes: int = 1) -> SsaValue:
    """Return an integer constant."""
    return SsaValue(str(value) if lanes == 1 else f"splat ({kind} {value})", kind, lanes)


class Assembly:
    """Writes lines; registers are numbered, and blocks begin with a label."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._allocations: list[str] = []
        self._count = 0
        self._label = "entry"

    def fresh(self, prefix: str = "v") -> str:
        """Return a name that is not used yet."""
        self._count += 1
        return f"{prefix}{self._count}"

    def write(self, line: str) -> None:
        """Add an instruction without a result.

        Raises:
            Declined: the function is too long.
        """
        if len(self._lines) >= MAX_LINES:
            raise Declined(DeclineReason.TOO_LARGE, f"its machine code has more than {MAX_LINES} instructions")
        self._lines.append(f"  {line}")

    def compute(self, text: str, kind: str, lanes: int = 1) -> SsaValue:
        """Add an instruction, and return its result."""
        name = "%" + self.fresh()
        self.write(f"{name} = {text}")
        return SsaValue(name, kind, lanes)

    def allocate(self, kind: str, lanes: int = 1) -> str:
        """Return a pointer to a variable of the function, which holds 0 when it begins."""
        name = "%" + self.fresh()
        self._allocations += [
            f"  {name} = alloca {spelled(kind, lanes)}",
            f"  store {spelled(kind, lanes)} zeroinitializer, ptr {name}",
        ]
        return name

    def read(self, pointer: str, kind: str, lanes: int = 1) -> SsaValue:
        """Return what a variable of the function holds."""
        return self.compute(f"load {spelled(kind, lanes)}, ptr {pointer}", kind, lanes)

    def set(self, pointer: str, value: SsaValue) -> None:
        """Change a variable of the function."""
        self.write(f"store {value.typed}, ptr {pointer}")

    def splat(self, value: SsaValue, lanes: int) -> SsaValue:
        """Return a vector of copies of a scalar."""
        if value.lanes == lanes:
            return value
        vector, kind = spelled(value.type, lanes), spelled(value.type)
        one = self.compute(f"insertelement {vector} poison, {kind} {value.name}, i64 0", value.type, lanes)
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.compute(f"shufflevector {one.typed}, {vector} poison, {mask}", value.type, lanes)

    def element(self, vector: SsaValue, lane: int) -> SsaValue:
        """Return an element of a vector; a scalar is its only one."""
        if vector.lanes == 1:
            return vector
        return self.compute(f"extractelement {vector.typed}, i64 {lane}", vector.type)

    def gather(self, elements: list[SsaValue]) -> SsaValue:
        """Return the vector of scalars."""
        lanes, kind = len(elements), elements[0].type
        vector = SsaValue("poison", kind, lanes)
        for lane, element in enumerate(elements):
            vector = self.compute(f"insertelement {vector.typed}, {element.typed}, i64 {lane}", kind, lanes)
        return vector

    def start(self, label: str) -> None:
        """Begin a block, which the one before falls into if it has not ended."""
        self._lines.append(f"{label}:")
        self._label = label

    def jump(self, label: str) -> None:
        """End the block."""
        self.write(f"br label %{label}")

    def branch(self, condition: SsaValue, then: str, otherwise: str) -> None:
        """End the block with a condition, an i1."""
        self.write(f"br {condition.typed}, label %{then}, label %{otherwise}")

    @contextmanager
    def when(self, condition: SsaValue) -> Iterator[None]:
        """Write what runs only if a condition holds, an i1."""
        then, end = self.fresh("then"), self.fresh("end")
        self.branch(condition, then, end)
        self.start(then)
        yield
        self.jump(end)
        self.start(end)

    @contextmanager
    def either(self, condition: SsaValue) -> Iterator[Callable[[], None]]:
        """Write what runs if a condition holds, and after a call of the function what runs if it does not."""
        then, otherwise, end = self.fresh("then"), self.fresh("else"), self.fresh("end")

        def turn() -> None:
            self.jump(end)
            self.start(otherwise)

        self.branch(condition, then, otherwise)
        self.start(then)
        yield turn
        self.jump(end)
        self.start(end)

    @contextmanager
    def repeat(self, first: SsaValue, last: SsaValue, step: SsaValue) -> Iterator[SsaValue]:
        """Write the body of a loop; ``first`` is known to be at most ``last``."""
        head, end = self.fresh("loop"), self.fresh("end")
        variable, following = "%" + self.fresh(), "%" + self.fresh()
        before = self._label
        self.jump(head)
        self.start(head)
        at = len(self._lines)
        self.write("")  # becomes the phi once the block of the last turn is known
        yield SsaValue(variable, "i64")
        self._lines[at] = f"  {variable} = phi i64 [ {first.name}, %{before} ], [ {following}, %{self._label} ]"
        self.write(f"{following} = add nsw i64 {variable}, {step.name}")
        again = self.compute(f"icmp sle i64 {following}, {last.name}", "i1")
        self.branch(again, head, end)
        self.start(end)

    @contextmanager
    def turns(self, going: SsaValue) -> Iterator[tuple[SsaValue, SsaValue, Callable[[SsaValue], None]]]:
        """Write the body of a loop for lanes that go on, as i1: the number of the turn, lanes, and what sets them."""
        counter, lanes = self.allocate("i64"), self.allocate("i1", going.lanes)
        head, body, end = (self.fresh(name) for name in ("turn", "body", "end"))
        self.set(counter, literal("i64", 0))
        self.set(lanes, going)
        self.jump(head)
        self.start(head)
        active = self.read(lanes, "i1", going.lanes)
        any_ = active
        if active.lanes > 1:
            reduce = f"@llvm.vector.reduce.or.{suffix('i1', active.lanes)}"
            any_ = self.compute(f"call i1 {reduce}({active.typed})", "i1")
        self.branch(any_, body, end)
        self.start(body)
        turn = self.read(counter, "i64")
        yield turn, active, lambda again: self.set(lanes, again)
        self.set(counter, self.compute(f"add {turn.typed}, 1", "i64"))
        self.jump(head)
        self.start(end)

    @contextmanager
    def loop(self, first: SsaValue, last: SsaValue, step: SsaValue) -> Iterator[SsaValue]:
        """Write the body of a loop that may have no turn."""
        with (
            self.when(self.compute(f"icmp sle i64 {first.name}, {last.name}", "i1")),
            self.repeat(first, last, step) as variable,
        ):
            yield variable

    def text(self) -> str:
        """Return the body, from its first label on."""
        return "\n".join(["entry:", *self._allocations, *self._lines])
