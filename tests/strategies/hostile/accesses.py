"""Accesses to memory in every form, and their immediate offsets."""

from __future__ import annotations

import random

SPACES = {
    **{space: f".{space}" for space in ("global", "shared", "local", "const")},
    "generic": "",
    "cta": ".shared::cta",
}
"""Spellings by name; ``cta`` is shared memory."""
LETTERS = {
    **dict.fromkeys(("b8", "u8", "b16", "u16", "s16"), "h"),
    **dict.fromkeys(("s8", "b32", "u32", "s32"), "r"),
    **dict.fromkeys(("b64", "u64", "s64"), "d"),
    "f32": "f",
    "f64": "g",
}
"""Kinds of registers, as in templates, by type."""
_ATOMIC_LETTERS = {**LETTERS, "f16x2": "r", "bf16x2": "r", "f16": "h"}
_SCOPES = ("cta", "gpu", "sys")
_LOAD_ORDERS = tuple(f".{order}.{scope}" for order in ("relaxed", "acquire") for scope in _SCOPES)
_STORE_ORDERS = tuple(f".{order}.{scope}" for order in ("relaxed", "release") for scope in _SCOPES)
_LOAD_HINTS = (".ca", ".cg", ".cs", ".lu", ".cv")
_STORE_HINTS = (".wb", ".cg", ".cs", ".wt")
_EVICTIONS = tuple(
    f".L1::{how}" for how in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")
)
_AHEAD = (".L2::64B", ".L2::128B", ".L2::256B")
_OPERATIONS = (
    *(f"add.{kind}" for kind in ("u32", "s32", "u64", "f32", "f64", "noftz.f16", "noftz.f16x2", "noftz.bf16x2")),
    *(f"{name}.{kind}" for name in ("and", "or", "xor") for kind in ("b32", "b64")),
    *(f"{name}.{kind}" for name in ("min", "max") for kind in ("u32", "s32", "u64", "s64")),
    "inc.u32",
    "dec.u32",
)
_EXCHANGES = ("exch.b32", "exch.b64", "cas.b16", "cas.b32", "cas.b64")
_ORDERS = ("", ".relaxed.cta", ".relaxed.sys", ".release.gpu", ".cta", ".sys")
_ATOM_ORDERS = (*_ORDERS, ".acquire.gpu", ".acq_rel.sys", ".acq_rel.gpu")
_SMALL = ("", "", "+4", "+8", "+16", "+-4", "+-16", "+64")
IMMEDIATES = (
    *_SMALL, "+1", "+3", "+-1", "+7", "+4096", "+-4096", "+8388608", "+-8388608", "+8388612", "+-8388612", "+8388609",
    "+16777216", "+67108864", "+-67108864", "+2147483647", "+2147483644", "+-2147483648", "+4294967280", "+4294967296",
    "+-4294967296", "+1099511627776", "+9223372036854775807", "+-9223372036854775808", "+0x7ffffff8", "+0xffffffff",
)  # fmt: skip
_VALUES = {
    "r": ("b32", "-7"), "h": ("b16", "-7"), "d": ("b64", "%victim"), "f": ("f32", "0f3F800000"),
    "g": ("f64", "0d3FF0000000000000"),
}  # fmt: skip


def draw_number(rng: random.Random, letter: str) -> str:
    """Return what stands for ``$I``, ``$J``, ``$N`` or ``$C`` in a template."""
    if letter == "N":
        return str(rng.choice((rng.getrandbits(32), rng.getrandbits(16), 0x80000000, 0xFFFFFFFF)))
    if letter == "C":
        return str(rng.choice((0, 4, 16, 64, 252, 256, 4092)))
    return rng.choice(_SMALL if letter == "J" else IMMEDIATES)


