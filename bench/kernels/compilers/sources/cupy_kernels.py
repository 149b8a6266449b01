"""Kernels that CuPy writes for its operations, compiled by NVRTC without a GPU. Usage: cupy_kernels.py FOLDER."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import cupy
import cupyx
import numpy as np
from cupy._core import _kernel, _reduction, core
from cupy._core._kernel import _ArgInfo, _TypeMap
from cupy._math import misc
from cupy._sorting import search
from cupy._statistics import histogram
from cupy.cuda import compiler
from cupyx import jit
from cupyx.jit import _compile as jit_compile
from cupyx.jit import _cuda_types as jit_types

ARRAY, INDEXER, SCALAR = 1, 2, 3


def array(kind: str, ndim: int = 1, *, contiguous: bool = True, narrow: bool = True) -> _ArgInfo:
    """Return the description of an array parameter; ``narrow`` ones are indexed with 32 bits."""
    return _ArgInfo(ARRAY, cupy.ndarray, np.dtype(kind), ndim, contiguous, narrow)


def scalar(kind: str) -> _ArgInfo:
    """Return the description of a parameter by value."""
    return _ArgInfo(SCALAR, cupy._core._scalar.CScalar, np.dtype(kind), 0, True, True)


def indexer(ndim: int = 1, *, narrow: bool = True) -> _ArgInfo:
    """Return the description of an index parameter."""
    return _ArgInfo(INDEXER, cupy._core._carray.Indexer, None, ndim, True, narrow)


def elementwise(kernel: cupy.ElementwiseKernel, arguments: list[_ArgInfo], kinds: dict[str, str]) -> str:
    """Return the source of an elementwise kernel."""
    types = _TypeMap(tuple((name, np.dtype(kind).type) for name, kind in kinds.items()))
    return _kernel._get_elementwise_kernel_code(
        tuple(arguments), types, kernel.params, kernel.operation, kernel.name, kernel.preamble
    )


def reduction(kernel: cupy.ReductionKernel, arguments: list[_ArgInfo], kinds: dict[str, str]) -> str:
    """Return the source of a reduction kernel."""
    pairs = [(name, np.dtype(kind).type) for name, kind in kinds.items()]
    types = _TypeMap((*pairs, ("IndexT", np.int32)))
    return _reduction._ReductionKernel_get_cached_function_code(
        kernel.nin, kernel.nout, kernel._params, tuple(arguments), types, kernel.name, 512, kernel.reduce_type,
        kernel.identity, kernel.map_expr, kernel.reduce_expr, kernel.post_map_expr, kernel.preamble, (),
    )  # fmt: skip


def source_of(module: str, name: str) -> str:
    """Return a string of a module that cannot be imported without cuBLAS."""
    tree = ast.parse(Path(cupyx.__file__).parent.joinpath("scipy", module).read_text(encoding="utf-8"))
    constants = {
        each.targets[0].id: each.value.value
        for each in tree.body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
    }
    return constants[name]


def jitted(function: object, types: list[object]) -> str:
    """Return the source that `cupyx.jit` makes of a Python function."""
    made = jit_compile.transpile(function, ['extern "C"', "__global__"], "cuda", tuple(types), jit_types.void)
    return made.code


def compiled(code: str, names: tuple[str, ...] = ()) -> str:
    """Return the PTX of a source, with CuPy's own headers and options, and the templates of those names."""
    options = core.assemble_cupy_compiler_options(
        ("--std=c++17", "-ftz=true", "-arch=compute_80", "--device-as-default-execution-space")
    )
    header = "".join(f"#include <{name}>\n" for name in core._cupy_header_list)
    program = compiler._NVRTCProgram(header + code, "kernel.cu", (), (), names, "ptx")
    ptx, _ = program.compile(options)
    return ptx.decode("ascii").rstrip("\0")


def block_sums(x, out, n):
    partial = jit.shared_memory(np.float32, 256)
    t = jit.threadIdx.x
    total = np.float32(0)
    for i in range(jit.blockIdx.x * jit.blockDim.x + t, n, jit.gridDim.x * jit.blockDim.x):
        total += x[i]
    partial[t] = total
    jit.syncthreads()
    half = np.uint32(128)
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        jit.syncthreads()
        half = half // np.uint32(2)
    if t == 0:
        jit.atomic_add(out, 0, partial[0])


SQUARES = cupy.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared_difference")
ROTATE = cupy.ElementwiseKernel("T x, T y", "T z", "z = exp(x) * y / (x + T(1))", "rotate")
NORM = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
LARGEST = cupy.ReductionKernel("T x", "T y", "x", "max(a, b)", "y = a", "-1e38", "largest")
TYPED = {"T": "f4", "S": "f4", "U": "i8", "Y": "i8"}


def array_type(kind: str, ndim: int = 1) -> object:
    """Return the type of a contiguous array in `cupyx.jit`."""
    return jit_types.CArray(np.dtype(kind), ndim, True, True)


def texts() -> dict[str, str]:
    """Return every PTX text by its name."""
    one = array("f4")
    wide = array("f4", 3, contiguous=False, narrow=False)
    return {
        "elementwise": compiled(elementwise(SQUARES, [one, one, one, indexer()], TYPED)),
        "elementwise_strided": compiled(elementwise(SQUARES, [wide, wide, wide, indexer(3, narrow=False)], TYPED)),
        "elementwise_f16": compiled(elementwise(SQUARES, [array("f2")] * 3 + [indexer()], {"T": "f2"})),
        "elementwise_complex": compiled(elementwise(ROTATE, [array("c8")] * 3 + [indexer()], {"T": "c8"})),
        "histogram": compiled(
            elementwise(histogram._histogram_kernel, [one, one, scalar("i4"), array("i8"), indexer()], TYPED)
        ),
        "searchsorted": compiled(
            elementwise(
                search._searchsorted_kernel,
                [one, one, scalar("i8"), scalar("?"), scalar("?"), array("i8"), indexer()],
                TYPED,
            )
        ),
        "reduce": compiled(reduction(NORM, [one, array("f4", 0), indexer(), indexer(0), scalar("i4")], TYPED)),
        "reduce_rows": compiled(reduction(LARGEST, [array("f4", 2), one, indexer(2), indexer(1), scalar("i4")], TYPED)),
        "dot": compiled(
            reduction(
                misc._dot_kernel, [array("f8")] * 2 + [array("f8", 0), indexer(), indexer(0), scalar("i4")], {"T": "f8"}
            )
        ),
        "iir": compiled(
            source_of("signal/_iir_utils.py", "IIR_KERNEL"), ("first_pass_iir<float>", "correct_carries<float>")
        ),
        "kdtree": compiled(
            source_of("spatial/_kdtree_utils.py", "KD_KERNEL"), ("update_tags", "compute_bounds<float>")
        ),
        "knn": compiled(source_of("spatial/_kdtree_utils.py", "KNN_KERNEL"), ("knn<float>",)),
        "jit_sum": compiled(jitted(block_sums, [array_type("f4"), array_type("f4"), jit_types.Scalar(np.dtype("i4"))])),
    }


if __name__ == "__main__":
    for name, ptx in texts().items():
        Path(sys.argv[1], f"cupy-{name}.ptx").write_text(ptx, encoding="ascii")
