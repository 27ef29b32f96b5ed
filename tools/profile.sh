#!/bin/sh
# Where a training step's GPU time goes, by kernel family, beside what the hardware allows.
#
#   tools/profile.sh [--steps N] [--bin DIR] [--keep DIR] [--no-untraced] CONFIG [section.key=value ...]
#
# Trains N steps (12) in a run directory of its own and ends the process: nothing is validated, saved or exported. First
# without the tracer, for the time of a step as it is, then with it. --bin: where xce-train and xce_kernel_trace.so lie
# (build/cuda/bin); --keep: leave trace, config and report.json there. PROFILE_REPORT_OPTIONS goes to the report.
set -eu
steps=12 bin=build/cuda/bin keep='' untraced=1
usage() {
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --steps) [ $# -gt 1 ] || usage; steps=$2; shift 2 ;;
    --bin) [ $# -gt 1 ] || usage; bin=$2; shift 2 ;;
    --keep) [ $# -gt 1 ] || usage; keep=$2; shift 2 ;;
    --no-untraced) untraced=0; shift ;;
    -*) usage ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || usage
case $steps in '' | *[!0-9]*) usage ;; esac
[ "$steps" -ge 6 ] || { echo "profile.sh: --steps $steps, but 6 are needed: the first are left out" >&2; exit 2; }
tools=$(cd "$(dirname "$0")" && pwd)
trainer=$bin/xce-train library=$(cd "$bin" 2>/dev/null && pwd || true)/xce_kernel_trace.so
for file in "$trainer" "$library"; do
  [ -e "$file" ] || { echo "profile.sh: no $file: build with cmake --preset cuda, or give --bin" >&2; exit 1; }
done
work=$(mktemp -d)
pid=''
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# run NAME SIGNAL CONFIG ...: trains in $work/NAME until $steps steps are in its metrics, then ends it by SIGNAL.
run() {
  name=$1 signal=$2
  shift 2
  "$trainer" "$@" run.dir="$work/$name" run.resume=never train.steps=1000000 train.max_minutes=0 \
    eval.every=0 checkpoint.every=0 log.every=1 log.tensorboard=false >"$work/$name.log" 2>&1 &
  pid=$!
  while :; do
    done_steps=$(grep -c . "$work/$name/metrics.jsonl" 2>/dev/null || true)
    [ "${done_steps:-0}" -lt "$steps" ] || break
    if ! kill -0 "$pid" 2>/dev/null; then
      echo "profile.sh: $trainer ended before step $steps:" >&2
      tail -20 "$work/$name.log" >&2
      exit 1
    fi
    sleep 0.1
  done
  kill "-$signal" "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  pid=''
}

set -- "$@" run.device=cuda
option=''
if [ "$untraced" = 1 ]; then
  run untraced KILL "$@"
  # The median of the time_ms of all steps but the first three.
  median=$(sed -n 's/.*"time_ms":\([0-9.eE+-]*\).*/\1/p' "$work/untraced/metrics.jsonl" | tail -n +4 | sort -g |
    awk '{ at[NR] = $1 } END { print at[int((NR + 1) / 2)] }')
  option="--untraced-ms $median"
fi
export XCE_TRACE_FILE="$work/trace.txt"
CUDA_INJECTION64_PATH=$library
export CUDA_INJECTION64_PATH
run traced USR2 "$@"
unset CUDA_INJECTION64_PATH
[ -s "$work/trace.txt" ] || { echo "profile.sh: no trace was written:" >&2; tail -20 "$work/traced.log" >&2; exit 1; }
# shellcheck disable=SC2086  # options are words
python3 "$tools/profile_report.py" "$work/trace.txt" --config "$work/traced/config.resolved.yaml" \
  --json "$work/report.json" $option ${PROFILE_REPORT_OPTIONS:-}
if [ -n "$keep" ]; then
  mkdir -p "$keep"
  cp "$work/trace.txt" "$work/report.json" "$work/traced/config.resolved.yaml" "$keep"
fi