def loads(space: str) -> list[str]:
    """Return the mnemonics of all loads of a space, types and vectors apart."""
    dotted = SPACES[space]
    if space == "const":
        return [f"ld{dotted}"]
    forms = [f"ld{weak}{dotted}{hint}" for weak in ("", ".weak") for hint in ("", *_LOAD_HINTS)]
    if space == "local":
        return forms
    forms += [f"ld.volatile{dotted}", *(f"ld{order}{dotted}" for order in _LOAD_ORDERS)]
    if space == "global":
        forms += [f"ld{dotted}{hint}.nc" for hint in ("", *_LOAD_HINTS[:3])]
        forms += [f"ld{dotted}.nc{eviction}" for eviction in _EVICTIONS]
        forms += ["ldu.global", "ld.global.nc.L1::no_allocate.L2::128B"]
    if space in {"global", "generic"}:
        forms += [f"ld{dotted}{eviction}" for eviction in _EVICTIONS] + [f"ld{dotted}{ahead}" for ahead in _AHEAD]
        forms.append(f"ld.relaxed.gpu{dotted}.L1::evict_last")
    return forms


def stores(space: str) -> list[str]:
    """Return the mnemonics of all stores of a space, types and vectors apart."""
    dotted = SPACES[space]
    forms = [f"st{weak}{dotted}{hint}" for weak in ("", ".weak") for hint in ("", *_STORE_HINTS)]
    if space == "local":
        return forms
    forms += [f"st.volatile{dotted}", *(f"st{order}{dotted}" for order in _STORE_ORDERS)]
    if space in {"global", "generic"}:
        forms += [f"st{dotted}{eviction}" for eviction in _EVICTIONS] + [f"st.release.sys{dotted}.L1::evict_first"]
    return forms


def atomics(space: str) -> list[str]:
    """Return the mnemonics of all atomics of a space, with their types."""
    dotted = SPACES[space]
    forms = [f"atom{dotted}.{operation}" for operation in (*_OPERATIONS, *_EXCHANGES)]
    forms += [f"red{dotted}.{operation}" for operation in _OPERATIONS]
    forms += [f"atom{order}{dotted}.{operation}" for order in _ATOM_ORDERS for operation in ("add.u32", "exch.b64")]
    return forms + [f"red{order}{dotted}.or.b32" for order in _ORDERS]


def types() -> list[str]:
    """Return the types of loads and stores, with vectors."""
    narrow = [kind for kind in LETTERS if kind[1:] != "64"]
    return [*LETTERS, *(f"v2.{kind}" for kind in LETTERS), *(f"v4.{kind}" for kind in narrow)]


def draw_access(rng: random.Random, space: str) -> str:
    """Return the mnemonic of an access of any form."""
    kinds = [loads] if space == "const" else [loads, loads, stores, atomics]
    chosen = rng.choice(kinds[: 3 if space == "local" else 4])(space)
    mnemonic = rng.choice(chosen)
    return mnemonic if mnemonic.startswith(("atom", "red")) else f"{mnemonic}.{rng.choice(types())}"


def access_template(mnemonic: str) -> str:
    """Return the template of an access with all its modifiers; ``$B1`` is the address in brackets."""
    opcode, *modifiers = mnemonic.split(".")
    if opcode in {"atom", "red"}:
        letter = _ATOMIC_LETTERS[modifiers[-1]]
        kind, value = _VALUES[letter]
        operands = ["$B1", f"${letter}1", *([f"${letter}1"] if "cas" in modifiers else [])]
        lines = [f"mov.{kind} ${letter}1, {value};"]
        if opcode == "red":
            lines.append(f"{mnemonic} {', '.join(operands)};")
        else:
            lines += [f"{mnemonic} ${letter}2, {', '.join(operands)};", f"leak ${letter}2"]
        return "\n".join(["target sm_90", *lines] if modifiers[-1] == "bf16x2" else lines)
    letter = LETTERS[modifiers[-1]]
    count = int(modifiers[-2][1]) if modifiers[-2:-1] in (["v2"], ["v4"]) else 1
    if opcode == "st":
        kind, value = _VALUES[letter]
        stored = f"{{{', '.join([f'${letter}1'] * count)}}}" if count > 1 else f"${letter}1"
        return f"mov.{kind} ${letter}1, {value};\n{mnemonic} $B1, {stored};"
    listed = ", ".join(f"${letter}{index}" for index in range(1, count + 1))
    target = f"{{{listed}}}" if count > 1 else listed
    return f"{mnemonic} {target}, $B1;\nleak ${letter}{count}"
