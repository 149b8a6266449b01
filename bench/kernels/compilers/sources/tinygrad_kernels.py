"""Up to three kernels of tinygrad's PTX renderer for each expression. Usage: tinygrad_kernels.py FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["DEV"] = "NULL"  # a device without memory

from tinygrad import Tensor, dtypes
from tinygrad.codegen import to_program
from tinygrad.helpers import Target, ansistrip
from tinygrad.renderer.ptx import PTXRenderer
from tinygrad.uop.ops import Ops


def tensor(*shape: int, dtype: object = dtypes.float32) -> Tensor:
    """Return a tensor without contents."""
    return Tensor.empty(*shape, dtype=dtype)


EXPRESSIONS = {
    "gelu": lambda: tensor(4096).gelu(),
    "softmax": lambda: tensor(16, 512).softmax(),
    "layernorm": lambda: tensor(16, 256).layernorm(),
    "sum": lambda: tensor(64, 1024).sum(),
    "matmul": lambda: tensor(64, 64) @ tensor(64, 64),
    "matmul_f16": lambda: tensor(64, 64, dtype=dtypes.half).matmul(
        tensor(64, 64, dtype=dtypes.half), dtype=dtypes.float
    ),
    "conv": lambda: tensor(1, 4, 16, 16).conv2d(tensor(8, 4, 3, 3)).relu(),
    "scan": lambda: tensor(512, dtype=dtypes.int).cumsum(),
    "sort": lambda: tensor(64, dtype=dtypes.int).sort()[0],
    "gather": lambda: tensor(256, 16)[tensor(64, dtype=dtypes.int)],
    "random": lambda: Tensor.rand(1024),
    "attention": lambda: tensor(1, 2, 32, 32).scaled_dot_product_attention(tensor(1, 2, 32, 32), tensor(1, 2, 32, 32)),
    "int64_division": lambda: tensor(512, dtype=dtypes.int64) // tensor(512, dtype=dtypes.int64),
}

if __name__ == "__main__":
    renderer = PTXRenderer(Target("CUDA", "PTX", "sm_80"))
    for name, expression in EXPRESSIONS.items():
        calls = [call.src[0] for call in expression().schedule_linear().src if call.src[0].op is Ops.SINK][:3]
        for index, call in enumerate(calls):
            program = to_program(call, renderer)
            number = f"_{index}" if len(calls) > 1 else ""
            Path(sys.argv[1], f"tinygrad-{name}{number}.ptx").write_bytes(program.src[3].arg)
            launch = program.arg
            print(f"tinygrad-{name}{number}: {ansistrip(launch.name)}, {launch.global_size}, {launch.local_size}")
