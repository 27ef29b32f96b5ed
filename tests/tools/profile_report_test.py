#!/usr/bin/env python3
"""tools/profile_report.py on made-up traces: families, steps, gaps, ceilings; and that it never drops a kernel."""
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import profile_ceilings  # noqa: E402
import profile_report  # noqa: E402

US = 1000  # nanoseconds
XCE = "xce::(anonymous namespace)::"
CONTROL = XCE + "control(xce::StepControl)"
LAYER_GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT"
ROWS = f"void {XCE}cluster_losses_and_gradients<1024>(xce::DeviceRows<float, xce::Bf16>)"
NORM = f"void {XCE}forward_held<xce::Bf16, 8>(xce::RmsNormForward, float)"
ADAMW = f"void {XCE}update<xce::Bf16, true, 4>(xce::AdamW)"

CONFIG = """run:
  dir: "runs/a"
model:
  vocab_size: 1000
  hidden_size: 64
  intermediate_size: 256                    # the file, line 12
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  head_dim: 16
  tie_word_embeddings: true
  rope_scaling:
    factor: 8.0
train:
  seq_len: 32
  micro_batch: 2
  global_batch: 8
  precision: bf16
  recompute: none
"""


class Writer:
    """Writes a trace of kernels one after another, `gap` ns apart."""

    def __init__(self):
        self.lines, self.names, self.now = ["xce-kernel-trace 1"], {}, 10**15

    def kernel(self, name, us, gap=0, device=0, stream=7):
        if name not in self.names:
            self.names[name] = len(self.names)
            self.lines.append(f"N {self.names[name]} {name}")
        start, self.now = self.now + gap, self.now + gap + us * US
        self.lines.append(f"K {self.names[name]} {start} {self.now} {device} {stream} 1")

    def step(self, gemm_us=100, extra=()):
        for name, us in [("nvjet_layers", gemm_us), (NORM, 20), ("nvjet_head", 30), (ROWS, 10),
                         ("ncclDevKernel_AllReduce_Sum_f32", 5), ("nvjet_head_dw", 40), (NORM, 20), *extra]:
            self.kernel(name, us)
        self.kernel(CONTROL, 1, gap=50 * US)
        self.kernel(ADAMW, 60)

    def text(self, end=True):
        return "\n".join(self.lines + ["E"] * end) + "\n"


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def steady_trace(self, count=8, **step):
        writer = Writer()
        for _ in range(count):
            writer.step(**step)
        return writer


