"""PTX text: one model, and its parser, printer and analyses."""

from tensorwasm.ptx.flow import signature
from tensorwasm.ptx.lexer import MAX_PTX_BYTES
from tensorwasm.ptx.parser import parse, parse_variants
from tensorwasm.ptx.printer import render, render_instruction
from tensorwasm.ptx.reachability import extract, find_printf, may_write
from tensorwasm.ptx.select import check_compatible, select

__all__ = [
    "MAX_PTX_BYTES",
    "check_compatible",
    "extract",
    "find_printf",
    "may_write",
    "parse",
    "parse_variants",
    "render",
    "render_instruction",
    "select",
    "signature",
]
