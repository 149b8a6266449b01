#!/bin/sh
# Compiles the kernels of this folder again. The PTX is committed, so that the tests need no compiler.
set -eu
cd "$(dirname "$0")"
compile() {
    nvcc -ptx "-arch=$2" -o "$1.$2.ptx" "$1.cu"
}
for arch in sm_75 sm_80 sm_90; do compile vector_add "$arch"; done
for arch in sm_80 sm_90; do compile tensor "$arch"; done
compile reduce sm_75
compile functions sm_80
compile cluster sm_90
compile printing sm_75
