#!/usr/bin/env python3
"""xce's C library against PyTorch: random cases of both losses with every option, beside fp64 autograd of
F.cross_entropy over whole logits and, where this PyTorch has it, F.linear_cross_entropy; z-loss, softcap, logit scale
and token weights, which PyTorch has not, are written with its operations.

  loss_oracle.py LIBXCE [--cases 200] [--seed S] [--device cpu|cuda]   status 1 at the first case that disagrees
  loss_oracle.py LIBXCE --table [--device cpu|cuda]   errors in bf16 by shape and option, beside PyTorch's unfused path
"""
import argparse
import inspect
import pathlib
import random
import sys
import warnings

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/torch_plug"))
import xce_ctypes as xce  # noqa: E402

DTYPES = {torch.float32: xce.FLOAT32, torch.bfloat16: xce.BFLOAT16, torch.float16: xce.FLOAT16,
          torch.float64: xce.FLOAT64, torch.int32: xce.INT32, torch.int64: xce.INT64}
REDUCTIONS = {"mean": xce.MEAN, "sum": xce.SUM, "none": xce.NONE}
ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
CHUNKED = hasattr(F, "linear_cross_entropy")


def accum(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


class Case:
    """Tensors and options of one call; what is None is not given."""

    def __init__(self, device, dtype, rows, hidden, vocab, seed, plain=False):
        self.device, self.dtype, self.plain = device, dtype, plain
        self.rows, self.hidden, self.vocab = rows, hidden, vocab
        self.generator = torch.Generator().manual_seed(seed)
        self.x = self.normal(rows, hidden)
        self.w = self.normal(vocab, hidden, scale=hidden ** -0.5)
        self.y = self.normal(rows, vocab, scale=2) if plain else None  # plain: given logits
        self.b = self.u = self.class_w = self.probabilities = self.upstream = self.denominator = None
        self.labels = torch.randint(0, vocab, (rows,), generator=self.generator).to(device)
        self.ignore_index, self.reduction = -100, "mean"
        self.smoothing = self.z_loss = self.softcap = 0.0
        self.scale = 1.0
        self.narrow = False  # dW and db in dtype
        self.apart = False   # forward, then backward

    def normal(self, *shape, scale=1.0, dtype=None):
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale
        return values.to(dtype or self.dtype).to(self.device)

    def uniform(self, *shape, dtype=None):
        values = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return values.to(dtype or accum(self.dtype)).to(self.device)

    def describe(self):
        given = [name for name in ("b", "u", "class_w", "probabilities", "upstream", "denominator")
                 if getattr(self, name) is not None]
        return (f"{'plain' if self.plain else 'linear'} {self.dtype} N {self.rows} H {self.hidden} V {self.vocab} "
                f"{self.reduction} ignore {self.ignore_index} smoothing {self.smoothing} z_loss {self.z_loss} softcap "
                f"{self.softcap} scale {self.scale} narrow {self.narrow} apart {self.apart} with {given}")


def draw(seed, device):
    r = random.Random(seed)
    dtype = r.choice(list(ROUNDING))
    vocab = r.choice([1, 2, 7, 123, 1000, 5003])
    rows, hidden = r.choice([1, 2, 17, 64, 130]), r.choice([1, 8, 31, 64])
    c = Case(device, dtype, rows, hidden, vocab, seed, plain=r.random() < 0.4)
    chance = r.random
    only_pytorchs = chance() < 0.3
    c.reduction = r.choice(list(REDUCTIONS))
    if not c.plain and chance() < 0.5:
        c.b = c.normal(vocab, scale=0.5)
    if chance() < 0.4:
        c.class_w = c.uniform(vocab) + 0.1
    if not only_pytorchs and chance() < 0.4:
        c.u = (c.uniform(c.rows) * 3).round() / 2  # some are 0
    c.smoothing = r.choice([0.0, 0.0, 0.1, 0.5, 1.0])
    if not only_pytorchs:
        c.z_loss = r.choice([0.0, 0.0, 1e-4, 0.1])
        c.softcap = r.choice([0.0, 0.0, 1.0, 30.0, 1e4])
        c.scale = r.choice([1.0, 1.0, 0.25, -2.0])
    if chance() < 0.3:
        kind = r.choice([torch.float32, torch.float64, c.dtype])
        c.probabilities = torch.softmax(c.normal(c.rows, vocab, dtype=torch.float64), 1).to(kind)
        c.labels = None
    else:
        c.ignore_index = r.choice([-100, 0, vocab - 1])
        c.labels[torch.rand(c.rows, generator=c.generator).to(device) < 0.2] = c.ignore_index
        c.labels = c.labels.to(r.choice([torch.int32, torch.int64]))
    if chance() < 0.5:
        c.upstream = c.normal(*([c.rows] if c.reduction == "none" else []), dtype=accum(dtype))
    if not only_pytorchs and c.reduction == "mean" and chance() < 0.3:
        c.denominator = torch.tensor(12.5, dtype=torch.float64, device=device)
    c.narrow, c.apart = chance() < 0.3, chance() < 0.4
    return c


def by_torch(c):
    """fp64 on tensors that hold the case's rounded values: results by name, and what bars on errors need."""
    leaf = lambda t: None if t is None else t.double().detach().requires_grad_()  # noqa: E731
    wide = lambda t: None if t is None else t.double()  # noqa: E731
    x, w, b, given = leaf(c.x), leaf(c.w), leaf(c.b), leaf(c.y)
    y = given if c.plain else F.linear(x, w, b)
    y.retain_grad()
    z = c.scale * y
    if c.softcap:
        z = c.softcap * torch.tanh(z / c.softcap)
    targets = wide(c.probabilities) if c.labels is None else c.labels.long()
    ignore = {} if c.labels is None else {"ignore_index": c.ignore_index}
    words = dict(weight=wide(c.class_w), label_smoothing=c.smoothing, **ignore)
    rows = F.cross_entropy(z, targets, reduction="none", **words)
    u = torch.ones_like(rows) if c.u is None else c.u.double()
    valid = u != 0 if c.labels is None else (c.labels != c.ignore_index) & (u != 0)
    lse = torch.logsumexp(z, 1)
    rows = torch.where(valid, u * (rows + c.z_loss * lse ** 2), 0)
    per_row = u
    if c.labels is not None and c.class_w is not None:
        per_row = u * c.class_w.double()[c.labels.long().clamp(0, c.vocab - 1)]
    weight_sum = torch.where(valid, per_row, 0).sum()
    d = 1.0 if c.reduction != "mean" else weight_sum if c.denominator is None else c.denominator
    loss = (rows / d).sum() if float(d) else rows.sum() * 0
    up = 1.0 if c.upstream is None else c.upstream.double()
    ((rows / d if float(d) else rows * 0) * up).sum().backward()
    p, top = torch.softmax(z.detach(), 1), z.detach().argmax(1)
    answer = {"loss": loss, "row_loss": rows, "weight_sum": weight_sum, "n_valid": valid.sum(),
              "row_entropy": torch.where(valid, torch.special.entr(p).sum(1), 0),
              "argmax": torch.where(valid, top, -1), "y": y.grad,
              "row_max": torch.where(valid, z.max(1).values, 0), "lse": torch.where(valid, lse, 0),
              "z_loss_part": torch.where(valid, u * c.z_loss * lse ** 2, 0).sum() / d if float(d) else loss * 0}
    if not c.plain:
        answer.update(dx=x.grad, dw=w.grad, **({} if b is None else {"db": b.grad}))
    # PyTorch's own reductions where it has all of the options.
    if c.u is None and not c.z_loss and c.denominator is None and valid.any():
        own = F.cross_entropy(z, targets, reduction="sum" if c.reduction == "none" else c.reduction, **words)
        assert abs(own - loss) <= 1e-12 * (1 + abs(loss)), "the two ways to write it with PyTorch differ"
    return {k: v.detach() for k, v in answer.items()}, z.detach(), valid


def dlogit_terms(c, want, z, valid):
    """|S p| + |2 z_loss lse p| + a, times |s g|: what a dlogit is the difference of, for bars on its error."""
    w = torch.ones_like(z[0]) if c.class_w is None else c.class_w.double()
    t = c.probabilities
    t = F.one_hot(c.labels.long().clamp(0, c.vocab - 1), c.vocab) if t is None else t.double()
    a = w * ((1 - c.smoothing) * t + c.smoothing / c.vocab)
    d = want["weight_sum"] if c.denominator is None else c.denominator
    g = torch.where(valid, abs(c.scale), 0.0) / (d if c.reduction == "mean" and float(d) else 1)
    for factor in (c.u, c.upstream):
        g = g if factor is None else g * factor.double().abs()
    extra = 2 * c.z_loss * torch.logsumexp(z, 1, keepdim=True).abs()
    return g[:, None] * (torch.softmax(z, 1) * (a.sum(1, keepdim=True) + extra) + a)


def by_xce(c, context):
    kept = []  # tensors the call points to

    def point(t):
        kept.append(t)
        return None if t is None else t.data_ptr()

    made = {}

    def out(name, *shape, dtype=None):
        poison = -7 if dtype == torch.int64 else torch.nan
        made[name] = torch.full(shape, poison, dtype=dtype or accum(c.dtype), device=c.device)
        return point(made[name])

    loss = dict(loss_rows=c.rows, loss_vocab=c.vocab, loss_dtype=DTYPES[c.dtype],
                loss_reduction=REDUCTIONS[c.reduction], loss_z_loss=c.z_loss, loss_label_smoothing=c.smoothing,
                loss_softcap=c.softcap, loss_logit_scale=c.scale,
                loss_class_weights=point(c.class_w), loss_token_weights=point(c.u), loss_upstream=point(c.upstream),
                loss_denominator=point(c.denominator), loss_loss=out("loss"), loss_row_loss=out("row_loss", c.rows),
                loss_row_entropy=out("row_entropy", c.rows), loss_offset=out("offset", c.rows),
                loss_logsum=out("logsum", c.rows), loss_weight_sum=out("weight_sum", dtype=torch.float64),
                loss_n_valid=out("n_valid", dtype=torch.int64), loss_row_max=out("row_max", c.rows),
                loss_z_loss_part=out("z_loss_part"), loss_out_of_range=out("out_of_range", dtype=torch.int64),
                loss_argmax=out("argmax", c.rows, dtype=torch.int64))
    if c.labels is None:
        loss.update(loss_probabilities=point(c.probabilities), loss_probability_dtype=DTYPES[c.probabilities.dtype])
    else:
        loss.update(loss_labels=point(c.labels), loss_label_dtype=DTYPES[c.labels.dtype],
                    loss_ignore_index=c.ignore_index, loss_has_ignore_index=1,
                    loss_n_correct=out("n_correct", dtype=torch.int64))
    if c.plain:
        op, call = "cross_entropy", xce.args(xce.CrossEntropyArgs, logits=point(c.y), **loss,
                                             dlogits=out("y", c.rows, c.vocab, dtype=c.dtype))
    else:
        of_weight = c.dtype if c.narrow else accum(c.dtype)
        op, call = "linear_cross_entropy", xce.args(
            xce.LinearCrossEntropyArgs, hidden=c.hidden, x=point(c.x), weight=point(c.w), bias=point(c.b), **loss,
            dx=out("dx", c.rows, c.hidden, dtype=c.dtype), dweight=out("dw", c.vocab, c.hidden, dtype=of_weight),
            dbias=None if c.b is None else out("db", c.vocab, dtype=of_weight), dweight_dtype=DTYPES[of_weight])
    for what, name in ([(xce.FORWARD, "forward"), (xce.BACKWARD, "backward")] if c.apart
                       else [(xce.FORWARD_BACKWARD, "forward_backward")]):
        size = context.workspace_bytes(op, what, call)
        workspace = torch.empty(size + 16, dtype=torch.uint8, device=c.device)
        call.workspace, call.workspace_size_bytes = (workspace.data_ptr() + 15) // 16 * 16, size
        getattr(context, f"{op}_{name}")(call)
    if c.device == "cuda":
        torch.cuda.synchronize()
    return made


def compare(c, context):
    """Raises AssertionError where xce and PyTorch disagree by more than rounding explains."""
    want, z, valid = by_torch(c)
    got = by_xce(c, context)
    ulp = 2.0 ** -50 if c.dtype == torch.float64 else 2.0 ** -22
    reach = ulp * (1 + (z[valid].abs().max().item() if valid.any() else 0))
    for name in ("weight_sum", "n_valid"):
        assert abs(got[name].double() - want[name].double()) <= 1e-9 * abs(want[name]), name
    mass = 1 + (0 if c.class_w is None else c.class_w.double().max().item())
    d = max(abs(float(want["weight_sum"])), 1e-300) if c.reduction == "mean" and c.denominator is None else 1
    rows_bar = (1e-12 if c.dtype == torch.float64 else 1e-5) * want["row_loss"].abs() + 2 * mass * reach
    rows_bar = rows_bar * (1 + (0 if c.u is None else c.u.double()))
    assert (got["row_loss"].double() - want["row_loss"]).abs().le(rows_bar).all(), "row_loss"
    assert abs(got["loss"].double() - want["loss"]) <= 3 * rows_bar.sum() / d, "loss"
    assert (got["row_entropy"].double() - want["row_entropy"]).abs().le(
        (1e-12 if c.dtype == torch.float64 else 1e-5) * want["row_entropy"] + 4 * reach).all(), "row_entropy"
    made_lse = got["offset"].double() + got["logsum"].double()
    for name, value in (("lse", made_lse), ("row_max", got["row_max"].double())):
        assert (value - want[name]).abs().le(1e-5 * ulp * 2 ** 22 * want[name].abs() + 4 * reach).all(), name
    assert abs(got["z_loss_part"].double() - want["z_loss_part"]) <= 3 * rows_bar.sum() / d, "z_loss_part"
    assert got["out_of_range"] == 0, "out_of_range"
    if c.labels is not None:
        assert got["n_correct"] == (valid & (got["argmax"] == c.labels)).sum(), "n_correct"
    picked = z.gather(1, got["argmax"].clamp_min(0)[:, None])[:, 0]
    assert (got["argmax"][~valid] == -1).all() and (picked[valid] >= z.max(1).values[valid] - 2 * reach).all(), "argmax"
    # Gradients: rounding of results and of dlogits, and fp32 sums of terms that may cancel.
    dy, scale = want["y"], dlogit_terms(c, want, z, valid)
    if c.plain:
        checks = [("y", scale)]
    else:
        checks = [("dx", scale @ c.w.double().abs()), ("dw", scale.t() @ c.x.double().abs())]
        checks += [] if c.b is None else [("db", scale.sum(0))]
    errors = {}
    for name, terms in checks:
        error, size = (got[name].double() - want[name]).norm(), want[name].norm()
        bar = ROUNDING[c.dtype] * (size + dy.norm() * (0 if c.plain else 1)) + 4 * reach * terms.norm()
        if c.dtype == torch.float16:  # below the smallest normal number digits are lost
            bar = bar + 2.0 ** -25 * want[name].numel() ** 0.5
        assert error <= bar, f"{name}: error {error:.3e}, bar {bar:.3e}, norm {size:.3e}"
        errors[name] = (error / size).item() if size > 0 else 0.0
    return errors


def against_linear_cross_entropy(c):
    """F.linear_cross_entropy's loss in fp64, whole and chunked, beside the formulas of by_torch."""
    if not CHUNKED or c.plain or c.u is not None or c.z_loss or c.softcap or c.scale != 1 or c.denominator is not None:
        return 0
    want, _, valid = by_torch(c)
    if not valid.any():
        return 0
    wide = lambda t: None if t is None else t.double()  # noqa: E731
    words = dict(linear_bias=wide(c.b), weight=wide(c.class_w), label_smoothing=c.smoothing,
                 reduction="sum" if c.reduction == "none" else c.reduction)
    targets = wide(c.probabilities) if c.labels is None else c.labels.long()
    words.update({} if c.labels is None else {"ignore_index": c.ignore_index})
    for options in (None, torch.nn.LinearCrossEntropyOptions()):
        own = F.linear_cross_entropy(c.x.double(), c.w.double(), targets, options=options, **words)
        assert abs(own - want["loss"]) <= 1e-11 * (1 + abs(want["loss"])), f"F.linear_cross_entropy, options {options}"
    return 1


def relative(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def unfused(c):
    """What most people run: logits in the operands' dtype, their loss in fp32, autograd."""
    x, w, b = (None if t is None else t.detach().requires_grad_() for t in (c.x, c.w, c.b))
    z = c.scale * F.linear(x, w, b).float()
    z = c.softcap * torch.tanh(z / c.softcap) if c.softcap else z
    targets = c.probabilities.float() if c.labels is None else c.labels.long()
    loss = F.cross_entropy(z, targets, weight=c.class_w, label_smoothing=c.smoothing)
    if c.z_loss:
        loss = loss + c.z_loss * (torch.logsumexp(z, 1) ** 2).mean() * (
            1 if c.class_w is None else len(z) / c.class_w[c.labels.long()].sum())
    loss.backward()
    return {"loss": loss.detach(), "dx": x.grad, "dw": w.grad, **({} if b is None else {"db": b.grad})}


TABLE = {"none": {}, "bias, z-loss 1e-4": {"z_loss": 1e-4, "b": 1}, "smoothing 0.1": {"smoothing": 0.1},
         "class weights": {"class_w": 1}, "softcap 30": {"softcap": 30.0}, "probabilities": {"probabilities": 1},
         "all of them, labels": {"z_loss": 1e-4, "b": 1, "smoothing": 0.1, "class_w": 1, "softcap": 30.0}}


def table(context, device):
    shapes = [(512, 256, 32000), (256, 1024, 50257)]
    if device == "cuda":
        shapes = [(2048, 2048, 32000), (2048, 2048, 131072), (4096, 1024, 50257)]
    print("| N, H, V | options | loss | dX | dW | db |\n|---|---|---|---|---|---|")
    for rows, hidden, vocab in shapes:
        for name, options in TABLE.items():
            c = Case(device, torch.bfloat16, rows, hidden, vocab, 1)
            c.narrow = True  # as PyTorch's gradients
            for field, value in options.items():
                setattr(c, field, value)
            c.b = None if c.b is None else c.normal(vocab, scale=0.5)
            c.class_w = None if c.class_w is None else c.uniform(vocab) + 0.1
            if c.probabilities is not None:
                c.labels, c.probabilities = None, torch.softmax(c.normal(rows, vocab, dtype=torch.float32, scale=3), 1)
            want, own, rival = by_torch(c)[0], by_xce(c, context), unfused(c)
            cells = [f"{relative(own[k], want[k]):.1e}, {relative(rival[k], want[k]):.1e}" if k in want else ""
                     for k in ("loss", "dx", "dw", "db")]
            print(f"| {rows}, {hidden}, {vocab} | {name} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    context = xce.Context(xce.load(args.library), "cpu" if args.device == "cpu" else 0, threads=2)
    if args.device == "cuda":
        context.context_set_tuning(0)
        context.context_set_stream(torch.cuda.current_stream().cuda_stream)
    warnings.filterwarnings("ignore", message="linear_cross_entropy")  # cases that its chunks do not take
    print(f"PyTorch {torch.__version__} on {args.device}, F.linear_cross_entropy"
          f"{inspect.signature(F.linear_cross_entropy) if CHUNKED else ': not in this version'}")
    if args.table:
        return table(context, args.device)
    print(f"--seed {args.seed} --cases {args.cases}", flush=True)
    foreign, worst = 0, {}
    for seed in range(args.seed, args.seed + args.cases):
        c = draw(seed, args.device)
        try:
            for name, error in compare(c, context).items():
                key = str(c.dtype)[6:], name
                worst[key] = max(worst.get(key, 0), error)
            foreign += against_linear_cross_entropy(c)
        except (AssertionError, xce.Error) as error:
            sys.exit(f"--seed {seed} --cases 1: {error}\n  {c.describe()}")
    print(f"{args.cases} cases agree, {foreign} of them also with F.linear_cross_entropy; largest relative errors:")
    print(", ".join(f"{' '.join(key)} {error:.1e}" for key, error in sorted(worst.items())))


if __name__ == "__main__":
    main()
