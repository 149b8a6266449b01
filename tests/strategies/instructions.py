"""A kernel for any form of an instruction that each lane executes for itself: operands in, results out.

Carry chains become pairs: a form that reads CC.CF gets the flag from one more operand, a form that writes it gives one
more result, both predicates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from strategies.lanes import LaneKernel

PAIRED = ("setp", "lop3")
"""Opcodes whose two results are written ``d|p``."""
IMMEDIATES = {"lop3": (3, (0x96, 0xE8, 0x1B, 0xCA, 0x00, 0xFF))}
"""Opcodes with an operand that must be a constant: its position, and values to try."""
BYTES = {"bfe": (1, 2), "bfi": (2, 3)}
"""Positions of operands that PTX restricts to 0..255 (PTX ISA 9.7.1.19, 9.7.1.20)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A form with its constants filled in.

    Attributes:
        form: the mnemonic.
        kernel: runs it; its sources leave the constant out.
        constant: position and value of the constant operand, or None.
        bytes_only: positions of sources that must not exceed 255.
    """

    form: str
    kernel: LaneKernel
    constant: tuple[int, int] | None = None
    bytes_only: tuple[int, ...] = ()


def cases(form: str, results: tuple[str, ...], sources: tuple[str, ...]) -> list[Case]:
    """Return the cases of a form, whose operand types exclude the carry flag."""
    opcode, *modifiers = form.split(".")
    if opcode in IMMEDIATES:
        place, values = IMMEDIATES[opcode]
        return [_constant_case(form, results, sources, place, value) for value in values]
    reads, writes = opcode in {"addc", "subc", "madc"}, "cc" in modifiers
    body = []
    if reads:
        body += _set_carry(f"%a{len(sources)}")
    body.append(f"{form} {_operands(opcode, len(results), [f'%a{i}' for i in range(len(sources))])};")
    if writes:
        body += _get_carry(f"%d{len(results)}")
    kernel = LaneKernel(
        _identifier(form), (*sources, *["pred"] * reads), (*results, *["pred"] * writes), "\n".join(body)
    )
    return [Case(form, kernel, bytes_only=BYTES.get(opcode, ()))]


def _constant_case(form: str, results: tuple[str, ...], sources: tuple[str, ...], place: int, value: int) -> Case:
    others = [type_ for i, type_ in enumerate(sources) if i != place]
    names = [f"%a{i}" for i in range(len(others))]
    names.insert(place, hex(value))
    body = f"{form} {_operands(form.split('.', maxsplit=1)[0], len(results), names)};"
    kernel = LaneKernel(f"{_identifier(form)}_{value:02x}", tuple(others), results, body)
    return Case(form, kernel, (place, value))


def _operands(opcode: str, results: int, sources: list[str]) -> str:
    names = [f"%d{i}" for i in range(results)]
    targets = "|".join(names) if opcode in PAIRED else ", ".join(names)
    return ", ".join([targets, *sources])


def _set_carry(flag: str) -> list[str]:
    """Make CC.CF the flag: the carry of an addition, whatever reads it."""
    return [f"selp.u32 %r0, 1, 0, {flag};", "add.cc.u32 %r1, %r0, 0xffffffff;"]


def _get_carry(flag: str) -> list[str]:
    """Turn CC.CF into a flag by an addition, whatever wrote it."""
    return ["addc.u32 %r2, 0, 0;", f"setp.ne.u32 {flag}, %r2, 0;"]


def _identifier(form: str) -> str:
    return form.replace(".", "_").replace(":", "_")


_REQUIREMENTS = (
    (r"cvt\.pack\..*\b[us][24]\b|ex2\b.*\.f16|tanh\b.*\.f(16|32)", 75, "8.0"),
    (r"cvt\.pack", 72, "8.0"),
    (r"lop3\.(and|or)\b", 70, "8.2"),
    (r"e[45]m[23]x2", 89, "8.1"),
    (r"(min|max)\b.*\bxorsign", 86, "8.0"),
    (r"(min|max)\b.*\.abs\.f32", 100, "8.8"),
    (r"[us]16x2|(min|max)\.relu\.s32", 90, "8.0"),
    (r"cvt\.r[nz]\b.*\btf32", 90, "8.0"),
    (r"cvt\.(?!.*ftz).*\bbf16(x2)?\.f32|cvt\.r.\.ftz\.bf16\.f32|cvt\.(r[a-z]\.)?f32\.bf16", 80, "8.1"),
    (r"(abs|neg|min|max|fma)\b.*bf16", 80, "8.0"),
    (r"bf16", 90, "8.0"),
    (r"satfinite", 80, "8.1"),
    (r"relu|\bNaN\b|tf32|(min|max)\b.*f16|f16x2\.f32", 80, "8.0"),
)
"""Least target and PTX version of forms that match, first match first; some a little later than need be."""


def requirements(form: str) -> tuple[int, str]:
    """Return the least target and PTX version of a form."""
    return next(
        ((target, version) for pattern, target, version in _REQUIREMENTS if re.search(pattern, form)), (70, "8.0")
    )
