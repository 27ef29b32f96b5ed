"""xce-train as its users run it: exit statuses, messages, resuming after kill -9 and signals, what a run leaves behind.

  train_cli_test.py PATH_TO_XCE_TRAIN [unittest options]
"""
import json
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

XCE_TRAIN = None

TINY = """\
run: {{dir: {dir}, seed: 3, threads: 2, device: {device}}}
model: {{hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}}
data: {{kind: markov, markov_states: 16, generated_tokens: 200000, val_fraction: 0.05}}
train: {{steps: {steps}, seq_len: 32, micro_batch: 8, global_batch: 8}}
optim: {{lr: 1e-2, weight_decay: 0.0}}
schedule: {{kind: cosine, warmup_steps: 10}}
checkpoint: {{every: {every}}}
eval: {{every: 50, sequences: 16}}
log: {{every: 50, tensorboard: false}}
loss: {{workspace_mib: 1}}
"""
# What depends on the clock, or on what else lies in a GPU's memory, and so differs between two runs with the same bits.
OF_THE_MOMENT = ("time_ms", "tokens_per_s", "mfu", "data_wait", "memory_bytes")


def run(*words, check=None, **more):
    done = subprocess.run([XCE_TRAIN, *map(str, words)], capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL, **more)
    if check is not None and done.returncode != check:
        raise AssertionError(f"exit status {done.returncode}, expected {check}: {done.stdout}{done.stderr}")
    return done


def metrics(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in OF_THE_MOMENT} for line in lines]


def weights(directory):
    return (directory / "export" / "model.safetensors").read_bytes()


class CliTest(unittest.TestCase):
    device = "cpu"
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.tmp = pathlib.Path(self.folder.name)

    def tiny(self, name, steps=200, every=100):
        config = self.tmp / f"{name}.yaml"
        config.write_text(TINY.format(dir=self.tmp / name, steps=steps, every=every, device=self.device))
        return config, self.tmp / name

    def start_and_wait_for_step(self, config, directory, step):
        """Starts a run and returns its process once metrics.jsonl holds `step` lines."""
        process = subprocess.Popen([XCE_TRAIN, str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True)
        deadline = time.monotonic() + 200
        path = directory / "metrics.jsonl"
        while not path.exists() or path.read_text().count("\n") < step:
            self.assertIsNone(process.poll(), "the run ended early")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.002)
        return process


