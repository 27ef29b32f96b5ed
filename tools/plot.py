#!/usr/bin/env python3
"""Draws the loss of one or more runs against the tokens they have seen, from metrics.jsonl, as a PNG.

    tools/plot.py RUN_DIR [RUN_DIR ...] [-o FILE.png]

Each run has one colour: its training loss as it is (faint) and smoothed, its validation loss as dots. Where runs
measured bits per byte, a second axis at the right shows them. Without -o the file is loss.png in the first run's
directory.
"""

import argparse
import itertools
import json
import math
import sys
from pathlib import Path

SMOOTHING_SHARE = 0.02  # of a run's steps: the window of the smoothed line


class PlotError(Exception):
    """What is wrong with the input; the message is for people."""


def read_metrics(run_dir):
    """The records of a run in order. A torn last line, as a killed run leaves it, is left out."""
    path = Path(run_dir) / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise PlotError(f"{path}: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            record["tokens"], record["loss"]  # both are needed
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                break
            raise PlotError(f"{path}:{number}: not a metrics record") from error
        records.append(record)
    if not records:
        raise PlotError(f"{path}: no steps yet")
    return records


def series(records, key):
    """(tokens, values) of the records that have the key; a null, which stands for NaN or infinity, leaves a gap."""
    points = [(r["tokens"], math.nan if r[key] is None else r[key]) for r in records if key in r]
    return [x for x, _ in points], [y for _, y in points]


def smoothed(values):
    """Mean over the steps around each, as many on either side (a one-sided mean would lag); gaps do not count."""
    reach = round(SMOOTHING_SHARE * len(values) / 2)
    sums = [0.0, *itertools.accumulate(0.0 if math.isnan(value) else value for value in values)]
    counts = [0, *itertools.accumulate(not math.isnan(value) for value in values)]
    result = []
    for index in range(len(values)):
        sides = min(reach, index, len(values) - 1 - index)
        begin, end = index - sides, index + sides + 1
        count = counts[end] - counts[begin]
        result.append((sums[end] - sums[begin]) / count if count else math.nan)
    return result


def bits_per_nat(runs):
    """Bits per byte for each nat of loss if all runs that measured agree (they share a tokenizer), else None."""
    ratios = [r["bits_per_byte"] / r["val_loss"] for records in runs for r in records
              if r.get("bits_per_byte") and r.get("val_loss")]
    agree = ratios and max(ratios) < 1.01 * min(ratios)
    return sum(ratios) / len(ratios) if agree else None


def draw(names, runs, output):
    try:
        import matplotlib
    except ImportError as error:
        requirements = Path(__file__).with_name("requirements.txt")
        raise PlotError(f"matplotlib is not installed: python3 -m pip install -r {requirements}") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), dpi=120, layout="constrained")
    for index, (name, records) in enumerate(zip(names, runs)):
        color = f"C{index}"
        tokens, loss = series(records, "loss")
        axes.plot(tokens, loss, color=color, alpha=0.25, linewidth=0.8)
        axes.plot(tokens, smoothed(loss), color=color, linewidth=1.5, label=f"{name}: training")
        tokens, loss = series(records, "val_loss")
        if tokens:
            axes.plot(tokens, loss, color=color, marker="o", markersize=5, linestyle="--", linewidth=0.8,
                      markeredgecolor="black", label=f"{name}: validation")
    axes.set_xlabel("tokens")
    axes.set_ylabel("loss, nats per token")
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend()
    ratio = bits_per_nat(runs)
    if ratio:
        right = axes.secondary_yaxis("right", functions=(lambda nats: nats * ratio, lambda bits: bits / ratio))
        right.set_ylabel("bits per byte")
    figure.savefig(output, format="png")


def main(arguments):
    parser = argparse.ArgumentParser(description="Draws loss against tokens from the metrics of runs, as a PNG.")
    parser.add_argument("run_dir", nargs="+", help="a run's directory, which holds metrics.jsonl")
    parser.add_argument("-o", "--output", metavar="FILE.png", help="default: loss.png in the first run's directory")
    options = parser.parse_args(arguments)
    output = Path(options.output) if options.output else Path(options.run_dir[0]) / "loss.png"
    try:
        draw(options.run_dir, [read_metrics(run_dir) for run_dir in options.run_dir], output)
    except PlotError as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"plot.py: {output}: {error.strerror}", file=sys.stderr)
        return 6
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
