#!/usr/bin/env python3
"""Prints what a run on a text reached: bits per held-out byte beside gzip's and xz's on the same bytes, and its files.

  demo_report.py RUN TEXT   the run's data.val_fraction says how much of TEXT was held out, at its end
"""
import gzip
import json
import lzma
import pathlib
import re
import sys


def last_value(metrics, key):
    """The last line of a metrics file that has the key, as (line, value)."""
    found = None
    for line in metrics.read_text().splitlines():
        record = json.loads(line)
        if key in record:
            found = record, record[key]
    if found is None:
        sys.exit(f"demo_report: error: no line of {metrics} has {key}")
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    run, text = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_bytes()
    fraction = re.search(r"^  val_fraction: (\S+)$", (run / "config.resolved.yaml").read_text(), re.MULTILINE)
    held_out = text[len(text) - round(len(text) * float(fraction.group(1))):]
    record, bits = last_value(run / "metrics.jsonl", "bits_per_byte")
    rows = [("model", bits)]
    rows += [(name, 8 * len(pack(held_out)) / len(held_out)) for name, pack in (
        ("xz -9", lambda data: lzma.compress(data, preset=9)),
        ("gzip -9", lambda data: gzip.compress(data, 9)))]
    print(f"Bits per byte on the {len(held_out)} held-out bytes, after training on {record['tokens']} bytes:\n")
    for name, value in rows:
        print(f"  {name:8} {value:5.3f}")
    print("\nThe compressors see the held-out bytes alone; the model has seen the text before them.\n")
    checkpoints = sorted((run / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime)
    files = [("plot", path) for path in sorted(run.glob("*.png"))]
    files += [("metrics", run / "metrics.jsonl"), ("export", run / "export")]
    files += [("checkpoint", path) for path in checkpoints[-1:]]
    for name, path in files:
        print(f"  {name:10} {path}")


if __name__ == "__main__":
    main()
