"""xce-train --sample with token ids in place of text.

  sample_cli_test.py PATH_TO_XCE_TRAIN [unittest options]
"""
import os
import sys
import unittest

sys.dont_write_bytecode = True
import train_cli_test  # noqa: E402
from train_cli_test import CliTest, run  # noqa: E402


class SampleIds(CliTest):
    def test_a_byte_model_takes_and_writes_either(self):
        text = self.tmp / "text.txt"
        text.write_text("abcdefgh" * 2000)
        config, directory = self.tiny("run", steps=100)
        config.write_text(config.read_text().replace("kind: markov, markov_states: 16, generated_tokens: 200000",
                                                     f"kind: bytes, train: {text}"))
        run(config, check=0)
        ids = ",".join(str(byte) for byte in b"abcdefghabcdefghabcdefghabc")
        for source in (directory / "export", directory / "checkpoints" / "step-100"):
            for prompt in (["--prompt", "abcdefghabc"], ["--prompt-ids", "97,98,99,100,101,102,103,104,97,98,99"]):
                words = ["--sample", source, *prompt, "--temperature", "0", "--tokens", 16]
                self.assertEqual(run(*words, check=0).stdout, "abcdefghabcdefghabcdefghabc\n")
                self.assertEqual(run(*words, "--print-ids", check=0).stdout, ids + "\n")

    def test_another_vocabulary_has_ids_alone(self):
        config, directory = self.tiny("run", steps=100)
        run(config, check=0)
        for source in (directory / "export", directory / "checkpoints" / "step-100"):
            words = ["--sample", source, "--tokens", 40, "--seed", 5]
            out = run(*words, "--prompt-ids", "3,0,15", check=0).stdout
            self.assertRegex(out, r"^3,0,15(,(\d|1[0-5])){40}\n$")
            self.assertEqual(out, run(*words, "--prompt-ids", "3,0,15", "--print-ids", check=0).stdout)
            self.assertIn("16; give --prompt-ids", run(*words, "--prompt", "abc", check=2).stderr)
            self.assertIn("token 16 is outside the vocabulary of 16",
                          run(*words, "--prompt-ids", "1,16", check=2).stderr)

    def test_wrong_words(self):
        words = ["--sample", self.tmp]
        for wrong in ("1,,2", "1,x", "-1", "4294967297", "1,2147483648", "1 2", "1.5", "", ",1", "1,"):
            self.assertIn("--prompt-ids", run(*words, f"--prompt-ids={wrong}", check=2).stderr)
        self.assertIn("--prompt", run(*words, "--prompt-ids", "1", "--prompt", "a", check=2).stderr)
        self.assertIn("--prompt-ids", run(*words, check=2).stderr)
        self.assertIn("--sample", run("--print-ids", check=2).stderr)


if __name__ == "__main__":
    train_cli_test.XCE_TRAIN = os.path.abspath(sys.argv.pop(1))
    unittest.main()
