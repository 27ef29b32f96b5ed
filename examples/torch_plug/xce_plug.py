"""xce's losses on PyTorch tensors, on a CPU or a GPU, through the C library: no copy, torch's current stream.

make(x, w, t) -> step: loss of the linear head and its gradients. step() adds to an fp32 main gradient of w, as a
trainer does; step.check() returns (loss, dx, dw) of one call from zero. make(z, t) -> (forward, backward) over given
logits: row losses, and the logits' gradient for an upstream of ones. Environment:
  XCE_LIBRARY        libxce.so; default: the loader's, then beside this file
  XCE_WORKSPACE_MIB  of make(x, w, t); default: room for the fp32 logits of 4096 rows
  XCE_TUNE           0: take cuBLAS's first answers; default: race its algorithms, some seconds in make(x, w, t)
"""
import os
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import xce_ctypes as xce

NAME = "xce"
DTYPES = {torch.float32: xce.FLOAT32, torch.bfloat16: xce.BFLOAT16, torch.float16: xce.FLOAT16,
          torch.float64: xce.FLOAT64, torch.int32: xce.INT32, torch.int64: xce.INT64}
contexts = {}


def library():
    beside = pathlib.Path(__file__).resolve().with_name("libxce.so")
    return xce.load(os.environ.get("XCE_LIBRARY") or (str(beside) if beside.exists() else "libxce.so"))


def context_for(tensor):
    """One context per device and stream, set to torch's current stream there."""
    stream = torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None
    key = tensor.device, stream
    if key not in contexts:
        contexts[key] = xce.Context(library(), tensor.device.index if tensor.is_cuda else "cpu",
                                    threads=torch.get_num_threads())
        if tensor.is_cuda:
            contexts[key].context_set_stream(stream)
            contexts[key].context_set_tuning(int(os.environ.get("XCE_TUNE", 1)))
    return contexts[key]


def accum(tensor):
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def shared(values, targets):
    """The fields of `loss` for rows of x or logits."""
    if targets.stride(0) == 0 < len(targets) - 1:
        raise ValueError("expanded targets: make them contiguous")
    return dict(loss_rows=values.shape[0], loss_dtype=DTYPES[values.dtype], loss_label_dtype=DTYPES[targets.dtype],
                loss_labels=targets.data_ptr(), loss_label_stride=targets.stride(0))


def scratch(like, size_bytes):
    return torch.empty(size_bytes, dtype=torch.uint8, device=like.device)


def empty(like):
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def make_linear(x, w, t):
    if x.stride(1) != 1 or w.stride(1) != 1:
        raise ValueError("the features of a row must lie side by side")
    context = context_for(x)
    (rows, hidden), vocab = x.shape, w.shape[0]
    dw = torch.zeros(w.shape, dtype=accum(w), device=w.device)
    loss = torch.empty((), dtype=accum(x), device=x.device)
    room = 4 * min(rows, 4096) * (vocab + 2 * hidden + 64) + (1 << 20)
    budget = int(os.environ.get("XCE_WORKSPACE_MIB", 0)) << 20 or room
    call = xce.args(xce.LinearCrossEntropyArgs, **shared(x, t), loss_vocab=vocab, hidden=hidden, x=x.data_ptr(),
                    weight=w.data_ptr(), ldx=x.stride(0), ldw=w.stride(0), dweight=dw.data_ptr(),
                    loss_loss=loss.data_ptr(), accumulate_dweight=1, workspace_budget_bytes=budget)
    call.workspace_size_bytes = context.workspace_bytes("linear_cross_entropy", xce.FORWARD_BACKWARD, call)

    def run(what):
        dx, workspace = empty(x), scratch(x, call.workspace_size_bytes)
        call.dx, call.workspace = dx.data_ptr(), workspace.data_ptr()
        what()
        return dx

    def step():
        return loss, run(lambda: context.linear_cross_entropy_forward_backward(call)), dw

    def check():
        dw.zero_()
        return step()

    run(lambda: context.linear_cross_entropy_prepare(xce.FORWARD_BACKWARD, call))
    step.check = check
    step.tensors = x, w, t  # what call points to
    return step


def make_cross_entropy(z, t):
    if z.stride(1) != 1:
        raise ValueError("the logits of a row must lie side by side")
    context = context_for(z)
    rows, vocab = z.shape
    row_loss, offset, logsum = torch.empty((3, rows), dtype=accum(z), device=z.device)
    call = xce.args(xce.CrossEntropyArgs, **shared(z, t), loss_vocab=vocab, logits=z.data_ptr(), ld=z.stride(0),
                    loss_reduction=xce.NONE, loss_row_loss=row_loss.data_ptr(), loss_offset=offset.data_ptr(),
                    loss_logsum=logsum.data_ptr())
    call.workspace_size_bytes = max(context.workspace_bytes("cross_entropy", what, call)
                                    for what in (xce.FORWARD, xce.BACKWARD))
    workspace = scratch(z, call.workspace_size_bytes)
    call.workspace = workspace.data_ptr()

    def forward():
        context.cross_entropy_forward(call)
        return row_loss

    def backward():
        dz = empty(z)
        call.dlogits = dz.data_ptr()
        context.cross_entropy_backward(call)
        return dz

    forward.tensors = z, t, workspace  # what call points to
    return forward, backward


def make(*tensors):
    return make_linear(*tensors) if len(tensors) == 3 else make_cross_entropy(*tensors)
