#!/usr/bin/env python3
"""libxce.so called by ctypes with plain arrays, as any language may, against a pure-Python fp64 reference.

  ctypes_test.py LIBRARY SOURCE_DIR
"""
import array
import ctypes
import math
import pathlib
import random
import re
import sys
import unittest

LIBRARY, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, str(SOURCE / "examples/torch_plug"))
import xce_ctypes as xce  # noqa: E402

lib = xce.load(LIBRARY)
ROWS, HIDDEN, VOCAB = 9, 5, 23


def address(values):
    return values.buffer_info()[0]


def zeros(n, code="d"):
    return array.array(code, [math.nan if code == "d" else 0]) * n


def reference(x, weight, labels, ignore=-100, w=None, smoothing=0.0, cap=0.0):
    """Mean loss, dx and dweight by the definitions; w: class weights."""
    w = w or [1.0] * VOCAB
    valid = [i for i in range(ROWS) if labels[i] != ignore and 0 <= labels[i] < VOCAB]
    total = math.fsum(w[labels[i]] for i in valid)
    loss, dx, dweight = 0.0, [0.0] * (ROWS * HIDDEN), [0.0] * (VOCAB * HIDDEN)
    for i in valid:
        z = [math.fsum(x[i * HIDDEN + h] * weight[v * HIDDEN + h] for h in range(HIDDEN)) for v in range(VOCAB)]
        z = [cap * math.tanh(value / cap) for value in z] if cap else z
        lse = max(z) + math.log(math.fsum(math.exp(value - max(z)) for value in z))
        mass = [w[v] * (smoothing / VOCAB + (1 - smoothing) * (v == labels[i])) for v in range(VOCAB)]
        loss += math.fsum(mass[v] * (lse - z[v]) for v in range(VOCAB)) / total
        for v in range(VOCAB):
            g = (math.fsum(mass) * math.exp(z[v] - lse) - mass[v]) / total * (1 - (z[v] / cap) ** 2 if cap else 1)
            for h in range(HIDDEN):
                dx[i * HIDDEN + h] += g * weight[v * HIDDEN + h]
                dweight[v * HIDDEN + h] += g * x[i * HIDDEN + h]
    return loss, dx, dweight


