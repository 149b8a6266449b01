"""What instructions compute, one lane at a time, in Python integers and exact fractions.

A judge takes the raw bits of each source (a bool for a predicate) and returns one expectation per result: bits, a bool,
or a function that says whether the bits are acceptable. Written from the manual's pseudocode, bit by bit where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracles.alu.approximations import approximation, rsqrt64, upper_half
from oracles.alu.bits import bfe, bfi, bfind, bmsk, fns, funnel, inverted, logic, lop3, prmt, shift, szext
from oracles.alu.comparison import set_mask, setp, slct
from oracles.alu.conversion import cvt
from oracles.alu.floats import arithmetic, copysign, selection, testp
from oracles.alu.form import Form, Judge, halves, is_float, width
from oracles.alu.integers import chained, dot, multiplied, multiplied_and_added, whole_numbers
from oracles.alu.video import VIDEO, video, video_elements, video_mad, video_set, video_shift


def side_by_side(form: Form) -> Judge:
    one = JUDGES[form.opcode](Form(form.opcode, form.flags, (form.last.removesuffix("x2"),)))

    def judge(*sources: int) -> tuple[Any]:
        low, high = (one(*part)[0] for part in zip(*map(halves, sources), strict=True))
        if callable(low):
            return (lambda bits: low(bits & 0xFFFF) and high(bits >> 16),)
        return (low | high << 16,)

    return judge


def _by_type(floats: Callable[[Form], Judge], integers: Callable[[Form], Judge]) -> Callable[[Form], Judge]:
    def choose(form: Form) -> Judge:
        if form.last.endswith("x2"):
            return side_by_side(form)
        return floats(form) if is_float(form.last) else integers(form)

    return choose


def _maybe_approximate(floats: Callable[[Form], Judge]) -> Callable[[Form], Judge]:
    return lambda form: (approximation if form.one_of("approx", "full") else floats)(form)


def _maybe_chain(form: Form) -> Judge:
    return (chained if "cc" in form.flags else whole_numbers if form.opcode != "mad" else multiplied_and_added)(form)


def _special(form: Form) -> Judge:
    if form.last == "f64":
        return (upper_half if "ftz" in form.flags else rsqrt64 if form.opcode == "rsqrt" else arithmetic)(form)
    return _by_type(_maybe_approximate(arithmetic), whole_numbers)(form)


def _rcp_or_sqrt(form: Form) -> Judge:
    return _special(form) if "approx" in form.flags else arithmetic(form)


JUDGES: dict[str, Callable[[Form], Judge]] = {
    **dict.fromkeys(("add", "sub"), _by_type(arithmetic, _maybe_chain)),
    "mul": _by_type(arithmetic, multiplied),
    "mad": _by_type(arithmetic, _maybe_chain),
    "fma": _by_type(arithmetic, whole_numbers),
    **dict.fromkeys(("addc", "subc", "madc"), chained),
    "mul24": multiplied,
    "mad24": multiplied_and_added,
    **dict.fromkeys(("sad", "rem"), whole_numbers),
    **dict.fromkeys(("abs", "neg"), _by_type(arithmetic, whole_numbers)),
    **dict.fromkeys(("min", "max"), _by_type(selection, whole_numbers)),
    "div": _by_type(_maybe_approximate(arithmetic), whole_numbers),
    **dict.fromkeys(("rcp", "sqrt", "rsqrt"), _rcp_or_sqrt),
    **dict.fromkeys(("sin", "cos", "lg2", "ex2", "tanh"), _special),
    "popc": lambda _: lambda a: (a.bit_count(),),
    "clz": lambda form: lambda a: (width(form.last) - a.bit_length(),),
    "brev": lambda form: lambda a: (int(f"{a:0{width(form.last)}b}"[::-1], 2),),
    "bfind": bfind,
    "fns": fns,
    "bfe": bfe,
    "bfi": bfi,
    "bmsk": bmsk,
    "szext": szext,
    "prmt": prmt,
    "lop3": lop3,
    **dict.fromkeys(("dp4a", "dp2a"), dot),
    **dict.fromkeys(("shl", "shr"), shift),
    "shf": funnel,
    **dict.fromkeys(("and", "or", "xor"), logic),
    "not": inverted,
    "cnot": lambda _: lambda a: (int(a == 0),),
    "mov": lambda _: lambda a: (a,),
    "selp": lambda _: lambda a, b, c: (a if c else b,),
    "slct": slct,
    "setp": setp,
    "set": set_mask,
    "copysign": copysign,
    "testp": testp,
    "cvt": cvt,
    **dict.fromkeys(("vadd", "vsub", "vabsdiff", "vmin", "vmax"), video),
    **dict.fromkeys(("vshl", "vshr"), video_shift),
    "vset": video_set,
    "vmad": video_mad,
    **{f"{name}{count}": video_elements for name in (*VIDEO, "vset") for count in (2, 4)},
}


def judge(mnemonic: str) -> Judge:
    """Return the judge of a mnemonic.

    Raises:
        KeyError: there is none.
    """
    form = Form.of(mnemonic)
    return JUDGES[form.opcode](form)


def agrees(expected: Any, bits: int) -> bool:
    return bool(expected(bits)) if callable(expected) else expected == bits
