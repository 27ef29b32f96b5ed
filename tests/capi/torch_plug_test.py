#!/usr/bin/env python3
"""examples/torch_plug on CPU tensors and, where there is one, on a GPU's, against PyTorch's own fp64 autograd.

  torch_plug_test.py LIBRARY SOURCE_DIR      exit status 77: PyTorch is not installed
"""
import os
import pathlib
import sys
import unittest

try:
    import torch
except ImportError:
    print("PyTorch is not installed: skipped")
    sys.exit(77)
import torch.nn.functional as F

os.environ["XCE_LIBRARY"], os.environ["XCE_TUNE"] = sys.argv[1], "0"
sys.path.insert(0, str(pathlib.Path(sys.argv[2]) / "examples/torch_plug"))
import xce_plug  # noqa: E402

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
BARS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float64: 1e-12}


def relative(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


class TorchPlugTest(unittest.TestCase):
    def cases(self):
        for device in DEVICES:
            for dtype in BARS:
                torch.manual_seed(3)
                with self.subTest(device=device, dtype=dtype):
                    yield device, dtype

    def test_linear_cross_entropy(self):
        for device, dtype in self.cases():
            x = torch.randn(50, 40, dtype=dtype, device=device)[:, :32]  # rows apart
            w = torch.randn(300, 32, dtype=dtype, device=device)
            t = torch.randint(0, 300, (100,), device=device)[::2]
            x64, w64 = x.double().requires_grad_(), w.double().requires_grad_()
            loss64 = F.cross_entropy(x64 @ w64.t(), t)
            loss64.backward()
            step = xce_plug.make(x, w, t)
            loss, dx, dw = step.check()
            self.assertLess(abs(loss.double().item() / loss64.item() - 1), 1e-5)
            self.assertLess(relative(dx, x64.grad), BARS[dtype])
            self.assertLess(relative(dw, w64.grad), BARS[dtype])
            step()  # adds to the main gradient
            self.assertLess(relative(dw, 2 * w64.grad), BARS[dtype])
            if device == "cuda":
                with torch.cuda.stream(torch.cuda.Stream()):
                    other = xce_plug.make(x, w, t).check()
                    torch.cuda.current_stream().synchronize()
                self.assertLess(relative(other[2], w64.grad), BARS[dtype])

    def test_cross_entropy(self):
        for device, dtype in self.cases():
            z = torch.randn(20, 130, dtype=dtype, device=device)
            t = torch.randint(0, 130, (20,), device=device, dtype=torch.int32)
            z64 = z.double().requires_grad_()
            rows64 = F.cross_entropy(z64, t.long(), reduction="none")
            rows64.sum().backward()
            forward, backward = xce_plug.make(z, t)
            self.assertLess(relative(forward(), rows64.detach()), 1e-5)
            self.assertLess(relative(backward(), z64.grad), BARS[dtype])

    def test_what_it_cannot_read_is_refused(self):
        x, w, t = torch.randn(4, 6), torch.randn(9, 6), torch.zeros(4, dtype=torch.int64)
        for wrong in ((x.t(), torch.randn(9, 4), torch.zeros(6, dtype=torch.int64)), (x, torch.randn(6, 9).t(), t),
                      (x, w, t[:1].expand(4))):
            with self.assertRaises(ValueError):
                xce_plug.make(*wrong)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
