#!/usr/bin/env python3
"""Loads the export of a finished run with transformers and compares its loss on the held-out data with the run's own.

  hf_roundtrip.py RUN TEXT               a run on bytes: its val_fraction of TEXT
  hf_roundtrip.py RUN VAL.tok            a run on tokens: the whole token file, the run's data.val
Options: --tolerance X (1e-5), --device cuda, --dtype bfloat16 (float32), --batch N windows at a time (64).
Exit status 1 above the tolerance. Run with .venv-torch (setup.sh --torch).
"""
import argparse
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F
import transformers
import yaml

import metrics


def held_out_tokens(path, config):
    data = path.read_bytes()
    if config["data"]["kind"] == "bytes":
        held_out = data[len(data) - round(len(data) * float(config["data"]["val_fraction"])):]
        return torch.frombuffer(bytearray(held_out), dtype=torch.uint8).long()
    magic, _, width, count = struct.unpack_from("<8sIIq", data)  # src/data/token_file.h
    if magic != b"XCETOKEN":
        sys.exit(f"hf_roundtrip: error: {path} is not a token file")
    types = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    ids = torch.frombuffer(bytearray(data[64:64 + width * count]), dtype=types[width]).long()
    return ids & 0xFFFF if width == 2 else ids


@torch.no_grad()
def mean_loss(model, tokens, seq_len, batch, device):
    """Every token but the first is a target once, in consecutive windows that know nothing of the window before."""
    total, count = 0.0, len(tokens) - 1
    windows = -(-count // seq_len)
    x = torch.zeros(windows * seq_len, dtype=torch.long)
    y = torch.full((windows * seq_len,), -100)
    x[:count], y[:count] = tokens[:-1], tokens[1:]
    for xs, ys in zip(x.view(windows, -1).split(batch), y.view(windows, -1).split(batch)):
        logits = model(xs.to(device)).logits.flatten(0, 1)
        for part, targets in zip(logits.split(1024), ys.to(device).flatten().split(1024)):
            total += F.cross_entropy(part.double(), targets, ignore_index=-100, reduction="sum").item()
    return total / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("held_out", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    config = yaml.safe_load((args.run / "config.resolved.yaml").read_text())
    ours = metrics.records(args.run)[-1]["val_loss"]
    tokens = held_out_tokens(args.held_out, config)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        args.run / "export", dtype=getattr(torch, args.dtype), output_loading_info=True)
    problems = {key: value for key, value in report.items() if value}
    if problems:
        sys.exit(f"hf_roundtrip: error: transformers did not take every tensor: {problems}")
    theirs = mean_loss(model.to(args.device).eval(), tokens, config["train"]["seq_len"], args.batch, args.device)
    difference = abs(theirs - ours)
    print(f"loss on {len(tokens)} held-out tokens: xce {ours:.7f}, transformers {transformers.__version__} "
          f"({args.dtype}, {args.device}) {theirs:.7f}, difference {difference:.1e} of {args.tolerance:.0e}")
    return 0 if difference <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
