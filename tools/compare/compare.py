#!/usr/bin/env python3
"""Trains configs/demo-cpu.yaml with xce-train and the same model with compiled PyTorch, on the same two cores.

  compare.py XCE_TRAIN TEXT RUN [--rounds 3] [--seconds 20]

First the whole demo with each, for bits per byte after the same time; then short rounds in turns, for tokens per
second: both sides see the same neighbours, and the ratio of the medians is what counts.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import metrics

HERE = pathlib.Path(__file__).resolve().parent


def run_xce(args, directory, *overrides):
    command = [args.xce_train, HERE.parents[1] / "configs" / "demo-cpu.yaml", f"run.dir={directory}",
               f"data.train={args.text}", "run.threads=2", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"tokens_per_s": metrics.tokens_per_s(directory), "parameters": metrics.parameters(directory),
            "bits_per_byte": metrics.records(directory)[-1]["bits_per_byte"]}


def run_torch(args, reference, seconds):
    command = [sys.executable, HERE / "torch_llama.py", reference, args.text, str(seconds)]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xce_train", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)  # the trainers inherit it

    full = args.run / "full"
    xce = run_xce(args, full)
    seconds = metrics.training_seconds(full)
    torch = run_torch(args, full, seconds)
    if xce["parameters"] != torch["parameters"]:
        sys.exit(f"compare: error: xce has {xce['parameters']} parameters, PyTorch {torch['parameters']}")
    print(f"{xce['parameters']} parameters, cores {cores}, PyTorch {torch['torch']} compiled\n")
    print(f"after {seconds:.0f} s of training: xce {xce['bits_per_byte']:.3f} bits/byte, "
          f"PyTorch {torch['bits_per_byte']:.3f} bits/byte\n", flush=True)

    print(f"tokens/s in rounds of {args.seconds:.0f} s:   xce    PyTorch   ratio")
    speeds = []
    for number in range(1, args.rounds + 1):
        ours = run_xce(args, args.run / f"round-{number}", f"train.max_minutes={args.seconds / 60}")["tokens_per_s"]
        theirs = run_torch(args, full, args.seconds)["tokens_per_s"]
        speeds.append((ours, theirs))
        print(f"  round {number}:{ours:22.0f}{theirs:11.0f}{ours / theirs:8.2f}", flush=True)
    ours, theirs = (statistics.median(column) for column in zip(*speeds))
    print(f"  median: {ours:22.0f}{theirs:11.0f}{ours / theirs:8.2f}")


if __name__ == "__main__":
    main()
