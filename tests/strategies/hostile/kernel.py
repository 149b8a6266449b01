"""The writer of hostile kernels: it makes PTX of the templates in ``templates/``.

A template begins with ``#``, its name and the words of `Form`. The rest is PTX with placeholders:

- ``$r1 $d1 $h1 $f1 $g1 $p1``: registers of 32, 64 and 16 bits, f32, f64 and a predicate, each the same in a snippet
- ``$L1 $v1``: a label, a name for a variable or function
- ``$A1 $O1 $S1``: registers with a wild 64-bit address, a wild 32-bit and a wild 64-bit offset, made right before
- ``$I $J``: an immediate offset with its sign, of any size or small; or nothing
- ``$N $C $R``: a random word, a small number, a carriage return
- ``$T0``: where a template of an address or offset leaves it
- ``[[a|b]]``: one of the alternatives

A line ``! text`` goes to the module, ``leak $r1`` copies a register to the attacker's buffer at the end, ``access space
[base]`` is an access of any form to a space (``generic`` for none), ``open`` leaves the end of the body to the snippet,
and ``directive``, ``target``, ``version``, ``dynamic``, ``grid``, ``block`` and ``rename`` set what their names say.

The kernel has made before: ``%own %victim %far`` (64 bits, as the parameters), ``%n %seed %thread %index`` (32 bits,
the last two of the block and of the grid), ``%mine``, 16 bytes of the thread in the buffer, and the predicate ``%odd``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strategies.hostile.accesses import access_template, draw_access, draw_number

OWN_BYTES = 1 << 16
"""The least size of the attacker's own buffer."""
PARAMETERS = {"own": "u64", "victim": "u64", "far": "u64", "n": "u32", "seed": "u32"}
"""Parameters of every kernel with their types: the attacker's buffer, an address of the victim's, a random number, the
bytes of the buffer, which are a power of two, and another random number."""
_FOLDER = Path(__file__).parent / "templates"
_KINDS = {"r": "b32", "d": "b64", "h": "b16", "f": "f32", "g": "f64", "p": "pred"}
_DECLARED = """
.reg .b64 %own, %victim, %far, %mine, %accumulated;
.reg .b32 %n, %seed, %thread, %index, %scratch;
.reg .pred %odd;
"""
_PREAMBLE = """
ld.param.u64 %own, [own];
ld.param.u64 %victim, [victim];
ld.param.u64 %far, [far];
ld.param.u32 %n, [n];
ld.param.u32 %seed, [seed];
mov.u32 %thread, %tid.x;
mov.u32 %index, %ctaid.x;
mov.u32 %scratch, %ntid.x;
mad.lo.u32 %index, %index, %scratch, %thread;
and.b32 %scratch, %index, 255;
mad.wide.u32 %mine, %scratch, 16, %own;
and.b32 %scratch, %thread, 1;
setp.ne.u32 %odd, %scratch, 0;
mov.b64 %accumulated, 0;
"""
_LEAKS = {
    "r": "cvt.u64.u32 {wide}, {register};",
    "d": "mov.b64 {wide}, {register};",
    "h": "cvt.u64.u16 {wide}, {register};",
    "f": "mov.b32 {word}, {register}; cvt.u64.u32 {wide}, {word};",
    "g": "mov.b64 {wide}, {register};",
    "p": "selp.u64 {wide}, 1, 2, {register};",
}
_GRIDS = ((1, 1, 1), (1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 1, 1))
_BLOCKS = ((1, 1, 1), (32, 1, 1), (32, 1, 1), (33, 1, 1), (64, 1, 1), (96, 1, 1), (8, 4, 2), (128, 1, 1))


@dataclass(frozen=True, slots=True)
class Hostile:
    """One hostile kernel; its parameters are `PARAMETERS`.

    Attributes:
        seed: what it was made of; of a deliberate kernel the number of its variant.
        family: that of its first snippet.
        text: PTX of one module.
        entry: name of the kernel.
        runaway: whether it may run for ever, or for very long, or wait for ever.
        may_be_refused: whether a guard is expected to refuse it, whatever else it accepts.
        forms: names of the attacks in it, ``family/form``.
        valid: whether `parse` and ptxas take it; otherwise one of them may refuse it, which is as well.
    """

    seed: int
    family: str
    text: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    runaway: bool
    may_be_refused: bool
    forms: tuple[str, ...] = ()
    valid: bool = True


@dataclass(frozen=True, slots=True)
class Form:
    """One attack: a template, and words: ``runaway`` and ``refused`` as in `Hostile`, ``invalid`` for not valid."""

    family: str
    name: str
    template: str
    words: frozenset[str] = frozenset()

    @property
    def full_name(self) -> str:
        return f"{self.family}/{self.name}"


def read_forms(family: str) -> dict[str, Form]:
    """Return the templates of a file by name."""
    found = {}
    for block in ("\n" + (_FOLDER / f"{family}.txt").read_text("ascii")).split("\n# ")[1:]:
        head, _, template = block.partition("\n")
        name, *words = head.split()
        assert name not in found, f"{family}/{name} twice"
        found[name] = Form(family, name, template.strip(), frozenset(words))
    return found


MAKERS = {"A": read_forms("addresses"), "O": read_forms("offsets"), "S": read_forms("wide_offsets")}
"""How wild addresses and offsets are computed, by the letter of their placeholder."""
ODDITIES = read_forms("oddities")
"""Accesses that are no loads, stores or atomics: the name begins with the space; ``$B1`` is the address in brackets,
``$B0`` the same without an offset."""
_ODD_SHARE = 0.12


