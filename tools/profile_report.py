#!/usr/bin/env python3
"""Where a step's GPU time goes, by kernel family, from a trace that xce_kernel_trace wrote.

  profile_report.py TRACE [--config config.resolved.yaml] [--json FILE] ...

A step is the stretch from one launch of the once-a-step kernel (--step-kernel) to the next: a whole step, though it
begins in the middle of one. The first --skip are left out, and those with another number of kernels than most have
(validation, a capture). In a program without such a kernel the whole trace is one step. With --config each family
stands beside the time that its work would take at the ceiling's rate (tools/profile_ceilings.py has the formulas).
Kernels that no pattern knows are the family "other" and are always listed by name.
"""
import argparse
import bisect
import collections
import json
import re
import sys

from profile_ceilings import Model, ceilings, read_config

GAPS = "gaps"
# (family, pattern in the demangled name); the first that matches counts.
FAMILIES = [(family, re.compile(pattern)) for family, pattern in (
    ("communication", r"^nccl"),
    # cuDNN runs nothing else here; its products are called sdpa, the passes around them compute_dot_do_o, convert_dq.
    ("attention", r"(?i)sdpa|fmha|flash|attention|cudnn|compute_dot_do_o|convert_dq"),
    ("loss", r"DeviceRows<|xce::.*::(loss_count|count_kernel|sum_kernel|from_statistics)[<(]|xce::LossMergeStatistics"
             r"|xce::.*(cross_entropy|row_loss|row_statistics|row_gradients)"),
    ("optimizer", r"\(xce::AdamW\)|\(xce::StepControl\)|xce::.*::block_sums<|xce::.*::total\(|xce::Norm2"),
    ("embedding", r"xce::Embedding(Forward|Backward)"),
    ("rmsnorm", r"xce::\w*RmsNorm|xce::.*::add_partials<"),
    ("swiglu", r"xce::Swiglu(Forward|Backward)"),
    ("rope", r"\(xce::Rope\b"),
    ("elementwise", r"xce::.*::(add|convert|fill_kernel)<|\(xce::TakeSlot\)"),
    # cuBLAS: nvjet on Hopper, cutlass, xmma and *gemm* before; sums of split products. Our own by their names.
    ("GEMM", r"(?i)nvjet|cutlass|gemm|gemv|xmma|splitk|cublas|wgmma"),
)]
# Kernels that may stand among the head's products without ending them.
AMONG_HEAD = {"loss", "GEMM", "elementwise"}
ORDER = ["GEMM, layers", "GEMM, head", "attention", "loss", "rmsnorm", "swiglu", "rope", "embedding", "elementwise",
         "optimizer", "communication", "other", "copies", "fills", GAPS]

Interval = collections.namedtuple("Interval", "start end name family size")


class TraceError(Exception):
    pass


def family_of(name):
    return next((family for family, pattern in FAMILIES if pattern.search(name)), "other")


class Trace:
    """A trace's records on one device in the order of their starts, times in ns."""

    def __init__(self, lines, device=None):
        self.items, self.lost, self.unfinished, self.complete, self.devices = [], 0, 0, False, set()
        names, records = {}, []
        lines = iter(lines)
        if next(lines, "").strip() != "xce-kernel-trace 1":
            raise TraceError("not a trace of xce_kernel_trace: the first line is not 'xce-kernel-trace 1'")
        for number, line in enumerate(lines, 2):
            try:
                record = self.parse(line.rstrip("\n"), names)
            except (ValueError, KeyError, IndexError):
                if next(lines, None) is None:  # the last line of a process that was killed
                    break
                raise TraceError(f"line {number} is no record: {line.strip()[:80]!r}") from None
            if record:
                records.append(record)
        self.devices = {record[0] for record in records}
        self.device = min(self.devices, default=0) if device is None else device
        self.items = sorted((item for where, item in records if where == self.device), key=lambda item: item[:2])
        self.mark_head_products()

    def parse(self, line, names):
        kind, _, rest = line.partition(" ")
        if kind == "N":
            number, _, name = rest.partition(" ")
            names[int(number)] = name
        elif kind == "K":
            number, start, end, device = (int(field) for field in rest.split()[:4])
            return self.finished(device, Interval(start, end, names[number], family_of(names[number]), 0))
        elif kind in ("C", "S"):
            fields = rest.split()
            size, start, end, device = (int(field) for field in fields[:4])
            name, family = (f"copy {fields[5]}", "copies") if kind == "C" else ("fill", "fills")
            return self.finished(device, Interval(start, end, name, family, size))
        elif kind == "L":
            self.lost += int(rest)
        elif kind == "E":
            self.complete = True
        else:
            raise ValueError(kind)
        return None

    def finished(self, device, item):
        if item.start > 0 and item.end > 0:
            return device, item
        self.unfinished += 1  # when the process ended: later than all of the steps that are counted
        return None

    def mark_head_products(self):
        """A product is the head's if only products and the like stand between it and a kernel of the loss."""
        beside = ("copies", "fills", "communication")  # may run at the same time, on other streams
        kernels = [i for i, item in enumerate(self.items) if item.family not in beside]
        run = []
        for at, i in enumerate(kernels):
            run.append(i)
            last = at + 1 == len(kernels) or self.items[kernels[at + 1]].family not in AMONG_HEAD
            if not last and self.items[i].family in AMONG_HEAD:
                continue
            head = any(self.items[j].family == "loss" for j in run)
            for j in run:
                if self.items[j].family == "GEMM":
                    name = "GEMM, head" if head else "GEMM, layers"
                    self.items[j] = self.items[j]._replace(family=name)
            run = []


