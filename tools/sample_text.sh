#!/usr/bin/env bash
# Text from a model that was trained on the files of tools/prepare_data.sh.
#   tools/sample_text.sh RUN_OR_EXPORT --prompt TEXT      tools/sample_text.sh --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for word in "$@"; do
  case $word in -h | --help) exec python3 "$root/tools/sample_text.py" --help ;; esac
done
(cd "$root" && tools/setup.sh --data >&2)
exec "$root/.venv-data/bin/python" "$root/tools/sample_text.py" "$@"
