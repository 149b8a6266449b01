"""PTX text: one model, and its parser, printer and analyses."""

from tensorwasm.ptx.constancy import may_write
from tensorwasm.ptx.lexer import MAX_PTX_BYTES
from tensorwasm.ptx.parser import parse, parse_variants
from tensorwasm.ptx.printer import render, render_instruction
from tensorwasm.ptx.reach import extract, printing
from tensorwasm.ptx.select import check_compatible, select
from tensorwasm.ptx.signature import signature

__all__ = [
    "MAX_PTX_BYTES",
    "check_compatible",
    "extract",
    "may_write",
    "parse",
    "parse_variants",
    "printing",
    "render",
    "render_instruction",
    "select",
    "signature",
]
