#!/usr/bin/env bash
# Compiles for sm_80 and sm_90a every .cu file, and one that includes each header of the kernels: they are to stay
# usable from CUDA sources. Without nvcc it says so and succeeds. Needs no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v nvcc >/dev/null; then
  echo "compile_cuda: no nvcc here, nothing compiled"
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# kernels/cpu is left out: words of the CPU's own kernels, in the host compiler's vector extensions.
headers=$(find kernels -name '*.h' -not -path 'kernels/cpu/*' | sort)
for header in $headers; do echo "#include \"$header\""; done >"$scratch/headers.cu"

compile() {  # SOURCE
  nvcc -std=c++20 -DNDEBUG -DXCE_WITH_CUDA -Werror all-warnings -I. -Ikernels/include \
    -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -c "$1" -o "$2/$(basename "$1").o"
}
export -f compile
sources=$(echo "$scratch/headers.cu"; find kernels src -name '*.cu' | sort)
xargs -P "$(nproc)" -I{} bash -c 'compile {} '"$scratch" <<<"$sources"
echo "compile_cuda: $(wc -l <<<"$sources") sources and $(wc -w <<<"$headers") headers compile for sm_80 and sm_90a"
