"""Instructions of straight-line programs, a family a row: what a lane executes without branching or memory.

Left out is what PTX leaves open: approximations, division by zero, contraction (every float form names its rounding),
payloads of NaNs and signs of zeros. Where only some results are open, a fix-up makes them one. What ptxas 13.0 gets
wrong is left out too, each with what it does: docs/ptx-differences.md has an example of each, as seen on an H200.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_TYPE = re.compile(r"pred|[busf]\d+(x2)?|bf16(x2)?|tf32|e\dm\dx2")


@dataclass(frozen=True, slots=True)
class Form:
    """One mnemonic.

    Attributes:
        mnemonic: with all modifiers.
        results: PTX types; two predicates, or a value and a predicate, are written ``d|p``.
        sources: PTX types.
        nonzero: a source made odd first, which cannot be zero.
        bytes_only: sources cut to 0..255 first.
        constant: a source that must be an immediate of 8 bits.
        whole: a source that an integer instruction makes first.
        guarded: whether it may have a guard.
        fix: what is done to the result: ``nan`` makes every NaN one, ``sign`` clears the sign bit.
    """

    mnemonic: str
    results: tuple[str, ...]
    sources: tuple[str, ...]
    nonzero: int | None = None
    bytes_only: tuple[int, ...] = ()
    constant: int | None = None
    whole: int | None = None
    guarded: bool = True
    fix: tuple[str, ...] = ()


def spell(pattern: str) -> Iterator[str]:
    """Yield the mnemonics of a pattern in which ``{,.rn}`` stands for one of its alternatives."""
    parts = [part.split(",") if index % 2 else [part] for index, part in enumerate(re.split(r"[{}]", pattern))]
    return map("".join, itertools.product(*parts))


def _forms(pattern: str, signature: str, **extra) -> list[Form]:
    """Return the forms of a pattern; in a signature ``T`` is the last type, ``D`` the one before, ``W`` twice ``T``."""
    found = []
    for mnemonic in spell(pattern):
        types = [word for word in mnemonic.split(".")[1:] if _TYPE.fullmatch(word)]
        letters = dict(zip("TDE", reversed(types), strict=False))
        letters["W"] = f"{types[-1][0]}{2 * int(types[-1][1:])}" if types[-1][1:].isdigit() else ""
        results, sources = (
            tuple(letters.get(word, word) for word in side.split()) for side in signature.partition("=")[::2]
        )
        found.append(Form(mnemonic, results, sources, **({"fix": _fix(mnemonic, results)} | extra)))
    return found


def _fix(mnemonic: str, results: tuple[str, ...]) -> tuple[str, ...]:
    if not re.fullmatch(r"b?f\d+(x2)?|tf32", results[0]):
        return ()
    clears = ("sign",) if re.search(r"\.(sat|relu)\b", mnemonic) else ()
    payload_open = results[0] == "f64" or re.match(r"(abs|neg|min|max|cvt)\.", mnemonic)
    return (*clears, "nan") if payload_open else clears


_ALL = "{u16,u32,u64,s16,s32,s64}"
_WORDS = "{b16,b32,b64}"
_BYTES = "{u8,u16,u32,u64,s8,s16,s32,s64}"
_RND = "{.rn,.rz,.rm,.rp}"
_RNI = "{.rni,.rzi,.rmi,.rpi}"
_CMP = "{eq,ne,lt,le,gt,ge}"
_FCMP = "{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}"
_THEN = "{.and,.or,.xor}"
_ANY = "{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}"
_HALF = "{f16,f16x2}"
_BHALF = "{bf16,bf16x2}"

INTEGERS = [
    *_forms(f"{{add,sub,min,max}}.{_ALL}", "T = T T"),
    # ptxas makes b of a - (a - b), where the outer difference is one that saturates.
    *_forms("{add,sub}.sat.s32", "T = T T", whole=0),
    *_forms(f"mul{{.lo,.hi}}.{_ALL}", "T = T T"),
    *_forms("mul.wide.{u16,s16,u32,s32}", "W = T T"),
    *_forms(f"{{mad.lo,mad.hi,sad}}.{_ALL}", "T = T T T"),
    *_forms("mad.hi.sat.s32", "T = T T T"),
    *_forms("mad.wide.{u16,s16,u32,s32}", "W = T T W"),
    *_forms("mul24{.lo,.hi}.{u32,s32}", "T = T T"),
    *_forms("mad24{.lo,.hi}.{u32,s32}", "T = T T T"),
    *_forms("mad24.hi.sat.s32", "T = T T T"),
    # ptxas takes what abs gives for positive, and what neg gives for a number of the other sign. The least number stays
    # as it is under both: so of odd ones.
    *_forms("{abs,neg}.{s16,s32,s64}", "T = T", nonzero=0),
    *_forms("{min,max}.relu.s32", "T = T T"),
]
DIVISIONS = _forms(f"{{div,rem}}.{_ALL}", "T = T T", nonzero=1)
PACKED = [
    *_forms("{add,min,max}.{u16x2,s16x2}", "T = T T"),
    *_forms("{min,max}.relu.s16x2", "T = T T"),
    *_forms("{dp4a,dp2a.lo,dp2a.hi}.u32.u32", "u32 = u32 u32 u32"),
    *_forms("{dp4a,dp2a.lo,dp2a.hi}.{u32.s32,s32.u32,s32.s32}", "s32 = D T s32"),
    *_forms("cvt.pack.sat.{u16,s16}.s32", "b32 = s32 s32"),
    *_forms("cvt.pack.sat.{u8,s8}.s32.b32", "b32 = s32 s32 b32"),
]
BITS = [
    *_forms("{popc,clz}.{b32,b64}", "u32 = T"),
    *_forms("bfind{,.shiftamt}.{u32,u64,s32,s64}", "u32 = T"),
    *_forms("brev.{b32,b64}", "T = T"),
    *_forms("bfe.{u32,u64,s32,s64}", "T = T u32 u32", bytes_only=(1, 2)),
    *_forms("bfi.{b32,b64}", "T = T T u32 u32", bytes_only=(2, 3)),
    *_forms("bmsk.{clamp,wrap}.b32", "b32 = u32 u32"),
    *_forms("szext.{clamp,wrap}.{u32,s32}", "T = T u32"),
    *_forms("prmt.b32{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}", "b32 = b32 b32 b32"),
    *_forms("lop3.b32", "b32 = b32 b32 b32 u32", constant=3),
    *_forms("lop3.{or,and}.b32", "b32 pred = b32 b32 b32 u32 pred", constant=3),
]
LOGIC = [
    *_forms(f"{{and,or,xor}}.{_WORDS}", "T = T T"),
    *_forms(f"{{not,cnot}}.{_WORDS}", "T = T"),
    # ptxas converts the amount of a shift of 64 bits with F2I where an f32 instruction was the last to write it, and
    # takes an immediate amount from 2**31 on for a negative one.
    *_forms(f"shl.{_WORDS}", "T = T u32", whole=1),
    *_forms("shr.{b16,b32,b64,u16,u32,u64,s16,s32,s64}", "T = T u32", whole=1),
    *_forms("shf.{l,r}.{clamp,wrap}.b32", "b32 = b32 b32 u32"),
]
PREDICATES = [
    *_forms("{and,or,xor}.pred", "T = T T"),
    *_forms("{not,mov}.pred", "T = T"),
    *_forms("setp.{eq,ne}.{b16,b32,b64}", "pred pred = T T"),
    *_forms(f"setp.{_CMP}.{_ALL}", "pred pred = T T"),
    *_forms("setp.{lo,ls,hi,hs}.{u16,u32,u64}", "pred = T T"),
    *_forms(f"setp.{_CMP}{_THEN}.{_ALL}", "pred pred = T T pred"),
    *_forms(f"setp.{_FCMP}.{{f32,ftz.f32,f64}}", "pred pred = T T"),
    *_forms(f"setp.{_FCMP}{_THEN}.{{f32,f64}}", "pred pred = T T pred"),
    *_forms(f"setp.{_FCMP}.{{f16,ftz.f16,bf16}}", "pred = T T"),
    *_forms(f"setp.{_FCMP}.{{f16x2,bf16x2}}", "pred pred = T T"),
    # ptxas leaves the guard out of parts of what it makes of testp and set.
    *_forms("testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64}", "pred = T", guarded=False),
]
SELECTIONS = [
    # ptxas leaves the upper half of a 32-bit register as it comes after a set to f16 or bf16, and reads what a set to
    # f32 gives as it was before its conversion: so integers and pairs only.
    *_forms(f"set.{_CMP}.{{u32,s32}}.{_ALL}", "D = T T", fix=(), guarded=False),
    *_forms(f"set.{_FCMP}.{{u32,s32}}.{{f32,f64,f16,bf16}}", "D = T T", fix=(), guarded=False),
    *_forms(f"set.{_FCMP}{_THEN}.{{u32,s32}}.{{f32,f64}}", "D = T T pred", fix=(), guarded=False),
    *_forms(f"set.{_FCMP}.f16x2.f16x2", "D = T T", fix=(), guarded=False),
]
CHOICES = [
    *_forms(f"selp.{_ANY}", "T = T T pred", fix=()),
    *_forms(f"slct.{_ANY}.{{s32,f32}}", "D = D D T", fix=()),
    *_forms(f"slct.ftz.{_ANY}.f32", "D = D D T", fix=()),
]
SINGLES = [
    *_forms(f"{{add,sub,mul}}{_RND}{{,.ftz}}{{,.sat}}.f32", "T = T T"),
    *_forms(f"fma{_RND}{{,.ftz}}{{,.sat}}.f32", "T = T T T"),
    *_forms("{min,max}{,.ftz}{,.NaN}{,.xorsign.abs}.f32", "T = T T"),
    *_forms("{abs,neg}{,.ftz}.f32", "T = T"),
    *_forms("copysign.f32", "T = T T", fix=()),
]
DOUBLES = [
    *_forms(f"{{add,sub,mul}}{_RND}.f64", "T = T T"),
    *_forms(f"fma{_RND}.f64", "T = T T T"),
    *_forms("{min,max}.f64", "T = T T"),
    *_forms("{abs,neg}.f64", "T = T"),
    *_forms("copysign.f64", "T = T T", fix=()),
]
QUOTIENTS = [
    *_forms(f"div{_RND}{{,.ftz}}.f32", "T = T T"),
    *_forms(f"{{rcp,sqrt}}{_RND}{{,.ftz}}.f32", "T = T"),
    *_forms(f"div{_RND}.f64", "T = T T"),
    *_forms(f"{{rcp,sqrt}}{_RND}.f64", "T = T"),
]
HALVES = [
    *_forms(f"{{add,sub,mul}}.rn{{,.ftz}}{{,.sat}}.{_HALF}", "T = T T"),
    *_forms(f"{{add,sub,mul}}.rn.{_BHALF}", "T = T T"),
    *_forms(f"fma.rn{{,.ftz}}{{,.sat,.relu}}.{_HALF}", "T = T T T"),
    *_forms(f"fma.rn{{,.relu}}.{_BHALF}", "T = T T T"),
    *_forms(f"{{min,max}}{{,.ftz}}{{,.NaN}}{{,.xorsign.abs}}.{_HALF}", "T = T T"),
    *_forms(f"{{min,max}}{{,.NaN}}{{,.xorsign.abs}}.{_BHALF}", "T = T T"),
    *_forms(f"{{abs,neg}}{{,.ftz}}.{_HALF}", "T = T"),
    *_forms(f"{{abs,neg}}.{_BHALF}", "T = T"),
]
WHOLE_CONVERSIONS = [
    *_forms(f"cvt.{_BYTES}.{_BYTES}", "D = T"),
    *_forms(
        "cvt.sat.{u8.s8,u8.u16,u8.s32,s8.s16,s8.s64,u16.s32,s16.s32,s16.u16,u32.s64,s32.s64,s32.u32,u64.s64}", "D = T"
    ),
    *_forms(f"cvt{_RND}{{,.sat}}.{{f16,f64}}.{_BYTES}", "D = T"),
    *_forms(f"cvt{_RND}{{,.sat}}.f32.{_BYTES}", "D = T"),
    *_forms(f"cvt{_RND}.bf16.{_ALL}", "D = T"),
    *_forms(f"cvt{_RNI}{{,.sat}}.{_BYTES}.{{f16,f64}}", "D = T"),
    *_forms(f"cvt{_RNI}{{,.ftz}}{{,.sat}}.{_BYTES}.f32", "D = T"),
    *_forms(f"cvt{_RNI}.{_ALL}.bf16", "D = T"),
]
FLOAT_CONVERSIONS = [
    *_forms("cvt{,.rni,.rzi,.rmi,.rpi}{,.sat}.{f16.f16,f64.f64}", "D = T"),
    *_forms("cvt{,.rni,.rzi,.rmi,.rpi}{,.ftz}{,.sat}.f32.f32", "D = T"),
    *_forms("cvt{.rni,.rzi,.rmi,.rpi}.bf16.bf16", "D = T"),
    *_forms(f"cvt{_RND}.{{f16.bf16,bf16.f16,bf16.f64}}", "D = T"),
    *_forms(f"cvt{_RND}{{,.ftz}}{{,.sat}}.{{f16.f32,f32.f64}}", "D = T"),
    *_forms(f"cvt{_RND}{{,.sat}}.f16.f64", "D = T"),
    *_forms(f"cvt{_RND}{{,.ftz}}.bf16.f32", "D = T"),
    *_forms("cvt{,.ftz}{,.sat}.f32.f16", "D = T"),
    *_forms("cvt{,.ftz}.f64.f32", "D = T"),  # ptxas drops .sat from it where the source came of another .sat
    *_forms("cvt{,.ftz}.f32.bf16", "D = T"),
    *_forms("cvt{,.sat}.f64.f16", "D = T"),
    *_forms("cvt.f64.bf16", "D = T"),
    *_forms("cvt{.rn,.rz}{.relu,.satfinite,.relu.satfinite}.{f16,bf16}.f32", "D = T"),
    *_forms("cvt{.rn,.rz}{,.relu,.satfinite,.relu.satfinite}.{f16x2,bf16x2}.f32", "D = T T"),
    *_forms("cvt.{rna,rn,rz}.tf32.f32", "D = T"),
    *_forms("cvt.rn{,.relu}.f16x2.{e4m3x2,e5m2x2}", "D = T"),
]
FAMILIES = (
    (16, INTEGERS),
    (1, DIVISIONS),
    (6, PACKED),
    (12, BITS),
    (10, LOGIC),
    (14, PREDICATES),
    (6, SELECTIONS),
    (6, CHOICES),
    (10, SINGLES),
    (5, DOUBLES),
    (1, QUOTIENTS),
    (12, HALVES),
    (14, WHOLE_CONVERSIONS),
    (8, FLOAT_CONVERSIONS),
)
"""Shares and forms of every family whose statement is one instruction."""
CHAIN_STARTS = {
    size: [f"{op}.cc.{kind}{size}" for op in ("add", "sub", "mad.lo", "mad.hi") for kind in "us"] for size in (32, 64)
}
CHAIN_LINKS = {
    size: [f"{op}.cc.{kind}{size}" for op in ("addc", "subc", "madc.lo", "madc.hi") for kind in "us"]
    for size in (32, 64)
}
SPECIALS = (
    *("%tid.x", "%tid.y", "%ntid.x", "%ctaid.x", "%nctaid.x", "%laneid"),
    *(f"%lanemask_{name}" for name in ("eq", "lt", "le", "gt", "ge")),
)