def steps_of(trace, pattern, skip):
    """(steady steps, all steps): lists of (begin, end, items) between launches of the kernel that `pattern` finds."""
    if not trace.items:
        raise TraceError("the trace has no kernels")
    marks = [item.start for item in trace.items if re.search(pattern, item.name)]
    if len(marks) < 2:
        whole = (trace.items[0].start, max(item.end for item in trace.items), trace.items)
        return [whole], [whole]
    starts = [item.start for item in trace.items]
    places = [bisect.bisect_left(starts, mark) for mark in marks]
    steps = [(marks[i], marks[i + 1], trace.items[places[i]:places[i + 1]]) for i in range(len(marks) - 1)]
    rest = steps[skip:]
    if not rest:
        raise TraceError(f"only {len(steps)} steps in the trace, and --skip {skip} leaves none")
    counts = [sum(item.family not in ("copies", "fills") for item in items) for _, _, items in rest]
    usual = collections.Counter(counts).most_common(1)[0][0]
    return [step for step, count in zip(rest, counts) if count == usual], steps


def busy_ns(begin, end, items):
    """Length of the union of the items' intervals inside [begin, end)."""
    busy, until = 0, begin
    for item in items:
        first, last = max(item.start, until), min(item.end, end)
        if last > first:
            busy, until = busy + last - first, last
    return busy


def summarise(steady):
    """{family: {ms, count, bytes}}, {name: ...} and the step's milliseconds, all means over the steps."""
    families = collections.defaultdict(lambda: {"ms": 0.0, "count": 0.0, "bytes": 0.0})
    names = collections.defaultdict(lambda: {"ms": 0.0, "count": 0.0, "family": ""})
    for begin, end, items in steady:
        for item in items:
            for entry in (families[item.family], names[item.name, item.family]):
                entry["ms"] += (item.end - item.start) / 1e6 / len(steady)
                entry["count"] += 1 / len(steady)
            families[item.family]["bytes"] += item.size / len(steady)
        families[GAPS]["ms"] += (end - begin - busy_ns(begin, end, items)) / 1e6 / len(steady)
    return dict(families), dict(names), sorted((end - begin) / 1e6 for begin, end, _ in steady)


def rows_of(families, best, step_ms):
    """One row per family for table and JSON."""
    rows = []
    for family in sorted(families, key=ORDER.index):
        entry = families[family]
        row = {"family": family, "ms": entry["ms"], "share": entry["ms"] / step_ms, "kernels": entry["count"]}
        if family in best and entry["ms"] > 0:
            work, unit, rate, best_ms = best[family]
            row.update(achieved=work / entry["ms"] * 1e3, unit=unit, ceiling=rate, best_ms=best_ms)
        elif entry["bytes"] and entry["ms"] > 0:
            row.update(achieved=entry["bytes"] / entry["ms"] / 1e9, unit="TB/s")
        rows.append(row)
    return rows


def table(rows):
    lines = [f"{'family':<14}{'ms':>10}{'share':>8}{'kernels':>9}{'achieved':>17}{'ceiling':>9}{'best ms':>10}"
             f"{'of it':>8}"]
    for row in rows:
        line = f"{row['family']:<14}{row['ms']:>10.3f}{row['share']:>8.1%}{row['kernels']:>9.4g}"
        if "achieved" in row:
            line += f"{row['achieved']:>9.3g} {row['unit']:<7}"
        if "ceiling" in row:
            line += f"{row['ceiling']:>9.4g}{row['best_ms']:>10.3f}{row['best_ms'] / row['ms']:>8.0%}"
        lines.append(line.rstrip())
    return lines


