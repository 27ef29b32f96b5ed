#!/usr/bin/env python3
"""From text files to text that a model writes: tools/prepare_data.py, xce-train, tools/sample_text.py.

  sample_text_test.py PATH_TO_XCE_TRAIN PATH_TO_PACK_TOKENS [unittest options]
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import sample_text  # noqa: E402
import text_tokenizer  # noqa: E402

XCE_TRAIN = PACK_TOKENS = None

CONFIG = """\
run: {{dir: {dir}, seed: 3, threads: 2}}
model: {{hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2, vocab_size: 258}}
data: {{kind: tokens, train: {data}/train.tok, val: {data}/val.tok}}
train: {{steps: 200, seq_len: 32, micro_batch: 8}}
optim: {{lr: 1e-2, weight_decay: 0.0}}
log: {{every: 50, tensorboard: false}}
loss: {{workspace_mib: 1}}
"""


def run(*words, check=0):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    if done.returncode != check:
        raise AssertionError(f"exit status {done.returncode}, expected {check}: {done.stdout}{done.stderr}")
    return done


class SampleText(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)

    def test_text_in_text_out(self):
        texts = self.tmp / "texts"
        texts.mkdir()
        for i in range(400):
            (texts / f"{i}.txt").write_text("12345678" if i % 2 else "größer!")
        run(sys.executable, TOOLS / "prepare_data.py", "--input", texts, "--output", self.tmp / "data", "--tokenizer",
            "bytes", "--pack-tokens", PACK_TOKENS)
        directory = self.tmp / "run"
        (self.tmp / "config.yaml").write_text(CONFIG.format(dir=directory, data=self.tmp / "data"))
        run(XCE_TRAIN, self.tmp / "config.yaml")

        def sample(model, *words, check=0):
            script = [sys.executable, TOOLS / "sample_text.py", model, "--xce-train", XCE_TRAIN, "--threads", "2"]
            return run(*script, "--tokenizer", "bytes", *words, check=check)

        for model in (directory, directory / "export", directory / "checkpoints" / "step-200"):
            for prompt, text in (("123", "12345678\n"), ("gr", "größer!\n")):
                self.assertEqual(sample(model, "--prompt", prompt, "--temperature", "0").stdout, text)
        self.assertEqual(sample(directory, "--prompt", "1", "--temperature", "0", "--tokens", "3").stdout, "1234\n")
        self.assertIn(sample(directory, "--temperature", "0").stdout, ("12345678\n", "größer!\n"))
        self.assertIn("config.json", sample(self.tmp, "--prompt", "1", check=2).stderr)
        self.assertIn("--tokens", sample(directory, "--tokens", "x", check=2).stderr)
        self.assertIn("--tokenizer", sample(directory, "--tokenizer", "none", check=2).stderr)

    def test_which_model_a_directory_means(self):
        run_dir = self.tmp / "run"
        self.assertEqual(sample_text.find_model(run_dir), run_dir)
        for step in ("step-9", "step-10", "step-x"):
            (run_dir / "checkpoints" / step).mkdir(parents=True)
        self.assertEqual(sample_text.find_model(run_dir), run_dir / "checkpoints" / "step-10")
        (run_dir / "export").mkdir()
        (run_dir / "export" / "config.json").touch()
        self.assertEqual(sample_text.find_model(run_dir), run_dir / "export")

    def test_the_text_ends_with_its_document(self):
        tokenizer = text_tokenizer.ByteTokenizer()
        self.assertEqual(sample_text.text_of(tokenizer, [256, 65, 66, 257, 256, 67]), "AB")
        self.assertEqual(sample_text.text_of(tokenizer, [256, 65, 66]), "AB")


if __name__ == "__main__":
    XCE_TRAIN, PACK_TOKENS = [str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2)]
    unittest.main()
