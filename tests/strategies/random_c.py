"""Random functions of C whose every result is defined, as one source for nvcc and for a host's compiler.

Signed arithmetic goes through unsigned types, shifts are masked, divisors tested and conversions from floating point
bounded, so that compilers may not disagree. NaNs are told apart from numbers but not from each other. Structures have
padding, which nothing writes and compilers copy.

A source has kernels ``k0``, ``k1``, ...; each lane reads `INPUTS` words and writes `OUTPUTS` words of 64 bits.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

LANES, INPUTS, OUTPUTS = 32, 16, 48
INTEGERS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "u128", "i128")
FLOATS = ("f32", "f64")

HEAD = r"""
#include <string.h>
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef short i16;
typedef unsigned int u32; typedef int i32; typedef unsigned long long u64; typedef long long i64;
typedef unsigned __int128 u128; typedef __int128 i128; typedef float f32; typedef double f64;
#ifdef __CUDACC__
#define FN static __device__
#define HELPER static __device__ __noinline__
#define KERNEL(name, body) extern "C" __global__ void name(const u64 *in, u64 *out) \
  { body(in + threadIdx.x * INPUTS, out + threadIdx.x * OUTPUTS); }
#else
#define FN static
#define HELPER static __attribute__((noinline))
#define KERNEL(name, body) void name(const u64 *in, u64 *out) { body(in, out); }
#endif
FN u64 bits_f32(f32 x) { u32 b; if (x != x) return 0x7fffffff; memcpy(&b, &x, 4); return b; }
FN u64 bits_f64(f64 x) { u64 b; if (x != x) return 0x7fffffffffffffffULL; memcpy(&b, &x, 8); return b; }
FN f32 make_f32(u64 w) { u32 b = (u32)w; f32 x; memcpy(&x, &b, 4); return x; }
FN f64 make_f64(u64 w) { f64 x; memcpy(&x, &w, 8); return x; }
FN i64 whole(f64 x) { return x >= -9e18 && x <= 9e18 ? (i64)x : 77; }
"""


def _divisions() -> str:
    """Return division, remainder and shifts of every integer type, defined for all operands."""
    lines = []
    for type_ in INTEGERS:
        size, twin = type_[1:], f"u{type_[1:]}"
        wrong = f"({type_})(0 - ({twin})a)"
        for name, operator, minus_one in (("div", "/", wrong), ("rem", "%", "0")):
            signed = f" if (b == -1) return {minus_one};" if type_[0] == "i" else ""
            lines.append(
                f"FN {type_} {name}_{type_}({type_} a, {type_} b) {{ if (b == 0) return a;{signed} "
                f"return ({type_})(a {operator} b); }}"
            )
        mask = int(size) - 1
        lines.append(f"FN {type_} shl_{type_}({type_} a, u32 n) {{ return ({type_})(({twin})a << (n & {mask})); }}")
        lines.append(f"FN {type_} shr_{type_}({type_} a, u32 n) {{ return ({type_})(a >> (n & {mask})); }}")
    return "\n".join(lines)


class _Function:
    """Writes one kernel with its structures and helpers."""

    def __init__(self, source: random.Random, number: int) -> None:
        self.random, self.number = source, number
        self.variables: dict[str, str] = {}
        self.depth = 0
        self.loops = 0

    def type(self) -> str:
        return self.random.choice((*INTEGERS, *INTEGERS[-6:], *FLOATS, *FLOATS))

    def leaf(self, type_: str) -> str:
        """Return a variable or constant converted to a type."""
        if self.random.random() < 0.15:
            return f"(({type_}){self.random.choice([0, 1, 2, 3, 7, 10, 31, 255, 65535, 1000003])})"
        name = self.random.choice(sorted(self.variables))
        return self.convert(name, self.variables[name], type_)

    def convert(self, text: str, source: str, target: str) -> str:
        if source == target:
            return text
        if source in FLOATS and target in INTEGERS:
            return f"(({target})whole((f64){text}))"
        return f"(({target}){text})"

    def expression(self, type_: str, depth: int = 3) -> str:
        if depth == 0 or self.random.random() < 0.15:
            return self.leaf(type_)
        a, b = self.expression(type_, depth - 1), self.expression(type_, depth - 1)
        if self.random.random() < 0.12:
            return f"({self.condition(depth - 1)} ? {a} : {b})"
        if self.random.random() < 0.12:
            other = self.type()
            return self.convert(f"({self.expression(other, depth - 1)})", other, type_)
        if type_ in FLOATS:
            return f"({a} {self.random.choice('+-*/')} {b})"
        operation = self.random.choice(("+", "-", "*", "&", "|", "^", "div", "rem", "shl", "shr", "div", "rem"))
        if operation in "+-*&|^":
            twin = f"u{type_[1:]}"
            wide = twin if twin not in ("u8", "u16") else "u32"  # the product of two u16 would be a signed int
            return f"(({type_})(({wide}){a} {operation} ({wide}){b}))"
        if operation in ("div", "rem"):
            return f"{operation}_{type_}({a}, {b})"
        return f"{operation}_{type_}({a}, (u32){self.leaf('u32')})"

    def condition(self, depth: int = 2) -> str:
        type_ = self.type()
        comparison = self.random.choice(("<", "<=", ">", ">=", "==", "!="))
        return f"({self.expression(type_, depth - 1 if depth > 1 else 0)} {comparison} {self.leaf(type_)})"

    def statements(self, count: int) -> list[str]:
        return [line for _ in range(count) for line in self.statement()]

    def statement(self) -> list[str]:
        kind = self.random.random()
        if self.depth < 2 and kind < 0.12:
            return self.nested(f"if {self.condition()} {{", "} else {")
        if self.depth < 2 and kind < 0.24:
            self.loops += 1
            name = f"n{self.loops}"
            bound = f"(i32)({self.leaf('u32')} & {self.random.choice([3, 7])})"
            ahead = f"for (i32 {name} = 0; {name} < {bound}; {name}++) {{"
            stop = [f"  if {self.condition()} {self.random.choice(['break', 'continue'])};"]
            return [*self.nested(ahead)[:-1], *(stop if self.random.random() < 0.3 else []), "}"]
        if kind < 0.36:
            return [f"s = helper{self.number}(s, {self.leaf('u64')});"]
        if kind < 0.46:
            return [f"s.a[{self.leaf('u32')} & 3] = {self.expression(self.array)};"]
        name = self.random.choice(sorted(self.assignable))
        return [f"{name} = {self.expression(self.variables[name])};"]

    def nested(self, head: str, other: str = "") -> list[str]:
        self.depth += 1
        body = [head, *self.statements(self.random.randint(1, 3))]
        if other:
            body += [other, *self.statements(self.random.randint(1, 3))]
        self.depth -= 1
        return [*body, "}"]

    def text(self) -> str:
        n, draw = self.number, self.random
        inner = [self.type() for _ in range(2)]
        outer = [self.type() for _ in range(2)]
        self.array = self.type()
        members = {f"s.x{i}": type_ for i, type_ in enumerate(outer)}
        members |= {f"s.in.y{i}": type_ for i, type_ in enumerate(inner)}
        members |= {f"s.a[{i}]": self.array for i in range(4)}
        whole = [*(f"{t} x{i};" for i, t in enumerate(outer)), f"struct Inner{n} in;", f"{self.array} a[4];"]
        draw.shuffle(whole)
        lines = [f"struct Inner{n} {{ {' '.join(f'{t} y{i};' for i, t in enumerate(inner))} }};"]
        lines += [f"struct Outer{n} {{ {' '.join(whole)} }};"]
        lines += [f"HELPER struct Outer{n} helper{n}(struct Outer{n} s, u64 w) {{"]
        self.variables = {**members, "w": "u64"}
        self.assignable = list(members)
        self.depth = 2
        lines += [
            f"{name} = {self.expression(self.variables[name], 2)};" for name in draw.choices(self.assignable, k=2)
        ]
        lines += ["return s;", "}", f"FN void body{n}(const u64 *in, u64 *out) {{", f"struct Outer{n} s;"]
        self.depth = 0
        locals_ = {f"v{i}": self.type() for i in range(6)}
        self.variables = {**locals_, **members}
        for i, (name, type_) in enumerate({**locals_, **members}.items()):
            declared = "" if "." in name else f"{type_} "
            lines.append(f"{declared}{name} = {self.given(type_, i)};")
        self.assignable = [*locals_, *members]
        lines += self.statements(draw.randint(6, 12))
        at = 0
        for name, type_ in self.variables.items():
            words = self.stored(name, type_)
            lines += [f"out[{at + i}] = {word};" for i, word in enumerate(words)]
            at += len(words)
        return "\n".join([*lines, "}", f"KERNEL(k{n}, body{n})"])

    def given(self, type_: str, at: int) -> str:
        word = f"in[{at % INPUTS}]"
        if type_ in FLOATS:
            return f"make_{type_}({word})"
        high = f"(u128)in[{(at + 5) % INPUTS}] << 64 | " if type_.endswith("128") else ""
        return f"({type_})({high}{word})"

    def stored(self, name: str, type_: str) -> list[str]:
        if type_ in FLOATS:
            return [f"bits_{type_}({name})"]
        return [f"(u64){name}"] + ([f"(u64)((u128){name} >> 64)"] if type_.endswith("128") else [])


def source(seed: int, functions: int) -> str:
    """Return a source of some functions, the same for the same seed."""
    draw = random.Random(seed)
    return _whole([_Function(draw, n).text() for n in range(functions)])


def wide_arithmetic() -> str:
    """Return a source whose one kernel does everything there is to do with two unsigned and two signed __int128."""
    lines, at = [], 0
    for kind in "ui":
        type_ = f"{kind}128"
        results = [f"{name}_{type_}({x}, {y})" for name in ("div", "rem") for x, y in ("ab", "ba")]
        results += ["(u128)a * (u128)b", "(u128)a - (u128)b", "(u128)a + (u128)b", f"shl_{type_}(a, (u32)b)"]
        results += [f"shr_{type_}(a, (u32)b)", "(a < b) | (a > b) << 1 | (a == b) << 2"]
        lines.append(f"{{ {type_} a = ({type_})high_low(in), b = ({type_})high_low(in + 2); u128 x;")
        for result in results:
            lines.append(f"x = (u128)({result}); out[{at}] = (u64)x; out[{at + 1}] = (u64)(x >> 64);")
            at += 2
        lines.append("}")
    head = "FN u128 high_low(const u64 *in) { return (u128)in[1] << 64 | in[0]; }"
    return _whole([head, "FN void body0(const u64 *in, u64 *out) {", *lines, "}", "KERNEL(k0, body0)"])


def _whole(functions: list[str]) -> str:
    sizes = f"#define INPUTS {INPUTS}\n#define OUTPUTS {OUTPUTS}"
    return "\n".join([sizes, HEAD, _divisions(), *functions]) + "\n"


def inputs(seed: int) -> NDArray[np.uint64]:
    """Return words for every lane, ``(LANES, INPUTS)``: edges of integers and of both float formats, and anything."""
    draw = random.Random(seed)
    edges = [0, 1, 2, 3, 10, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 0x7F]
    edges += [0x3FF0000000000000, 0x3F800000, 0x7FF0000000000000, 0xFFF8000000000000, 0x7F800000, 0x400921FB54442D18]
    edges += [0x8000000000000000, 0x40490FDB, 0x0010000000000000, 0x00800001, 1 << 23]

    def word() -> int:
        kind = draw.random()
        if kind < 0.4:
            return draw.choice(edges)
        return draw.getrandbits(64) >> (draw.randrange(64) if kind < 0.7 else 0)

    return np.array([[word() for _ in range(INPUTS)] for _ in range(LANES)], np.uint64)