def report(trace, options):
    """The report's lines and its JSON object."""
    steady, steps = steps_of(trace, options.step_kernel, options.skip)
    families, names, times = summarise(steady)
    mean, median = sum(times) / len(times), times[len(times) // 2]
    model = None
    if options.config:
        with open(options.config, encoding="utf-8") as file:
            model = Model(read_config(file.read()), options.ranks)
    best = ceilings(model, vars(options)) if model else {}
    rows = rows_of(families, best, mean)
    if len(steps) > 1:
        head = (f"step {median:.3f} ms, median of {len(steady)} steady of {len(steps)} steps "
                f"({times[0]:.3f} .. {times[-1]:.3f}, mean {mean:.3f})")
    else:
        head = f"{mean:.3f} ms from the first kernel to the last: no steps, '{options.step_kernel}' ran less than twice"
    lines = [head]
    untraced = options.untraced_ms
    if untraced:
        lines.append(f"without the tracer {untraced:.3f} ms: gaps are about "
                     f"{max(0.0, untraced - (mean - families[GAPS]['ms'])):.3f} ms then")
    lines += table(rows)
    kernel_ms = sum(row["ms"] for row in rows if row["family"] != GAPS)
    overlap = kernel_ms + families[GAPS]["ms"] - mean
    if overlap > 0.002 * mean:
        lines.append(f"{overlap:.3f} ms ran beside other kernels: the shares add up to more than 100 %")
    record = {"step_ms": median, "steady_steps": len(steady), "steps": len(steps), "untraced_ms": untraced,
              "rows": rows, "lost": trace.lost, "unfinished": trace.unfinished, "complete": trace.complete}
    if model:
        covered = sum(row["best_ms"] for row in rows if "best_ms" in row)
        mfu = model.mfu_flops() / (untraced or median) / 1e9 / options.peak_tflops
        lines.append(f"at the ceilings {covered:.3f} ms; {model.tokens / (untraced or median) * 1e3:,.0f} tokens/s, "
                     f"MFU {mfu:.1%} of {options.peak_tflops:g} TFLOP/s")
        record.update(best_ms=covered, mfu=mfu, tokens_per_s=model.tokens / (untraced or median) * 1e3)
    by_time = sorted(names.items(), key=lambda entry: -entry[1]["ms"])
    shown = [entry for i, entry in enumerate(by_time) if i < options.top or entry[0][1] == "other"]
    lines += ["", f"{'ms':>10}{'times':>8}  kernel"]
    lines += [f"{e['ms']:>10.3f}{e['count']:>8.4g}  [{family}] {name[:options.width]}" for (name, family), e in shown]
    record["kernels"] = [{"name": n, "family": f, "ms": e["ms"], "count": e["count"]} for (n, f), e in by_time]
    if trace.lost:
        lines.append(f"{trace.lost} records were lost: the times are too low")
    if not trace.complete:
        lines.append("the trace has no end mark: the program was killed, its last records may be missing")
    if len(trace.devices) > 1:
        lines.append(f"device {trace.device} of {sorted(trace.devices)}; --device chooses")
    return lines, record


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--config", help="config.resolved.yaml of the run, for the ceilings")
    parser.add_argument("--ranks", type=int, default=1, help="that share a step's sequences")
    parser.add_argument("--device", type=int, help="default: the lowest in the trace")
    parser.add_argument("--step-kernel", default=r"\(xce::StepControl\)", metavar="REGEX")
    parser.add_argument("--skip", type=int, default=3, help="steps at the beginning")
    parser.add_argument("--untraced-ms", type=float, default=0, help="a step's time without the tracer")
    parser.add_argument("--gemm-tflops", type=float, default=708, help="cuBLAS, bf16, sustained (H200: %(default)s)")
    parser.add_argument("--attention-tflops", type=float, default=0, help="default: cuDNN's on an H200")
    parser.add_argument("--copy-tbs", type=float, default=4.2, help="of a device copy, both ways (H200: %(default)s)")
    parser.add_argument("--peak-tflops", type=float, default=989, help="for the MFU (H100, H200: %(default)s)")
    parser.add_argument("--top", type=int, default=12, help="kernels to list besides the unknown ones")
    parser.add_argument("--width", type=int, default=100, help="of their names")
    parser.add_argument("--json", metavar="FILE", help="the same as a JSON object")
    return parser.parse_args(argv)


def main(argv=None):
    options = arguments(argv)
    try:
        with open(options.trace, encoding="utf-8", errors="replace") as file:
            lines, record = report(Trace(file, options.device), options)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(record, file, indent=1)
                file.write("\n")
    except (OSError, TraceError, ValueError) as error:
        print(f"profile_report.py: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
