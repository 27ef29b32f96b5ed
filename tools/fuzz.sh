#!/usr/bin/env bash
# Calls of the C library made of random bytes (tests/capi/fuzz_args.cpp), with AddressSanitizer and
# UndefinedBehaviorSanitizer, on one core.   tools/fuzz.sh [EXECUTIONS | --seconds S]; a million when nothing is said:
# half an hour. A finding ends it with status 1 and its input in build/fuzz/findings; given to
# build/fuzz/bin/capi_fuzz_args it happens again. What was learnt stays in build/fuzz/corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit=-runs=${1:-1000000}
[ "${1:-}" != --seconds ] || limit=-max_total_time=${2:?--seconds needs a number}
command -v clang++ >/dev/null || tools/setup.sh --dev
cmake --preset fuzz
cmake --build --preset fuzz
mkdir -p build/fuzz/corpus build/fuzz/findings
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=allocator_may_return_null=1

build/fuzz/bin/capi_fuzz_args "$limit" -max_len=512 -timeout=20 -print_final_stats=1 -verbosity=0 \
  -artifact_prefix=build/fuzz/findings/ build/fuzz/corpus

