"""The longest PTX there may be, by what it is long of."""

from tensorwasm.ptx.lexer import MAX_PTX_BYTES

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
DEPTH = 30


def _fill(before: str, piece: str, after: str, size_bytes: int) -> str:
    return before + piece * ((size_bytes - len(before) - len(after)) // len(piece)) + after


def straight(size_bytes: int = MAX_PTX_BYTES) -> str:
    """Return one kernel ``k`` of instructions that all name the same registers."""
    return _fill(HEAD + ".entry k() { .reg .b32 %r<9>;\n", "add.u32 %r1, %r2, %r3;\n", "ret; }\n", size_bytes)


def nested(size_bytes: int = MAX_PTX_BYTES) -> str:
    """Return one kernel ``k`` whose instructions each name other registers, declared many scopes further out."""
    outer = HEAD + ".entry k() { .reg .b32 %r<1000000>;\n" + "".join(f"{{ .reg .b32 %a{i}<9>;\n" for i in range(DEPTH))
    after = "}" * DEPTH + "ret; }\n"
    pieces, left = [outer], size_bytes - len(outer) - len(after)
    at = 0
    while left > 0:
        pieces.append(f"add.u32 %r{at}, %r{at + 1}, %r{at + 2};\n")
        left -= len(pieces[-1])
        at += 1
    return "".join((*pieces[:-1], after))


def _listed(before: str, after: str, item: str = "n{}") -> str:
    """Return a list of as many different things as fit."""
    pieces, left, at = [before], MAX_PTX_BYTES - len(before) - len(after) - 20, 0
    while left > 0 and at < 1_490_000:
        pieces.append(item.format(at) + ",")
        left -= len(pieces[-1])
        at += 1
    return "".join((*pieces, item.format("z"), after))


BODY = HEAD + ".entry k() { "
LONGEST = {
    "instructions": straight,
    "scopes": nested,
    "targets": lambda: _listed(".version 8.0 .target sm_80, ", ".address_size 64", "texmode_{}"),
    "registers": lambda: _listed(BODY + ".reg .b32 ", "; }"),
    "labels": lambda: BODY + "".join(f"L{at}:" for at in range(800_000)) + "}",
    "blocks": lambda: _fill(BODY, "{}", "}", 3 << 20),
    "operands": lambda: _listed(BODY + ".reg .b32 %r<1000000>; " + "{" * DEPTH + "mov.b32 %r0, ", ";", "%r{}"),
    "calls": lambda: _listed(HEAD + ".func f(); " + ".entry k() { call f, (", "); }"),
    "initial values": lambda: _listed(HEAD + ".global .u32 x[] = { ", " };"),
    "constants": lambda: HEAD + ".global .u32 x[] = { " + "1+" * 1_400_000 + "1 };",
    "sections": lambda: _listed(BODY + ".section .debug { ", " }"),
    "functions": lambda: _fill(HEAD, ".func f();", "", MAX_PTX_BYTES),
    "new lines": lambda: "\n" * MAX_PTX_BYTES,
}
"""Texts that all take seconds to read, or did."""
