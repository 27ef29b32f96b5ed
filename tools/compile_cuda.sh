#!/usr/bin/env bash
# Builds for sm_80 and sm_90a whatever has CUDA code of its own: trainer, C library, benches, tracer and tests, with two
# of the tests that run on both devices for all; plans a run on a GPU that is not there; and compiles a source that
# includes each header of the kernels, which are to stay usable from CUDA sources. Into build/cuda-check, where src is
# not optimised: it is compiled and hardly run. Without nvcc it says so and succeeds. Needs no GPU.
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
nvcc -std=c++20 -DNDEBUG -DXCE_WITH_CUDA -Werror all-warnings -I. -Ikernels/include \
  -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a \
  -c "$scratch/headers.cu" -o "$scratch/headers.o"

build=build/cuda-check
cmake --preset cuda -B "$build" -DCMAKE_CXX_FLAGS_RELEASE="-O0 -DNDEBUG"
targets=(xce-train xce_shared bench_loss bench_kernels core_device_test train_step_test)
known=$(cmake --build "$build" --target help)
grep -q xce_kernel_trace <<<"$known" && targets+=(xce_kernel_trace)  # where the toolkit has CUPTI
for source in tests/*/*_test_cuda.cpp tools/bench_*_cuda.cpp; do
  name=$(basename "${source%.*}")
  case $source in
    tests/*) targets+=("$(basename "$(dirname "$source")")_$name") ;;
    *) targets+=("$name") ;;
  esac
done
cmake --build "$build" --target "${targets[@]}"
"$build"/bin/xce-train configs/llama-128k.yaml data.kind=synthetic --dry-run | grep -E '^(memory|device) '
echo "compile_cuda: ${#targets[@]} programs and $(wc -w <<<"$headers") headers compile for sm_80 and sm_90a"
