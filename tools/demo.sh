#!/usr/bin/env bash
# From a bare machine to a trained model: sets up, builds, fetches the text, trains configs/demo-cpu.yaml (two minutes
# at most on two cores), then prints what came out. A second call only trains, in a fresh run directory.
#   tools/demo.sh [section.key=value ...]   words that override keys of the configuration, but for run.dir and data.*:
#                                           the report at the end needs these
#   tools/demo.sh --help
set -euo pipefail
refuse() {
  printf 'demo: error: %s\n' "$*" >&2
  exit 2
}
for word in "$@"; do
  case $word in
    -h | --help)
      sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    run.dir=* | data.*=*) refuse "$word: the report at the end needs the demo's own run.dir and data.*" ;;
    [a-z]*.*=*) ;;
    *) refuse "$word: expected section.key=value or --help" ;;
  esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stage() { printf '\n[%3d s] %s\n' "$SECONDS" "$*"; }
trap 'printf "\ndemo: stopped after %d s in: %s\n" "$SECONDS" "$BASH_COMMAND" >&2' ERR

stage "set up"
tools/setup.sh

stage "build into build/cpu"
[ -e build/cpu/build.ninja ] || cmake --preset cpu
cmake --build --preset cpu --target xce-train

stage "fetch the text"
tools/fetch_text.sh

run=runs/demo-$(date +%Y%m%d-%H%M%S)
stage "train into $run"
xce=build/cpu/bin/xce-train
$xce configs/demo-cpu.yaml "run.dir=$run" "$@"

stage "results"
.venv/bin/python tools/plot.py "$run"
python3 tools/demo_report.py "$run" data/bible.txt
printf '\nText that the model goes on with after "In the beginning":\n\n'
$xce --sample "$run/export" --prompt "In the beginning"
echo
stage "done"
