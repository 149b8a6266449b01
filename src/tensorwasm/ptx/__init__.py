"""PTX text: one model, and its parser, printer and analyses."""

from tensorwasm.ptx.lexer import MAX_PTX_BYTES
from tensorwasm.ptx.parser import parse

__all__ = ["MAX_PTX_BYTES", "parse"]