class ReportTest(Folder):
    def run_report(self, text, *options, config=None):
        """(exit status, what was printed, the JSON's object or None)"""
        trace, result = self.folder / "trace.txt", self.folder / "report.json"
        trace.write_text(text, encoding="utf-8")
        if config is not None:
            (self.folder / "config.yaml").write_text(config, encoding="utf-8")
            options = (*options, "--config", str(self.folder / "config.yaml"))
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = profile_report.main([str(trace), "--json", str(result), *options])
        return status, out.getvalue(), json.loads(result.read_text()) if result.exists() else None

    def rows(self, text, *options, **named):
        status, out, record = self.run_report(text, *options, **named)
        self.assertEqual(status, 0, out)
        return {row["family"]: row for row in record["rows"]}, record, out

    def test_families_shares_and_gaps_of_a_steady_step(self):
        rows, record, _ = self.rows(self.steady_trace().text())
        self.assertEqual((record["steady_steps"], record["steps"]), (4, 7))
        self.assertAlmostEqual(record["step_ms"], 0.336)
        want = {"GEMM, layers": (0.100, 1), "GEMM, head": (0.070, 2), "loss": (0.010, 1), "rmsnorm": (0.040, 2),
                "communication": (0.005, 1), "optimizer": (0.061, 2), "gaps": (0.050, 0)}
        self.assertEqual(set(rows), set(want))
        for family, (ms, count) in want.items():
            self.assertAlmostEqual(rows[family]["ms"], ms, msg=family)
            self.assertAlmostEqual(rows[family]["kernels"], count, msg=family)
            self.assertAlmostEqual(rows[family]["share"], ms / 0.336, msg=family)

    def test_an_unknown_kernel_is_other_and_shown_by_name_however_short(self):
        writer = self.steady_trace(extra=[("void somebody::mystery<int>(int*)", 1)])
        rows, _, out = self.rows(writer.text(), "--top", "1")
        self.assertAlmostEqual(rows["other"]["ms"], 0.001)
        self.assertIn("[other] void somebody::mystery<int>(int*)", out)
        self.assertNotIn(ADAMW, out)

    def test_every_kernel_of_a_step_is_counted_once(self):
        writer = self.steady_trace(extra=[("a", 3), ("b", 4)])
        rows, record, _ = self.rows(writer.text())
        self.assertAlmostEqual(sum(row["ms"] for row in rows.values()), record["step_ms"])
        self.assertAlmostEqual(sum(kernel["ms"] for kernel in record["kernels"]), 0.286 + 0.007)

    def test_warm_up_and_steps_of_another_make_are_left_out(self):
        writer = Writer()
        for i in range(10):
            writer.step(gemm_us=9000 if i < 3 else 100, extra=[("validation", 500)] if i == 6 else ())
        rows, record, _ = self.rows(writer.text())
        self.assertAlmostEqual(rows["GEMM, layers"]["ms"], 0.100)
        self.assertNotIn("other", rows)
        self.assertEqual((record["steady_steps"], record["steps"]), (5, 9))

    def test_kernels_beside_each_other_leave_no_gap(self):
        writer = self.steady_trace()
        for i in range(8):  # a copy on another stream across the pause before each control
            end = 10**15 + i * 336 * US + 275 * US
            writer.lines.append(f"C 5000000 {end - 60 * US} {end} 0 9 HtoD")
        rows, _, out = self.rows(writer.text())
        self.assertAlmostEqual(rows["gaps"]["ms"], 0.0)
        self.assertAlmostEqual(rows["copies"]["ms"], 0.060)
        self.assertAlmostEqual(rows["copies"]["achieved"], 5e6 / 60e-6 / 1e12)
        self.assertIn("0.010 ms ran beside other kernels", out)

    def test_records_need_not_be_in_order(self):
        lines = self.steady_trace().text().split("\n")
        names = [line for line in lines if line.startswith("N")]
        kernels = [line for line in lines if line.startswith("K")]
        shuffled = "\n".join([lines[0], *names, *kernels[::-1], "E"]) + "\n"
        self.assertEqual(self.rows(shuffled)[0], self.rows("\n".join(lines))[0])

    def test_another_device_and_what_is_missing_are_told(self):
        writer = self.steady_trace()
        writer.kernel("elsewhere", 5, device=1)
        writer.lines.append("L 3")
        writer.lines.extend(["K 0 5 0 0 7 0", "K 0 0 0 0 7 0", "C 64 5 0 0 7 DtoD", "S 64 5 0 0 7"])
        rows, record, out = self.rows(writer.text(end=False))
        self.assertNotIn("other", rows)
        self.assertEqual((record["lost"], record["unfinished"], record["complete"]), (3, 4, False))
        self.assertIn("3 records were lost", out)
        self.assertIn("no end mark", out)
        self.assertIn("device 0 of [0, 1]", out)
        rows, _, out = self.rows(writer.text(), "--device", "1")
        self.assertAlmostEqual(rows["other"]["ms"], 0.005)
        self.assertNotIn("no end mark", out)

    def test_any_program_is_one_stretch(self):
        writer = Writer()
        for name, us in (("ampere_sgemm_128x64_tn", 7), ("mine", 2)):
            writer.kernel(name, us, gap=US)
        rows, record, out = self.rows(writer.text())
        self.assertAlmostEqual(record["step_ms"], 0.010)
        self.assertAlmostEqual(rows["GEMM, layers"]["ms"], 0.007)
        self.assertAlmostEqual(rows["gaps"]["ms"], 0.001)
        self.assertIn("no steps", out)

    def test_the_step_kernel_can_be_another(self):
        writer = Writer()
        for _ in range(6):
            writer.kernel("tick", 1)
            writer.kernel("work", 9)
        _, record, _ = self.rows(writer.text(), "--step-kernel", "^tick$", "--skip", "1")
        self.assertEqual((record["steady_steps"], record["steps"]), (4, 5))
        self.assertAlmostEqual(record["step_ms"], 0.010)

    def test_ceilings(self):
        # 256 tokens, blocks of 64 (64 + 64) + 64 64 + 3 64 256 = 61440 weights, 2 of them; tied table of 64000.
        rows, record, out = self.rows(self.steady_trace().text(), "--copy-tbs", "2", "--gemm-tflops", "0.5",
                                      "--untraced-ms", "0.32", config=CONFIG)
        flops = 6 * 256 * 2 * 61440
        self.assertAlmostEqual(rows["GEMM, layers"]["best_ms"], flops / 0.5e9)
        self.assertAlmostEqual(rows["GEMM, layers"]["achieved"], flops / 100e-6 / 1e12)
        self.assertAlmostEqual(rows["GEMM, head"]["best_ms"], 6 * 256 * 64000 / 0.5e9)
        self.assertAlmostEqual(rows["loss"]["best_ms"], 256 * 1000 * 6 / 2e9)
        norms = 256 * 64 * 2 * (2 * 2 * 6 + 5)
        self.assertAlmostEqual(rows["rmsnorm"]["best_ms"], norms / 2e9)
        parameters = 64000 + 2 * (61440 + 128) + 64
        self.assertAlmostEqual(rows["optimizer"]["best_ms"], parameters * 34 / 2e9)
        self.assertNotIn("best_ms", rows["communication"])
        self.assertNotIn("best_ms", rows["gaps"])
        total = sum(row["best_ms"] for row in rows.values() if "best_ms" in row)
        self.assertAlmostEqual(record["best_ms"], total)
        weights, attention = 2 * 61440 + 64000, 2 * 64 * 32
        self.assertAlmostEqual(record["mfu"], 256 * 6 * (weights + attention) / 0.32e-3 / 989e12)
        self.assertIn("800,000 tokens/s", out)

    def test_ceilings_follow_precision_ranks_recompute_and_untied_head(self):
        model = lambda text, ranks=1: profile_ceilings.Model(profile_ceilings.read_config(text), ranks)  # noqa: E731
        plain, again = model(CONFIG), model(CONFIG.replace("recompute: none", "recompute: block"))
        self.assertEqual(again.flops()["GEMM, layers"] * 6, plain.flops()["GEMM, layers"] * 8)
        self.assertEqual(again.flops()["attention"] * 7, plain.flops()["attention"] * 9)
        self.assertEqual(again.flops()["GEMM, head"], plain.flops()["GEMM, head"])
        self.assertEqual(again.bytes_moved()["swiglu"] * 9, plain.bytes_moved()["swiglu"] * 12)
        self.assertEqual(again.bytes_moved()["rope"] * 2, plain.bytes_moved()["rope"] * 3)
        self.assertEqual(model(CONFIG, 4).tokens, 64)
        untied = model(CONFIG.replace("embeddings: true", "embeddings: false"))
        self.assertEqual(untied.parameters() - plain.parameters(), 64000)
        fp32 = model(CONFIG.replace("bf16", "fp32"))
        self.assertEqual(fp32.bytes_moved()["optimizer"], fp32.parameters() * 32)
        self.assertEqual(fp32.bytes_moved()["rope"], 2 * plain.bytes_moved()["rope"])

    def test_what_cannot_be_read_is_told(self):
        good = self.steady_trace().text()
        for text, message in (("hello\n", "not a trace"), ("", "not a trace"),
                              ("xce-kernel-trace 1\nE\n", "no kernels"),
                              (good.replace("K 3 ", "Q 3 "), "is no record"),
                              (good.replace("N 0 ", "N 99 "), "is no record")):
            status, out, record = self.run_report(text)
            self.assertEqual((status, record), (1, None))
            self.assertIn(message, out)
        status, out, _ = self.run_report(good, "--skip", "7")
        self.assertEqual(status, 1)
        self.assertIn("--skip 7 leaves none", out)
        for old, new, message in (("vocab_size: 1000", "vocab_size: 0", "vocab_size is 0"), ("bf16", "fp7", "not fp7"),
                                  ("  hidden_size: 64\n", "", "no model.hidden_size")):
            status, out, _ = self.run_report(good, config=CONFIG.replace(old, new))
            self.assertEqual(status, 1)
            self.assertIn(message, out)

    def test_a_torn_last_line_is_forgiven(self):
        text = self.steady_trace().text(end=False)
        self.assertEqual(self.rows(text + "K 0 100000")[0], self.rows(text)[0])

    def test_names_by_family(self):
        for name, family in (
                (f"void {XCE}backward<xce::Bf16, 8>(xce::SwigluBackward)", "swiglu"),
                (f"void {XCE}rotate<xce::Bf16, 8>(xce::Rope)", "rope"),
                (f"void {XCE}add<xce::Bf16, 8>(xce::Bf16 const*, xce::Bf16 const*, xce::Bf16*, long)", "elementwise"),
                ("void xce::cuda::fill_kernel<float, 4>(float*, long, double)", "elementwise"),
                (f"{XCE}take(xce::TakeSlot)", "elementwise"),
                (f"void {XCE}backward<xce::Bf16, 8>(xce::EmbeddingBackward)", "embedding"),
                (f"void {XCE}add_partials<float>(float const*, long, long, float*, bool)", "rmsnorm"),
                (f"void {XCE}block_sums<float>(float const*, long, double*)", "optimizer"),
                (f"{XCE}total(double const*, long, double*, bool)", "optimizer"),
                (f"{XCE}loss_count(xce::LossCount)", "loss"),
                (f"{XCE}sum_kernel(double const*, double const*, long, xce::loss::Totals*, bool)", "loss"),
                (f"void {XCE}sum_kernel<float>(double const*, double const*, long, xce::loss::Totals*)", "loss"),
                ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6", "attention"),
                ("void cudnn::fusion::compute_dot_do_o_specialized<true, __nv_bfloat16>(int)", "attention"),
                (f"void {XCE}forward<xce::Bf16, 64>(xce::AttentionForward)", "attention"),
                ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(Params)", "GEMM"),
                ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::Params)", "GEMM"),
                (LAYER_GEMM, "GEMM")):
            self.assertEqual(profile_report.family_of(name), family, name)


