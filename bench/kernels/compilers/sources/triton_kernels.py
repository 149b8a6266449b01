"""Kernels in Triton, compiled without a GPU. Usage: triton_kernels.py FOLDER."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

os.environ |= {"TRITON_ALWAYS_COMPILE": "1", "TRITON_DEFAULT_FP_FUSION": "1"}

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def gelu(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    cube = 0.7978845608 * (v + 0.044715 * v * v * v)
    tanh = 2.0 * tl.sigmoid(2.0 * cube) - 1.0
    tl.store(out + i, (0.5 * v * (1.0 + tanh)).to(tl.bfloat16), mask=i < n)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, mask=i < columns, other=-float("inf"))
    power = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + i, power / tl.sum(power, axis=0), mask=i < columns)


@triton.jit
def layernorm(x, gain, bias, out, mean_out, scale_out, stride, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        i = first + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + i, mask=i < columns, other=0.0)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        i = first + tl.arange(0, BLOCK)
        centred = tl.where(i < columns, tl.load(x + row * stride + i, mask=i < columns, other=0.0) - mean, 0.0)
        squares += centred * centred
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + epsilon)
    tl.store(mean_out + row, mean)
    tl.store(scale_out + row, scale)
    for first in range(0, columns, BLOCK):
        i = first + tl.arange(0, BLOCK)
        mask = i < columns
        v = (tl.load(x + row * stride + i, mask=mask) - mean) * scale
        tl.store(out + row * stride + i, v * tl.load(gain + i, mask=mask) + tl.load(bias + i, mask=mask), mask=mask)


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    pa = a + rows[:, None] * k + inner[None, :]
    pb = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros([BM, BN], tl.int32 if a.dtype.element_ty == tl.int8 else tl.float32)
    for first in range(0, k, BK):
        va = tl.load(pa, mask=(rows[:, None] < m) & (first + inner[None, :] < k), other=0.0)
        vb = tl.load(pb, mask=(first + inner[:, None] < k) & (columns[None, :] < n), other=0.0)
        total = tl.dot(va, vb, total)
        pa += BK
        pb += BK * n
    pc = c + rows[:, None] * n + columns[None, :]
    tl.store(pc, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def attention(q, k, v, out, length, scale, BM: tl.constexpr, BN: tl.constexpr, DIM: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * length * DIM
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    dim = tl.arange(0, DIM)
    query = tl.load(q + head + rows[:, None] * DIM + dim[None, :])
    largest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, DIM], tl.float32)
    for first in range(0, length, BN):
        keys = first + tl.arange(0, BN)
        key = tl.load(k + head + keys[None, :] * DIM + dim[:, None])
        score = tl.dot(query, key) * (scale * 1.44269504)
        above = tl.maximum(largest, tl.max(score, axis=1))
        keep = tl.exp2(largest - above)
        weight = tl.exp2(score - above[:, None])
        total = total * keep + tl.sum(weight, axis=1)
        value = tl.load(v + head + keys[:, None] * DIM + dim[None, :])
        sums = tl.dot(weight.to(tl.float16), value, sums * keep[:, None])
        largest = above
    tl.store(out + head + rows[:, None] * DIM + dim[None, :], (sums / total[:, None]).to(tl.float16))


@triton.jit
def scan(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.cumsum(tl.load(x + i, mask=i < n, other=0), axis=0), mask=i < n)


@triton.jit
def sort(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.sort(tl.load(x + i)))


@triton.jit
def histogram(x, bins, n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + i, mask=i < n, other=0), COUNT, mask=i < n)
    tl.atomic_add(bins + tl.arange(0, COUNT), counts)


@triton.jit
def reduce(x, out, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = first + tl.arange(0, BLOCK)
        total += tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_add(out, tl.sum(total, axis=0))


@triton.jit
def argmax(x, out, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    tl.store(out + row, tl.argmax(tl.load(x + row * columns + i, mask=i < columns, other=-float("inf")), axis=0))


@triton.jit
def dropout(x, out, n, rate, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.where(tl.rand(seed, i) > rate, v / (1 - rate), 0.0), mask=i < n)


@triton.jit
def embedding(index, table, out, width, BLOCK: tl.constexpr):
    row = tl.load(index + tl.program_id(0)).to(tl.int64)
    tl.device_assert(row >= 0, "a negative index")
    i = tl.arange(0, BLOCK)
    v = tl.load(table + row * width + i, mask=i < width, eviction_policy="evict_last")
    tl.store(out + tl.program_id(0) * width + i, v, mask=i < width, eviction_policy="evict_first")


@triton.jit
def lock(x, out, mutex, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mine = tl.load(x + tl.program_id(0) * BLOCK + i)
    while tl.atomic_cas(mutex, 0, 1) == 1:
        pass
    tl.store(out + i, tl.maximum(tl.load(out + i), mine))
    tl.debug_barrier()
    tl.atomic_xchg(mutex, 0)


@dataclass(frozen=True)
class Text:
    """One compilation.

    Attributes:
        name: of the file.
        types: of the parameters that are not constants, in their order.
        unaligned: parameters that need not be divisible by 16.
        options: of the compiler.
    """

    name: str
    kernel: object
    types: str
    constants: dict[str, int]
    unaligned: tuple[str, ...] = ()
    target: int = 80
    options: dict[str, object] = field(default_factory=dict)


TEXTS = (
    Text("add", add, "*fp32 *fp32 *fp32 i32", {"BLOCK": 1024}),
    Text("add_unaligned", add, "*fp32 *fp32 *fp32 i32", {"BLOCK": 256}, ("n", "x")),
    Text("add_sm90", add, "*fp16 *fp16 *fp16 i32", {"BLOCK": 1024}, target=90),
    Text("gelu_bf16", gelu, "*bf16 *bf16 i32", {"BLOCK": 1024}),
    Text("softmax", softmax, "*fp32 *fp32 i32 i32", {"BLOCK": 1024}),
    Text("layernorm", layernorm, "*fp32 *fp32 *fp32 *fp32 *fp32 *fp32 i32 i32 fp32", {"BLOCK": 256}),
    Text("matmul_f16", matmul, "*fp16 *fp16 *fp16 i32 i32 i32", {"BM": 64, "BN": 64, "BK": 32}),
    Text("matmul_tf32", matmul, "*fp32 *fp32 *fp32 i32 i32 i32", {"BM": 32, "BN": 32, "BK": 16}, ("m", "n", "k")),
    Text("matmul_s8", matmul, "*i8 *i8 *i32 i32 i32 i32", {"BM": 32, "BN": 32, "BK": 32}),
    Text("matmul_sm90", matmul, "*fp16 *fp16 *fp16 i32 i32 i32", {"BM": 64, "BN": 64, "BK": 64}, target=90),
    Text("attention", attention, "*fp16 *fp16 *fp16 *fp16 i32 fp32", {"BM": 64, "BN": 32, "DIM": 64}),
    Text("scan", scan, "*i32 *i32 i32", {"BLOCK": 1024}),
    Text("sort", sort, "*i32 *i32", {"BLOCK": 256}),
    Text("histogram", histogram, "*i32 *i32 i32", {"COUNT": 256, "BLOCK": 1024}),
    Text("reduce", reduce, "*fp32 *fp32 i32", {"BLOCK": 1024}),
    Text("argmax", argmax, "*fp32 *i32 i32", {"BLOCK": 512}),
    Text("dropout", dropout, "*fp32 *fp32 i32 fp32 i32", {"BLOCK": 512}),
    Text("embedding", embedding, "*i64 *fp32 *fp32 i32", {"BLOCK": 128}),
    Text("embedding_assert", embedding, "*i64 *fp32 *fp32 i32", {"BLOCK": 128}, options={"debug": True}),
    Text("lock", lock, "*fp32 *fp32 *i32", {"BLOCK": 256}),
)


def compile_text(text: Text) -> tuple[str, str]:
    """Return the PTX of one kernel, and how it is launched."""
    names = text.kernel.arg_names
    types = iter(text.types.split())
    signature = {name: "constexpr" if name in text.constants else next(types) for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name not in text.unaligned and (signature[name] == "i32" or signature[name].startswith("*"))
    }
    source = ASTSource(text.kernel, signature=signature, constexprs=text.constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", text.target, 32), options=text.options)
    return made.asm["ptx"], f"{made.metadata.num_warps} warps, {made.metadata.shared} shared bytes"


if __name__ == "__main__":
    for function in (*vars(tl.standard).values(), *vars(tl.random).values(), *list(globals().values())):
        if isinstance(function, triton.JITFunction):
            function.file_name = Path(function.file_name).name  # it is written into the text
    for each in TEXTS:
        ptx, launch = compile_text(each)
        Path(sys.argv[1], f"triton-{each.name}.ptx").write_text(ptx, encoding="ascii")
        print(f"triton-{each.name}: {launch}")
