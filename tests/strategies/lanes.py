"""Kernels in which every lane loads its operands, executes a few instructions and stores their results.

Everything travels as raw bits: a buffer per operand, one element per lane, unsigned of the type's width. Predicates are
u32, 0 or 1; in a lane, anything but 0 is true.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_PACKED = {"e4m3x2": 2, "e5m2x2": 2, "ue8m0x2": 2, "tf32": 4, "pred": 4}


@functools.cache
def width_bytes(type_: str) -> int:
    """Return the bytes of one element: ``f16x2`` is 4."""
    if type_ in _PACKED:
        return _PACKED[type_]
    bits, count = re.fullmatch(r"\D+(\d+)(?:x(\d+))?", type_).groups("1")
    return int(bits) * int(count) // 8


def raw_dtype(type_: str) -> np.dtype:
    """Return the dtype that carries the bits of a type."""
    return np.dtype(f"u{width_bytes(type_)}")


def random_bits(random: np.random.Generator, type_: str, count: int) -> np.ndarray:
    """Return any bits at all as ``count`` elements of a type."""
    return random.integers(0, 256, count * width_bytes(type_), dtype=np.uint8).view(raw_dtype(type_))


@dataclass(frozen=True, slots=True)
class LaneKernel:
    """One entry.

    Attributes:
        name: of the entry.
        sources: PTX types of the inputs, in registers ``%a0``, ``%a1``, ...
        results: PTX types of the outputs, in registers ``%d0``, ``%d1``, ... The results of a lane that leaves early,
            or that ``body`` does not write, keep what the buffer held.
        body: instructions. ``%lane`` is the index of the thread in its block (u32), ``%r0`` to ``%r9`` (b32),
            ``%rd0`` to ``%rd9`` (b64) and ``%p0`` to ``%p9`` are free.
        declarations: in front of the instructions: more registers, shared variables.
    """

    name: str
    sources: tuple[str, ...]
    results: tuple[str, ...]
    body: str
    declarations: str = ""

    def text(self) -> str:
        """Return the ``.entry``; its parameters are the source buffers, then the result buffers."""
        slots = [*self.sources, *self.results]
        params = ", ".join(f".param .u64 p{i}" for i in range(len(slots)))
        registers = [_register(f"%a{i}", type_) for i, type_ in enumerate(self.sources)]
        registers += [_register(f"%d{i}", type_) for i, type_ in enumerate(self.results)]
        loads = [line for i, type_ in enumerate(self.sources) for line in _load(i, f"%a{i}", type_)]
        first = len(self.sources)
        stores = [line for i, type_ in enumerate(self.results) for line in _store(first + i, f"%d{i}", type_)]
        lines = [
            ".reg .b32 %lane, %bits, %r<10>; .reg .b64 %base, %at, %rd<10>; .reg .pred %p<10>;",
            *registers,
            self.declarations,
            "mov.u32 %lane, %tid.x;",
            *loads,
            *self.body.strip().splitlines(),
            *stores,
            "ret;",
        ]
        body = "\n".join(f"    {line.strip()}" for line in lines if line)
        return f".visible .entry {self.name}({params})\n{{\n{body}\n}}\n"


def module(kernels: Iterable[LaneKernel | str], target: str = "sm_70", version: str = "8.0") -> str:
    """Return a translation unit of kernels and other module-scope text, in order."""
    items = [item if isinstance(item, str) else item.text() for item in kernels]
    return "\n".join([f".version {version}", f".target {target}", ".address_size 64", *items])


def _register(name: str, type_: str) -> str:
    # A register has at least 16 bits; untyped ones go with every type of their width.
    kind = "pred" if type_ == "pred" else f"b{8 * max(2, width_bytes(type_))}"
    return f".reg .{kind} {name};"


def _address(index: int, type_: str) -> list[str]:
    return [f"ld.param.u64 %base, [p{index}];", f"mad.wide.u32 %at, %lane, {width_bytes(type_)}, %base;"]


def _load(index: int, register: str, type_: str) -> list[str]:
    if type_ == "pred":
        return [*_address(index, type_), "ld.global.b32 %bits, [%at];", f"setp.ne.u32 {register}, %bits, 0;"]
    # An 8-bit load fills a wider register by its signedness.
    kind = type_ if width_bytes(type_) == 1 else f"b{8 * width_bytes(type_)}"
    return [*_address(index, type_), f"ld.global.{kind} {register}, [%at];"]


def _store(index: int, register: str, type_: str) -> list[str]:
    if type_ == "pred":
        return [*_address(index, type_), f"selp.u32 %bits, 1, 0, {register};", "st.global.b32 [%at], %bits;"]
    return [*_address(index, type_), f"st.global.b{8 * width_bytes(type_)} [%at], {register};"]