# Stands for the trainer under the tracer: writes a step's metrics every few milliseconds, and at SIGUSR2 the trace.
FAKE_TRAINER = """#!/usr/bin/env python3
import os, pathlib, signal, sys, time
keys = dict(argument.split("=", 1) for argument in sys.argv[2:])
folder = pathlib.Path(keys["run.dir"])
if keys.get("train.fail") == "1":
    sys.exit("no such data")
def end(*_):
    pathlib.Path(os.environ["XCE_TRACE_FILE"]).write_text(pathlib.Path(TRACE).read_text())
    os._exit(0)
if os.environ.get("CUDA_INJECTION64_PATH", "").endswith("/xce_kernel_trace.so"):
    signal.signal(signal.SIGUSR2, end)
folder.mkdir(parents=True)
(folder / "config.resolved.yaml").write_text(pathlib.Path(sys.argv[1]).read_text())
for step in range(1, 1000):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step":%d,"time_ms":%s,"x":1}\\n' % (step, 900 if step < 4 else 0.3))
    time.sleep(0.005)
"""


class ProfileScriptTest(Folder):
    def profile(self, *arguments, trace=""):
        (self.folder / "trace.txt").write_text(trace)
        (self.folder / "config.yaml").write_text(CONFIG)
        (self.folder / "xce_kernel_trace.so").write_text("")
        trainer = self.folder / "xce-train"
        trainer.write_text(FAKE_TRAINER.replace("TRACE)", f"{str(self.folder / 'trace.txt')!r})"))
        trainer.chmod(0o755)
        script = pathlib.Path(__file__).resolve().parents[2] / "tools" / "profile.sh"
        return subprocess.run(["sh", script, "--bin", self.folder, *arguments], capture_output=True, text=True,
                              timeout=60)

    def test_the_script_profiles_and_leaves_what_it_is_asked_to(self):
        kept = self.folder / "kept"
        result = self.profile("--steps", "8", "--keep", kept, self.folder / "config.yaml", "train.seq_len=32",
                              trace=self.steady_trace().text())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("median of 4 steady of 7 steps", result.stdout)
        self.assertIn("without the tracer 0.300 ms: gaps are about 0.014 ms", result.stdout)
        self.assertEqual({path.name for path in kept.iterdir()}, {"trace.txt", "report.json", "config.resolved.yaml"})

    def test_the_script_tells_what_is_wrong(self):
        config = self.folder / "config.yaml"
        self.assertEqual(self.profile().returncode, 2)
        self.assertEqual(self.profile("--steps", "many", config).returncode, 2)
        self.assertEqual(self.profile("--steps", "5", config).returncode, 2)
        self.assertIn("no /nowhere", self.profile("--bin", "/nowhere", config).stderr)
        failed = self.profile("--no-untraced", config, "train.fail=1")
        self.assertEqual(failed.returncode, 1)
        self.assertIn("ended before step 12", failed.stderr)
        self.assertIn("no such data", failed.stderr)
        self.assertIn("no trace was written", self.profile("--no-untraced", "--steps", "6", config).stderr)


if __name__ == "__main__":
    unittest.main()