class CtypesTest(unittest.TestCase):
    def setUp(self):
        draw = random.Random(7).gauss
        self.x = array.array("d", (draw(0, 1) for _ in range(ROWS * HIDDEN)))
        self.weight = array.array("d", (draw(0, 1) for _ in range(VOCAB * HIDDEN)))
        self.labels = array.array("q", (i * 5 % VOCAB if i % 4 else -100 for i in range(ROWS)))
        self.context = xce.Context(lib, "cpu", threads=2)

    def assert_close(self, got, want):
        error = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(got, want, strict=True)))
        self.assertLess(error, 1e-13 * math.sqrt(math.fsum(b * b for b in want)))

    def linear(self, **more):
        return xce.args(xce.LinearCrossEntropyArgs, loss_rows=ROWS, loss_vocab=VOCAB, hidden=HIDDEN,
                        loss_dtype=xce.FLOAT64, loss_label_dtype=xce.INT64, loss_labels=address(self.labels),
                        x=address(self.x), weight=address(self.weight), **more)

    def run_pass(self, what, call):
        size = self.context.workspace_bytes("linear_cross_entropy", what, call)
        workspace = ctypes.create_string_buffer(size + 16)
        call.workspace = (ctypes.addressof(workspace) + 15) // 16 * 16
        call.workspace_size_bytes = size
        name = {xce.FORWARD: "forward", xce.BACKWARD: "backward", xce.FORWARD_BACKWARD: "forward_backward"}[what]
        getattr(self.context, f"linear_cross_entropy_{name}")(call)

    def test_structs_are_those_of_the_header(self):
        header = re.sub(r"//[^\n]*", "", (SOURCE / "kernels/include/xce/xce.h").read_text())
        structs = {"xce_loss": xce.Loss, "xce_linear_cross_entropy_args": xce.LinearCrossEntropyArgs,
                   "xce_cross_entropy_args": xce.CrossEntropyArgs, "xce_loss_count_args": xce.LossCountArgs,
                   "xce_loss_statistics_args": xce.LossStatisticsArgs}
        kinds = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "double": ctypes.c_double,
                 "size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64, "xce_loss": xce.Loss}
        found = {name: body for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", header, re.DOTALL)}
        self.assertEqual(found.keys(), structs.keys())
        for name, body in found.items():
            declared = []
            for kind, names in re.findall(r"((?:const )?\w+\s?\*?) ?([^;]+);", body):
                for word in names.split(","):
                    field, length = re.fullmatch(r"\s*(\w+)(?:\[(\d+)\])?", word).groups()
                    base = ctypes.c_void_p if "*" in kind else kinds[kind.strip()]
                    declared.append((field, base * int(length) if length else base))
            self.assertEqual(declared, structs[name]._fields_, name)

    def test_forward_backward(self):
        loss, dx, dweight = zeros(1), zeros(ROWS * HIDDEN), zeros(VOCAB * HIDDEN)
        self.run_pass(xce.FORWARD_BACKWARD, self.linear(loss_loss=address(loss), dx=address(dx),
                                                        dweight=address(dweight)))
        want = reference(self.x, self.weight, self.labels)
        self.assert_close(loss, [want[0]])
        self.assert_close(dx, want[1])
        self.assert_close(dweight, want[2])

    def test_forward_then_backward_with_an_ignored_label_of_the_vocabulary(self):
        loss, offset, logsum, dx = zeros(1), zeros(ROWS), zeros(ROWS), zeros(ROWS * HIDDEN)
        ignore = self.labels[1]
        self.labels = array.array("q", (ignore if label == -100 else label for label in self.labels))
        call = self.linear(loss_loss=address(loss), loss_offset=address(offset), loss_logsum=address(logsum),
                           dx=address(dx), loss_ignore_index=ignore, loss_has_ignore_index=1)
        self.run_pass(xce.FORWARD, call)
        self.run_pass(xce.BACKWARD, call)
        want = reference(self.x, self.weight, self.labels, ignore)
        self.assert_close(loss, [want[0]])
        self.assert_close(dx, want[1])

    def test_options(self):
        loss, dx, dweight = zeros(1), zeros(ROWS * HIDDEN), zeros(VOCAB * HIDDEN)
        w = array.array("d", (0.25 + v % 3 for v in range(VOCAB)))
        self.run_pass(xce.FORWARD_BACKWARD, self.linear(
            loss_loss=address(loss), dx=address(dx), dweight=address(dweight), loss_class_weights=address(w),
            loss_label_smoothing=0.25, loss_softcap=2.0))
        want = reference(self.x, self.weight, self.labels, w=w, smoothing=0.25, cap=2.0)
        self.assert_close(loss, [want[0]])
        self.assert_close(dx, want[1])
        self.assert_close(dweight, want[2])

    def test_cross_entropy_over_given_logits(self):
        eye = array.array("d", [0.0]) * (VOCAB * HIDDEN)
        for h in range(HIDDEN):
            eye[h * HIDDEN + h] = 1.0
        logits = array.array("d", (self.x[i * HIDDEN + v] if v < HIDDEN else 0.0
                                   for i in range(ROWS) for v in range(VOCAB)))
        loss, dlogits = zeros(1), zeros(ROWS * VOCAB)
        self.context.cross_entropy_forward_backward(
            xce.args(xce.CrossEntropyArgs, loss_rows=ROWS, loss_vocab=VOCAB, loss_dtype=xce.FLOAT64,
                     loss_label_dtype=xce.INT64, loss_labels=address(self.labels), loss_loss=address(loss),
                     logits=address(logits), dlogits=address(dlogits)))
        want = reference(self.x, eye, self.labels)
        self.assert_close(loss, [want[0]])
        self.assert_close([dlogits[i * VOCAB + h] for i in range(ROWS) for h in range(HIDDEN)], want[1])

    def test_count(self):
        n_valid, weight_sum = zeros(1, "q"), zeros(1)
        self.context.loss_count(xce.args(xce.LossCountArgs, loss_rows=ROWS, loss_vocab=VOCAB, loss_dtype=xce.FLOAT64,
                                         loss_label_dtype=xce.INT64, loss_labels=address(self.labels),
                                         loss_n_valid=address(n_valid), loss_weight_sum=address(weight_sum)))
        self.assertEqual((n_valid[0], weight_sum[0]), (6, 6.0))

    def test_a_refused_call_says_why(self):
        with self.assertRaisesRegex(xce.Error, "forward_backward: .*label_smoothing in 0 .. 1, got 1.5") as caught:
            self.context.linear_cross_entropy_forward_backward(self.linear(loss_label_smoothing=1.5))
        self.assertEqual(lib.xce_status_string(caught.exception.status), b"invalid argument")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
