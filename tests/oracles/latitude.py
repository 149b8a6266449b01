"""Where PTX leaves a result open, and what it still promises there.

The judges of `oracles.alu` say what NVIDIA's hardware and the emulator are known to do. A test of another device must
not ask for more than the manual does.

Source: PTX ISA 9.7.1.8 (div), 9.7.1.9 (rem), 9.7.3.10 and 9.7.4.8 (abs), 9.7.3.11 and 9.7.4.6 (neg), 9.7.9.21 (cvt,
which says nothing of the payloads of NaNs).
"""

from __future__ import annotations

import re
from typing import Any

from oracles.formats import FORMATS, decode, is_nan

_INTEGER_DIVISION = re.compile(r"(div|rem)\.[us]\d+")
_UNSPECIFIED_NAN = re.compile(r"(abs|neg|cvt)\..*f\d+(x2)?")
_SIGN_OF_ZERO = re.compile(r".*\.(relu|sat)\b.*f")


def relax(form: str, type_: str, operands: list[int], expected: Any) -> Any:
    """Return what a result may be: an expectation as `oracles.alu` has them.

    Args:
        form: the mnemonic.
        type_: PTX type of the result.
        operands: raw bits of the sources.
        expected: the judge's word on this result.
    """
    if _INTEGER_DIVISION.fullmatch(form) and operands[1] == 0:
        return lambda _: True  # "an unspecified, machine-specific value"
    if callable(expected):
        return expected
    if not (_UNSPECIFIED_NAN.fullmatch(form) or _SIGN_OF_ZERO.match(form)):
        return expected

    def may_differ(name: str, want: int, have: int) -> bool:
        if _UNSPECIFIED_NAN.fullmatch(form) and _nan(want, name):
            return _nan(have, name)
        return bool(_SIGN_OF_ZERO.match(form)) and want == 0 and have == _minus_zero(name)

    return _elementwise(type_, expected, may_differ)


def _elementwise(type_: str, expected: int, may_differ: Any) -> Any:
    """Accept bits whose elements are equal to the expected ones or differ as they may."""
    name, _, count = type_.partition("x")
    if name not in FORMATS:
        return expected
    width = FORMATS[name].width
    mask = (1 << width) - 1

    def accept(bits: int) -> bool:
        pairs = [(expected >> i * width & mask, bits >> i * width & mask) for i in range(int(count or 1))]
        return all(want == have or may_differ(name, want, have) for want, have in pairs)

    return accept


def _nan(bits: int, name: str) -> bool:
    return is_nan(decode(bits, name))


def _minus_zero(name: str) -> int:
    form = FORMATS[name]
    return 1 << (form.exponent + form.mantissa) << form.shift
