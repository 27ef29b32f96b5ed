#!/usr/bin/env bash
# xce-train beside compiled PyTorch: the demo's model on the CPU, two threads, in one run of about ten minutes.
# PyTorch goes into .venv-torch: 3 GB to download, 6 GB on disk.   tools/compare_torch.sh [--rounds N] [--seconds S]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --torch
cmake --preset cpu
cmake --build --preset cpu --target xce-train
tools/fetch_text.sh
run=runs/compare-$(date +%Y%m%d-%H%M%S)
.venv-torch/bin/python tools/compare/compare.py build/cpu/bin/xce-train data/bible.txt "$run" "$@"
.venv-torch/bin/python tools/compare/hf_roundtrip.py "$run/full" data/bible.txt
