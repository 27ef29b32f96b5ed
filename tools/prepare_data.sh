#!/usr/bin/env bash
# Makes token files for configs/llama-128k.yaml, or from any text: installs the tokenizer into .venv-data and builds the
# program that writes token files, where they are missing, then calls prepare_data.py.   tools/prepare_data.sh --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for word in "$@"; do
  case $word in -h | --help) exec python3 "$root/tools/prepare_data.py" --help ;; esac
done
(
  cd "$root"
  tools/setup.sh --data
  [ -e build/cpu/build.ninja ] || cmake --preset cpu
  cmake --build --preset cpu --target pack_tokens
) >&2
exec "$root/.venv-data/bin/python" "$root/tools/prepare_data.py" "$@"