@dataclass(slots=True)
class Kernel:
    """A kernel that is being written.

    Attributes:
        variant: None to draw alternatives at random; otherwise the number of the one to take, modulo how many.
        most: the most alternatives that there were anywhere.
    """

    rng: random.Random
    variant: int | None = None
    most: int = 1
    version: tuple[int, int] = (8, 0)
    target: str = "sm_80"
    module: list[str] = field(default_factory=list)
    directives: list[str] = field(default_factory=list)
    registers: dict[str, list[str]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=lambda: {name: name for name in PARAMETERS})
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    dynamic_shared_bytes: int = 0
    made: int = 0
    open_end: bool = False

    def pick(self, options: Sequence[str]) -> str:
        """Return one of the alternatives."""
        self.most = max(self.most, len(options))
        return self.rng.choice(options) if self.variant is None else options[self.variant % len(options)]

    def number(self) -> int:
        self.made += 1
        return self.made

    def register(self, letter: str) -> str:
        """Return a new register of the kind that a placeholder's letter says."""
        name = f"%{letter}{self.number()}"
        self.registers.setdefault(_KINDS[letter], []).append(name)
        return name

    def leak(self, register: str) -> None:
        """Add a register to what is copied to the attacker's buffer."""
        wide, word = self.register("d"), self.register("r") if register[1] == "f" else ""
        self.lines.append(_LEAKS[register[1]].format(wide=wide, word=word, register=register))
        self.lines.append(f"xor.b64 %accumulated, %accumulated, {wide};")

    def add(self, form: Form) -> None:
        """Write an attack."""
        _Snippet(self).write(form.template)

    def add_access(self, space: str, base: str, form: str = "") -> None:
        """Write an access to an address in brackets: a form that is given by its template, or any."""
        odd = [each.template for name, each in ODDITIES.items() if name.partition("-")[0] == space]
        if not form:
            drawn = self.rng.random() < _ODD_SHARE and odd
            form = self.rng.choice(odd) if drawn else access_template(draw_access(self.rng, space))
        plain = base.partition("+")[0].rstrip("]") + "]"
        _Snippet(self, B1=base, B0=plain).write(form)

    def set(self, word: str, text: str) -> None:
        """Obey a line of a template that is no PTX."""
        match word:
            case "!":
                self.module.append(text)
            case "directive":
                self.directives.append(text)
            case "leak":
                self.leak(text)
            case "access":
                self.add_access(*text.split(" ", 1))
            case "target":
                self.target = max(self.target, text)
            case "version":
                major, minor = map(int, text.split("."))
                self.version = max(self.version, (major, minor))
            case "dynamic":
                self.dynamic_shared_bytes = max(self.dynamic_shared_bytes, int(text))
            case "grid" | "block":
                x, y, z = map(int, text.split())
                setattr(self, word, (x, y, z))
            case "rename":
                self.names.update([text.split()])
            case "open":
                self.open_end = True

    def render(self) -> str:
        """Return the text of the module."""
        params = ", ".join(f".param .{kind} {self.names[name]}" for name, kind in PARAMETERS.items())
        preamble = re.sub(r"\[(\w+)\]", lambda match: f"[{self.names[match[1]]}]", _PREAMBLE.strip())
        parts = [
            f".version {self.version[0]}.{self.version[1]}\n.target {self.target}\n.address_size 64",
            *self.module,
            f".visible .entry attack({params})",
            *self.directives,
            "{",
            *(f".reg .{kind} {', '.join(names)};" for kind, names in sorted(self.registers.items())),
            _DECLARED.strip(),
            preamble,
            *self.lines,
            *([] if self.open_end else ["st.global.u64 [%mine], %accumulated;\nret;"]),
            "}\n",
        ]
        return "\n".join(parts)

    def finish(self, seed: int, used: Sequence[Form]) -> Hostile:
        """Return the kernel that has been written."""
        words = {word for form in used for word in form.words}
        return Hostile(
            seed,
            used[0].family,
            self.render(),
            "attack",
            self.grid or self.rng.choice(_GRIDS),
            self.block or self.rng.choice(_BLOCKS),
            self.dynamic_shared_bytes,
            runaway="runaway" in words,
            may_be_refused=bool(words & {"refused", "invalid"}),
            forms=tuple(form.full_name for form in used),
            valid="invalid" not in words,
        )


_WORDS = frozenset(
    ("!", "leak", "access", "open", "directive", "target", "version", "dynamic", "grid", "block", "rename")
)


class _Snippet:
    """Writes a template: its placeholders mean the same from its first line to its last."""

    def __init__(self, kernel: Kernel, **known: str) -> None:
        self.kernel, self.known = kernel, known

    def write(self, template: str) -> None:
        kernel = self.kernel
        for line in template.split("\n"):
            text = re.sub(r"\[\[(.*?)\]\]", lambda match: kernel.pick(match[1].split("|")), line)
            text = re.sub(r"\$([IJNC])\b", lambda match: draw_number(kernel.rng, match[1]), text)
            text = re.sub(r"\$([A-Za-z]\d)", lambda match: self._named(match[1]), text.replace("$R", "\r"))
            word, _, rest = text.partition(" ")
            if word in _WORDS:
                kernel.set(word, rest)
            elif text:
                kernel.lines.append(text)

    def _named(self, word: str) -> str:
        if word not in self.known:
            self.known[word] = self._new(word[0])
        return self.known[word]

    def _new(self, letter: str) -> str:
        if letter in MAKERS:
            made = self.kernel.register("r" if letter == "O" else "d")
            template = self.kernel.rng.choice(list(MAKERS[letter].values())).template
            _Snippet(self.kernel, T0=made).write(template)
            return made
        if letter in _KINDS:
            return self.kernel.register(letter)
        return f"{letter}_{self.kernel.number()}"
