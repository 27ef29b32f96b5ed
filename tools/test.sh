#!/usr/bin/env bash
# Sets up, builds everything for the CPU and runs all tests.   tools/test.sh [ctest options, as -R rmsnorm]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh
cmake --preset cpu
cmake --build --preset cpu
ctest --preset cpu -j 2 "$@"
