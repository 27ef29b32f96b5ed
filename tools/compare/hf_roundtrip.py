#!/usr/bin/env python3
"""Loads the export of a finished run with transformers and compares its loss on the held-out bytes with the run's own.

  hf_roundtrip.py RUN TEXT [TOLERANCE]   exit status 1 above TOLERANCE (1e-5); run with .venv-torch (setup.sh --torch)
"""
import pathlib
import sys

import torch
import torch.nn.functional as F
import transformers
import yaml

import metrics


@torch.no_grad()
def mean_loss(model, tokens, seq_len, batch=64):
    """Every token but the first is a target once, in consecutive windows that know nothing of the window before."""
    total, count = 0.0, len(tokens) - 1
    windows = -(-count // seq_len)
    x = torch.zeros(windows * seq_len, dtype=torch.long)
    y = torch.full((windows * seq_len,), -100)
    x[:count], y[:count] = tokens[:-1], tokens[1:]
    for xs, ys in zip(x.view(windows, -1).split(batch), y.view(windows, -1).split(batch)):
        logits = model(xs).logits.flatten(0, 1)
        total += F.cross_entropy(logits.double(), ys.flatten(), ignore_index=-100, reduction="sum").item()
    return total / count


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    run, text = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_bytes()
    tolerance = float(sys.argv[3]) if len(sys.argv) == 4 else 1e-5
    config = yaml.safe_load((run / "config.resolved.yaml").read_text())
    ours = metrics.records(run)[-1]["val_loss"]
    held_out = text[len(text) - round(len(text) * float(config["data"]["val_fraction"])):]
    tokens = torch.frombuffer(bytearray(held_out), dtype=torch.uint8).long()
    model, report = transformers.AutoModelForCausalLM.from_pretrained(run / "export", dtype=torch.float32,
                                                                      output_loading_info=True)
    problems = {key: value for key, value in report.items() if value}
    if problems:
        sys.exit(f"hf_roundtrip: error: transformers did not take every tensor: {problems}")
    theirs = mean_loss(model.eval(), tokens, config["train"]["seq_len"])
    difference = abs(theirs - ours)
    print(f"loss on {len(tokens)} held-out bytes: xce {ours:.7f}, "
          f"transformers {transformers.__version__} {theirs:.7f}, difference {difference:.1e} of {tolerance:.0e}")
    return 0 if difference <= tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