class Resume(CliTest):
    def test_after_kill_9_the_same_metrics_and_weights(self):
        config, straight = self.tiny("straight", steps=3000, every=1000)
        run(config, check=0)
        config, killed = self.tiny("killed", steps=3000, every=1000)
        process = self.start_and_wait_for_step(config, killed, 1100)
        process.kill()
        process.communicate()
        self.assertFalse((killed / "export").exists())
        with open(killed / "metrics.jsonl", "a") as torn:
            torn.write('{"step": 1')  # as a crash in the middle of a line leaves it
        done = run(config, check=0)
        self.assertRegex(done.stderr, "resumed from step [12]000")
        self.assertEqual(metrics(straight), metrics(killed))
        self.assertEqual([m["step"] for m in metrics(killed)], list(range(1, 3001)))
        self.assertEqual(weights(straight), weights(killed))

    def test_signals_save_and_exit_75(self):
        config, straight = self.tiny("straight", steps=4000, every=0)
        run(config, check=0)
        config, stopped = self.tiny("stopped", steps=4000, every=0)
        for number, step in ((signal.SIGUSR1, 100), (signal.SIGTERM, 1000), (signal.SIGINT, 2000)):
            process = self.start_and_wait_for_step(config, stopped, step)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 75, err)
        run(config, check=0)
        self.assertEqual(metrics(straight), metrics(stopped))
        self.assertEqual(weights(straight), weights(stopped))

    def test_a_signal_while_the_last_files_are_written(self):
        config, directory = self.tiny("run", steps=300, every=0)
        config.write_text(config.read_text().replace("hidden_size: 32, intermediate_size: 64",
                                                     "hidden_size: 512, intermediate_size: 2048"))
        process = subprocess.Popen([XCE_TRAIN, str(config), "train.steps=3"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 200
        while not list((directory / "checkpoints").glob(".*")) and process.poll() is None:
            self.assertLess(time.monotonic(), deadline)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertTrue((directory / "export" / "config.json").exists())
        self.assertTrue((directory / "checkpoints" / "step-3" / "manifest.json").exists())

    def test_a_second_process_in_the_same_run_is_refused(self):
        config, directory = self.tiny("run", steps=100000, every=0)
        process = self.start_and_wait_for_step(config, directory, 1)
        self.assertIn("another process", run(config, check=2).stderr)
        process.kill()
        process.communicate()

    def test_a_finished_run_says_so(self):
        config, directory = self.tiny("run", steps=5)
        run(config, check=0)
        before = (directory / "metrics.jsonl").read_bytes()
        self.assertIn("nothing left to do", run(config, check=0).stderr)
        self.assertEqual(before, (directory / "metrics.jsonl").read_bytes())

    def test_more_steps_go_on_and_are_listed(self):
        config, directory = self.tiny("run", steps=5)
        run(config, check=0)
        self.assertIn("train.steps: 5 -> 8", run(config, "train.steps=8", check=0).stderr)
        self.assertEqual([m["step"] for m in metrics(directory)], list(range(1, 9)))

    def test_other_model_data_or_seed_is_refused(self):
        config, directory = self.tiny("run", steps=5)
        run(config, check=0)
        before = (directory / "metrics.jsonl").read_bytes()
        for word in ("model.hidden_size=16", "run.seed=4", "data.markov_states=8", "train.seq_len=16"):
            self.assertIn(word.split("=")[0], run(config, word, check=2).stderr)
        self.assertEqual(before, (directory / "metrics.jsonl").read_bytes())

    def test_resume_must_and_never(self):
        config, _ = self.tiny("run", steps=5)
        self.assertIn("run.resume", run(config, "run.resume=must", check=2).stderr)
        run(config, check=0)
        self.assertIn("run.resume", run(config, "run.resume=never", check=2).stderr)

    def test_time_limit_saves_and_goes_on(self):
        config, directory = self.tiny("run", steps=200)
        run(config, "train.max_minutes=1e-9", check=0)
        self.assertEqual(len(metrics(directory)), 1)
        self.assertIn("val_loss", metrics(directory)[-1])
        run(config, check=0)
        self.assertEqual(len(metrics(directory)), 200)

    def test_corrupt_and_half_written_checkpoints(self):
        config, directory = self.tiny("run", steps=5)
        run(config, check=0)
        (directory / "checkpoints" / "step-9").mkdir()
        self.assertIn("step-9", run(config, check=0).stderr)
        master = directory / "checkpoints" / "step-5" / "master.bin"
        data = bytearray(master.read_bytes())
        data[100] ^= 1
        master.write_bytes(data)
        self.assertIn("master.bin", run(config, "train.steps=6", check=3).stderr)


class ResumeOnGpu(Resume):
    device = "cuda"

    def setUp(self):
        super().setUp()
        config, _ = self.tiny("plan")
        if "there is no GPU here" in run(config, "--dry-run", check=0).stdout:
            self.skipTest("needs a GPU")
        os.environ["XDG_CACHE_HOME"] = str(self.tmp / "cache")  # the runs of a test choose the same algorithms
        self.addCleanup(os.environ.pop, "XDG_CACHE_HOME")


class BadInput(CliTest):
    def refused(self, text, status, *expected, words=()):
        config = self.tmp / "bad.yaml"
        config.write_bytes(text if isinstance(text, bytes) else text.encode())
        done = run(config, *words, check=status)
        for part in expected:
            self.assertIn(part, done.stderr)
        self.assertFalse((self.tmp / "out").exists(), "nothing may be written")

    def base(self, **changes):
        text = TINY.format(dir=self.tmp / "out", steps=5, every=0, device="cpu")
        for old, new in changes.values():
            self.assertIn(old, text)
            text = text.replace(old, new)
        return text

    def test_config_errors_name_place_and_nearest_key(self):
        self.refused(self.base(a=("hidden_size", "hiden_size")), 2, "bad.yaml:2:9", "hidden_size")
        self.refused(self.base(a=("seed: 3", "seed: 3, seed: 4")), 2, "bad.yaml:1:", "seed")
        self.refused(self.base(a=("lr: 1e-2", "lr: nan")), 2, "bad.yaml:5:", "lr")
        self.refused(self.base(a=("lr: 1e-2", "lr: 0.1x")), 2, "bad.yaml:5:", "0.1x")
        self.refused(self.base(a=("steps: 5", "steps: [1, 2]")), 2, "bad.yaml:4:", "steps")
        self.refused("run: {", 2, "bad.yaml:")

    def test_bad_words_on_the_command_line(self):
        self.refused(self.base(), 2, "train.step", "did you mean 'train.steps'", words=["train.step=5"])
        self.refused(self.base(), 2, words=["--no-such-flag"])
        self.assertEqual(run().returncode, 2)

    def test_unsupported_values_are_named(self):
        for word in ("loss.label_smoothing=1", "loss.softcap=30", "run.device=cuda", "parallel.shard=full"):
            key, value = word.split("=")
            self.refused(self.base(), 2, key, value, words=[word])

    def test_missing_config(self):
        self.assertIn("nowhere.yaml", run(self.tmp / "nowhere.yaml", check=2).stderr)

    def test_data_errors(self):
        markov = "kind: markov, markov_states: 16, generated_tokens: 200000"
        missing = self.tmp / "missing.txt"
        self.refused(self.base(a=(markov, f"kind: bytes, train: {missing}")), 2, "missing.txt")
        empty = self.tmp / "empty.txt"
        empty.write_bytes(b"")
        self.refused(self.base(a=(markov, f"kind: bytes, train: {empty}")), 3, "empty.txt")
        broken = self.tmp / "broken.bin"
        broken.write_bytes(b"not a token file, but long enough to hold a header" * 4)
        self.refused(self.base(a=(markov, f"kind: tokens, train: {broken}")), 3, "broken.bin")

    def test_a_run_directory_that_cannot_be_made(self):
        (self.tmp / "file").write_text("")
        config, _ = self.tiny("run", steps=2)
        self.assertIn("file", run(config, f"run.dir={self.tmp}/file/run", check=6).stderr)

    def test_nonfinite_limit(self):
        config, directory = self.tiny("run", steps=50)
        done = run(config, "optim.lr=1e30", "optim.grad_clip=0", "schedule.warmup_steps=0", "optim.nonfinite_limit=3",
                   check=4)
        self.assertIn("nonfinite_limit", done.stderr)
        records = metrics(directory)
        self.assertEqual(records[-1]["skipped"], 4)
        self.assertIsNone(records[-1]["grad_norm"])

    def test_numbers_that_no_run_survives_are_named(self):
        for words in (["optim.eps=1e-320"], ["model.rms_norm_eps=0"], ["data.markov_states=2"],
                      ["data.val_fraction=1e-9"], ["loss.workspace_mib=1", "model.hidden_size=262144"]):
            self.refused(self.base(), 2, words[0].split("=")[0], words=words)
        self.refused(self.base(), 2, "mlp.gate_up_proj of shape 33554432 x 16777216", words=[
            "model.hidden_size=16777216", "model.intermediate_size=16777216", "model.num_hidden_layers=10000",
            "loss.workspace_mib=1048576"])

    def test_numbers_of_options(self):
        config, _ = self.tiny("run")
        for number in ("0", "-1", "99999999999999999999", "1.5", "x"):
            err = run(config, "--dry-run", "--world", number, check=2).stderr
            self.assertIn(f"--world: expected a whole number >= 1 and <= 1048576, got '{number}'", err)
        for option, numbers in {"--tokens": ("-1", "99999999999999999999"), "--temperature": ("nan", "inf", "-0.5"),
                                "--seed": ("-1", "99999999999999999999", "18446744073709551615"),
                                "--threads": ("-1", "1025")}.items():
            for number in numbers:
                err = run("--sample", self.tmp, "--prompt", "a", option, number, check=2).stderr
                self.assertRegex(err, f"{option}: expected a (whole )?number >= 0.*, got '{number}'")
                self.assertLess(len(err), 200)

    def test_commands_that_exclude_each_other(self):
        config, _ = self.tiny("run")
        self.assertIn("CONFIG", run(config, "--sample", self.tmp, "--prompt", "a", check=2).stderr)
        self.assertIn("--dry-run", run("--sample", self.tmp, "--prompt", "a", "--dry-run", check=2).stderr)

    def test_the_demo_refuses_words_that_its_report_cannot_follow(self):
        demo = pathlib.Path(__file__).parents[2] / "tools" / "demo.sh"
        for word in ("run.dir=x", "data.val_fraction=0.2", "data.train=x", "--fast", "steps"):
            done = subprocess.run([demo, word], capture_output=True, text=True, timeout=20)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(word, done.stderr)
            self.assertEqual(done.stdout, "")
        done = subprocess.run([demo, "--help"], capture_output=True, text=True, timeout=20)
        self.assertEqual(done.returncode, 0)
        self.assertIn("tools/demo.sh [section.key=value ...]", done.stdout)


class Commands(CliTest):
    def test_version_help_and_lists(self):
        self.assertRegex(run("--version", check=0).stdout, r"xce-train \d+\.\d+\.\d+")
        self.assertIn("Exit status", run("--help", check=0).stdout)
        self.assertIn("train.steps", run("--help-config", check=0).stdout)

    def test_dry_run_writes_nothing(self):
        config, directory = self.tiny("run")
        out = run(config, "--dry-run", check=0).stdout
        self.assertRegex(out, r"parameters +[\d,]+")
        self.assertRegex(out, r"memory +[\d.]+ MiB")
        self.assertRegex(run(config, "--dry-run", "--world", 4, check=0).stdout, r"ranks +4")
        run(config, "--world", 4, check=2)  # only with --dry-run
        self.assertFalse(directory.exists())

    def test_print_config_round_trips(self):
        config, directory = self.tiny("run")
        out = run(config, "--print-config", "train.steps=7", check=0).stdout
        again = self.tmp / "again.yaml"
        again.write_text(out)
        strip = lambda text: re.sub(r" *#.*", "", text)
        self.assertEqual(strip(out), strip(run(again, "--print-config", check=0).stdout))
        self.assertRegex(out, r"steps: 7 +# command line")
        self.assertFalse(directory.exists())

    def test_non_ascii_paths_bom_and_crlf(self):
        config, _ = self.tiny("run", steps=2)
        other = self.tmp / "größe.yaml"
        text = config.read_text().replace(str(self.tmp / "run"), str(self.tmp / "läufe"))
        other.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
        run(other, check=0)
        self.assertTrue((self.tmp / "läufe" / "export" / "model.safetensors").exists())

    def test_sample_from_export_and_checkpoint(self):
        text = self.tmp / "text.txt"
        text.write_text("abcdefgh" * 2000)
        config, directory = self.tiny("run", steps=100)
        config.write_text(config.read_text().replace("kind: markov, markov_states: 16, generated_tokens: 200000",
                                                     f"kind: bytes, train: {text}"))
        run(config, check=0)
        self.assertLess(metrics(directory)[-1]["bits_per_byte"], 0.1)
        for source in (directory / "export", directory / "checkpoints" / "step-100"):
            out = run("--sample", source, "--prompt", "abcdefghabc", "--temperature", "0", "--tokens", 16,
                      check=0).stdout
            self.assertEqual(out, "abcdefghabcdefghabcdefghabc\n")
        self.assertIn("--prompt", run("--sample", directory / "export", check=2).stderr)

    def test_export_continues_as_init_from(self):
        config, directory = self.tiny("run", steps=50)
        run(config, check=0)
        config2, second = self.tiny("second", steps=2)
        run(config2, f"model.init_from={directory}/export", "optim.lr=1e-9", "eval.every=1", "eval.sequences=0",
            check=0)
        self.assertAlmostEqual(metrics(directory)[-1]["val_loss"], metrics(second)[0]["val_loss"], places=5)

    def test_precisions_and_recompute_train_alike(self):
        losses = {}
        for word in ("train.precision=fp32", "train.precision=fp64", "train.precision=bf16", "train.recompute=block"):
            config, directory = self.tiny(word.replace("=", "-"), steps=30)
            run(config, word, check=0)
            losses[word] = [m["loss"] for m in metrics(directory)]
        want = losses["train.precision=fp64"]
        for word, bar in (("train.precision=fp32", 1e-4), ("train.precision=bf16", 3e-2)):
            self.assertLess(max(abs(a - b) for a, b in zip(losses[word], want)), bar, word)
        self.assertEqual(losses["train.recompute=block"], losses["train.precision=fp32"])

    def test_markov_source_is_learnt_to_its_entropy(self):
        config, directory = self.tiny("run", steps=600, every=0)
        done = run(config, check=0)
        floor = float(re.search(r"floor +([\d.]+)", done.stderr)[1])
        records = metrics(directory)
        self.assertAlmostEqual(records[0]["loss"], math.log(16), delta=0.2)
        self.assertLess(records[-1]["val_loss"], 1.02 * floor)
        self.assertGreater(records[-1]["val_loss"], 0.97 * floor)

    def test_a_full_disk_behind_the_standard_output(self):
        config, _ = self.tiny("run")
        for words in ([config, "--print-config"], [config, "--dry-run"], ["--help-config"], ["--help"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([XCE_TRAIN, *map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=60)
            self.assertEqual(done.returncode, 6, words)
            self.assertIn("standard output", done.stderr)

    def test_sample_takes_memory_and_time_for_the_text_alone(self):
        text = self.tmp / "text.txt"
        text.write_text("abcdefgh" * 2000)
        config, directory = self.tiny("run", steps=100)
        config.write_text(config.read_text().replace("kind: markov, markov_states: 16, generated_tokens: 200000",
                                                     f"kind: bytes, train: {text}"))
        run(config, check=0)
        export = directory / "export"
        sample = ["--sample", export, "--prompt", "abcdefgh", "--tokens", "8", "--temperature", "0"]
        short = run(*sample, check=0).stdout
        self.assertEqual(short, run(*sample, "--threads", "1", check=0).stdout)
        shape = json.loads((export / "config.json").read_text())
        (export / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 16777216}))
        started = time.monotonic()
        self.assertEqual(short, run(*sample, check=0).stdout)
        self.assertLess(time.monotonic() - started, 20)
        huge = {"hidden_size": 16777216, "intermediate_size": 16777216}
        (export / "config.json").write_text(json.dumps(shape | huge))
        self.assertIn("model.embed_tokens.weight", run(*sample, check=3).stderr)
        (export / "config.json").write_text(json.dumps(shape | huge | {"num_hidden_layers": 10000}))
        self.assertIn("72057594037927936", run(*sample, check=2).stderr)
        (export / "config.json").write_text(json.dumps(shape | {"hidden_size": 1 << 40}))
        self.assertIn("hidden_size is 1099511627776", run(*sample, check=2).stderr)


if __name__ == "__main__":
    XCE_TRAIN = os.path.abspath(sys.argv.pop(1))
    unittest.main()
