#!/bin/sh
# Compiles the kernels of this folder again. The PTX is committed, so that the tests need no compiler.
set -eu
cd "$(dirname "$0")"
for kernel in wmma_gemm mma_gemm pipeline_copy barrier_ring; do
    for arch in sm_80 sm_90; do
        nvcc -ptx "-arch=$arch" --fmad=false -o "$kernel.$arch.ptx" "$kernel.cu"
    done
done
