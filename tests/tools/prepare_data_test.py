#!/usr/bin/env python3
"""tools/prepare_data.py: order, split, parts, resuming, and the files that come out, read by the C++ reader.

  prepare_data_test.py PATH_TO_PACK_TOKENS [unittest options]
"""
import array
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import prepare_data  # noqa: E402
import text_tokenizer  # noqa: E402

PACK_TOKENS = None
BOS, EOS = 256, 257


def ids_of(text):
    return [BOS, *text.encode(), EOS]


def read_tokens(path):
    """(vocabulary, ids): the format read once more, from its description."""
    content = path.read_bytes()
    magic, version, width, count, vocab = struct.unpack_from("<8sIIQQ", content)
    assert (magic, version, width) == (b"XCETOKEN", 1, 2), (magic, version, width)
    ids = list(struct.unpack(f"<{count}H", content[64:]))
    return vocab, ids


def documents_of(ids):
    """The texts between <s> and </s>; fails when anything lies outside of them."""
    texts, at = [], 0
    while at < len(ids):
        assert ids[at] == BOS, (at, ids[at])
        end = ids.index(EOS, at)
        texts.append(bytes(ids[at + 1:end]).decode())
        at = end + 1
    return texts


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Test(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)

    def corpus(self, name, texts):
        for path, text in texts.items():
            path = self.tmp / name / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self.tmp / name

    def words(self, corpus, output, *more):
        inputs = corpus if isinstance(corpus, list) else [corpus]
        words = ["--input", *inputs, "--output", self.tmp / output, "--tokenizer", "bytes"]
        return [sys.executable, *map(str, [TOOLS / "prepare_data.py", *words, "--pack-tokens", PACK_TOKENS, *more])]

    def prepare(self, corpus, output, *more, check=0):
        done = subprocess.run(self.words(corpus, output, *more), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, check, done.stderr)
        return done.stderr if check else self.tmp / output

    @staticmethod
    def verify(*paths):
        return subprocess.run([PACK_TOKENS, "--verify", *paths], capture_output=True, text=True, timeout=60)


class Order(Test):
    def documents(self, count):
        return [prepare_data.Document(f"{i // 10}/{i % 10}.c", "", 100, 0, False) for i in range(count)]

    def test_names_alone_decide_order_and_split(self):
        documents = self.documents(2000)
        train, validation = prepare_data.split_documents(documents, 0.1)
        again = prepare_data.split_documents(documents[::-1], 0.1)
        self.assertEqual((train, validation), again)
        self.assertEqual(sorted(train + validation), sorted(documents))
        self.assertAlmostEqual(len(validation) / 2000, 0.1, delta=0.03)
        # Neither follows the directories: they are spread over both, and neighbours are not together.
        self.assertGreater(len({d.name.split("/")[0] for d in validation}), 100)
        neighbours = sum(a.name.split("/")[0] == b.name.split("/")[0] for a, b in zip(train, train[1:]))
        self.assertLess(neighbours, 40)
        # More files leave the old ones where they were, and a larger share takes more of the same.
        more_train, more_validation = prepare_data.split_documents(self.documents(3000), 0.1)
        self.assertEqual([d for d in more_train if d in set(documents)], train)
        self.assertEqual([d for d in more_validation if d in set(documents)], validation)
        self.assertLess(set(validation), set(prepare_data.split_documents(documents, 0.2)[1]))

    def test_the_split_at_its_ends(self):
        documents = self.documents(50)
        self.assertEqual(prepare_data.split_documents(documents, 0.0)[1], [])
        self.assertEqual(prepare_data.split_documents(documents, 1.0)[0], [])

    def test_parts_are_runs_of_documents(self):
        documents = [prepare_data.Document(str(i), "", size, 0, False) for i, size in enumerate([60, 60, 10, 200, 5])]
        parts = prepare_data.cut_parts(documents, 100)
        self.assertEqual([[d.size for d in part] for part in parts], [[60, 60], [10, 200], [5]])
        self.assertEqual(prepare_data.cut_parts([], 100), [])

    def test_what_is_text_in_a_directory(self):
        texts = dict.fromkeys(("a/x.c", "a/x.o", "Makefile", "Kconfig.debug", "b/y.rst"), "x")
        texts |= {"empty.c": "", "big.h": "x" * (prepare_data.MAX_FILE_BYTES + 1)}
        corpus = self.corpus("corpus", texts)
        (corpus / "link.c").symlink_to("a/x.c")
        found = prepare_data.find_documents([corpus])
        self.assertEqual(sorted(d.name for d in found), ["Kconfig.debug", "Makefile", "a/x.c", "b/y.rst"])
        self.assertEqual(prepare_data.find_documents([corpus / "a/x.o"])[0].required, True)


class CountingTokenizer(text_tokenizer.ByteTokenizer):
    """Leaves a file per document, because the work is done by other processes."""

    def __init__(self, folder):
        self.folder = folder

    def encode(self, text):
        tempfile.mkstemp(dir=self.folder)
        return super().encode(text)


class Parts(Test):
    def test_finished_parts_are_not_made_again(self):
        calls = self.tmp / "calls"
        calls.mkdir()
        corpus = self.corpus("corpus", {f"{i}.txt": f"text {i} " * 10 for i in range(12)})
        parts = prepare_data.cut_parts(prepare_data.find_documents([corpus]), 130)
        self.assertEqual([len(part) for part in parts], [2] * 6)
        prepare_data.TOKENIZER = CountingTokenizer(calls)
        tokenise = lambda limit: prepare_data.tokenise(parts, self.tmp, "train", limit, 2)
        first = tokenise(0)
        self.assertEqual(len(first), 6)
        self.assertEqual(len(list(calls.iterdir())), 12)
        content = [path.read_bytes() for path, _ in first]
        first[3][0].unlink()
        first[4][0].with_suffix(".unfinished").write_bytes(b"torn")  # as a killed process leaves it
        self.assertEqual(tokenise(0), first)
        self.assertEqual(len(list(calls.iterdir())), 14)
        self.assertEqual([path.read_bytes() for path, _ in first], content)
        # A limit takes the parts that reach it and no more.
        self.assertEqual(tokenise(1), first[:1])
        self.assertEqual(tokenise(sum(about["tokens"] for _, about in first[:2])), first[:2])
        self.assertEqual(tokenise(1 + sum(about["tokens"] for _, about in first[:2])), first[:3])

    def test_a_document_that_does_not_come_back_is_refused(self):
        class Lossy(text_tokenizer.ByteTokenizer):
            def encode(self, text):
                return super().encode(text.lower())

        corpus = self.corpus("corpus", {"a.txt": "Text"})
        with self.assertRaisesRegex(prepare_data.UsageError, "a.txt"):
            prepare_data.encode_part(Lossy(), prepare_data.find_documents([corpus]))


class Files(Test):
    def test_the_documents_come_back_whole(self):
        texts = {f"{i}/{i}.c": f"int f{i}(void);\n// größe {i}\n" * (1 + i % 7) for i in range(60)}
        corpus = self.corpus("corpus", texts | {"bad.c": b"\xff\xfe", "zero.c": b"a\0b"})
        out = self.prepare(corpus, "out", "--val-fraction", "0.2")
        self.assertEqual(sorted(p.name for p in out.iterdir()), ["about.json", "train.tok", "val.tok"])
        train, validation = [read_tokens(out / name) for name in ("train.tok", "val.tok")]
        self.assertEqual([vocab for vocab, _ in (train, validation)], [258, 258])
        train, validation = documents_of(train[1]), documents_of(validation[1])
        self.assertEqual(sorted(train + validation), sorted(texts.values()))
        self.assertGreater(len(validation), 3)
        order = prepare_data.split_documents(prepare_data.find_documents([corpus]), 0.2)[0]
        self.assertEqual(train, [texts[d.name] for d in order if d.name in texts])
        about = json.loads((out / "about.json").read_text())
        self.assertEqual(about["train"]["documents"], len(train))
        self.assertEqual(about["train"]["skipped_files"] + about["val"]["skipped_files"], 2)
        done = self.verify(out / "train.tok", out / "val.tok")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"train.tok: {about['train']['tokens']} tokens, vocabulary 258, 2 bytes", done.stdout)

    def test_another_place_and_other_processes_give_the_same_files(self):
        texts = {f"{i}.md": f"word{i} " * 50 for i in range(40)}
        one = self.prepare(self.corpus("one", texts), "out-one", "--val-fraction", "0.25", "--jobs", "1")
        texts = dict(reversed(texts.items()))
        two = self.prepare(self.corpus("two", texts), "out-two", "--val-fraction", "0.25", "--jobs", "3")
        for name in ("train.tok", "val.tok"):
            self.assertEqual((one / name).read_bytes(), (two / name).read_bytes())

    def test_a_limit_cuts_both_files(self):
        texts = {f"{i}.md": f"word{i} " * 50 for i in range(200)}
        corpus = self.corpus("corpus", texts)
        whole = self.prepare(corpus, "whole", "--val-fraction", "0.25")
        cut = self.prepare(corpus, "cut", "--val-fraction", "0.25", "--max-tokens", "1001")
        for name, count in (("train.tok", 1001), ("val.tok", 250)):
            ids = read_tokens(cut / name)[1]
            self.assertEqual(len(ids), count)
            self.assertEqual(ids, read_tokens(whole / name)[1][:count])
        none = self.prepare(corpus, "cut", "--val-fraction", "0")
        self.assertFalse((none / "val.tok").exists(), "of the call before")
        self.assertEqual(len(documents_of(read_tokens(none / "train.tok")[1])), 200)

    def test_a_killed_call_goes_on(self):
        texts = {f"{i}.txt": f"{i} the quick brown fox\n" * 9000 for i in range(100)}  # 24 parts
        corpus = self.corpus("corpus", texts)
        straight = self.prepare(corpus, "straight")
        process = subprocess.Popen(self.words(corpus, "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not list((self.tmp / "killed").glob(".parts-*/train-*.ids")):
            self.assertIsNone(process.poll(), "the call ended before it could be killed")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        workers = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.assertTrue(workers)
        process.kill()
        process.wait()
        while any(map(alive, workers)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.assertFalse((self.tmp / "killed" / "train.tok").exists())
        again = self.prepare(corpus, "killed")
        self.assertEqual(sorted(p.name for p in again.iterdir()), ["about.json", "train.tok", "val.tok"])
        for name in ("train.tok", "val.tok"):
            self.assertEqual((again / name).read_bytes(), (straight / name).read_bytes())

    def test_what_is_refused(self):
        corpus = self.corpus("corpus", {"a.txt": "text", "bad.txt": b"ab\xff", "none.txt": ""})
        for inputs, message in (([self.tmp / "missing"], "missing: no such file"),
                                ([corpus / "bad.txt"], "bad.txt: not UTF-8 at byte 2"),
                                ([corpus / "none.txt"], "none.txt: empty")):
            self.assertIn(message, self.prepare(inputs, "out", "--val-fraction", "0", check=2))
        # One document cannot be on both sides; refused before anything is written.
        message = self.prepare([corpus / "a.txt"], "out", "--val-fraction", "1e-9", check=2)
        self.assertIn("--val-fraction 1e-09", message)
        self.assertIn("--val-fraction 0.999999", self.prepare([corpus / "a.txt"], "out", "--val-fraction", "0.999999",
                                                                 check=2))
        self.assertFalse((self.tmp / "out" / "train.tok").exists())
        for option, value in (("--val-fraction", "1"), ("--val-fraction", "nan"), ("--max-tokens", "-1"),
                              ("--jobs", "0"), ("--tokenizer", "nothing")):
            message = self.prepare(corpus, "out", option, value, check=2)
            self.assertIn(option, message)
            self.assertIn(value, message)
        self.assertIn("tools/prepare_data.sh", self.prepare(corpus, "out", "--pack-tokens", "/no/such", check=2))


class Kernel(Test):
    def test_the_default_is_the_text_of_the_package_in_data(self):
        root = self.tmp / "root"
        shutil.copytree(TOOLS, root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        source, package = self.tmp / "linux-source-9.9", self.tmp / "package"
        texts = {f"kernel/{i}.c": f"int f{i};\n" for i in range(50)} | {"Makefile": "all:\n"}
        big = "x" * (prepare_data.MAX_FILE_BYTES + 1)
        self.corpus(source.name, texts | {"kernel/x.o": "no text", "kernel/big.h": big})
        (package / "usr/src").mkdir(parents=True)
        with tarfile.open(package / "usr/src/linux-source-9.9.tar.xz", "w:xz") as tar:
            tar.add(source, source.name)
        (package / "usr/src/linux-source.tar.xz").symlink_to("linux-source-9.9.tar.xz")
        (package / "DEBIAN").mkdir()
        control = "Package: linux-source-9.9\nVersion: 1\nArchitecture: all\nMaintainer: none\nDescription: none\n"
        (package / "DEBIAN/control").write_text(control)
        (root / "data").mkdir()
        subprocess.run(["dpkg-deb", "--build", package, root / "data" / "linux-source-9.9_1_all.deb"], check=True,
                       stdout=subprocess.DEVNULL)
        words = [sys.executable, root / "tools" / "prepare_data.py", "--tokenizer", "bytes", "--val-fraction", "0.2",
                 "--pack-tokens", PACK_TOKENS]
        for call in (1, 2):  # the second finds the text unpacked
            done = subprocess.run(words, cwd=self.tmp, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("unpacking" in done.stderr, call == 1)
            ids = [read_tokens(root / "data" / "tokens" / f"{name}.tok")[1] for name in ("train", "val")]
            self.assertEqual(sorted(documents_of(ids[0]) + documents_of(ids[1])), sorted(texts.values()))
        self.assertEqual(sorted(path.name for path in (root / "data").iterdir()),
                         ["linux-source-9.9_1", "linux-source-9.9_1_all.deb", "tokens"])


class PackTokens(Test):
    def pack(self, path, vocab, count, ids, tail=b""):
        return subprocess.run([PACK_TOKENS, path, str(vocab), str(count)], input=array.array("I", ids).tobytes() + tail,
                              capture_output=True, timeout=60)

    def test_ids_in_and_out(self):
        ids = [i * 31 % 300 for i in range(200000)]
        self.assertEqual(self.pack(self.tmp / "x.tok", 300, len(ids), ids).returncode, 0)
        self.assertEqual(read_tokens(self.tmp / "x.tok"), (300, ids))
        self.assertEqual(self.verify(self.tmp / "x.tok").returncode, 0)

    def test_a_wrong_end_leaves_no_file(self):
        for case in ((10, 4, [1, 2, 3], b"", b"held 3 ids, COUNT is 4"), (10, 3, [1, 2, 3], b"\0", b"inside an id"),
                     (3, 3, [1, 2, 3], b"", b"id 3")):
            vocab, count, ids, tail, message = case
            done = self.pack(self.tmp / "x.tok", vocab, count, ids, tail)
            self.assertIn(done.returncode, (2, 3))
            self.assertIn(message, done.stderr)
            self.assertEqual(list(self.tmp.iterdir()), [])

    def test_verify_finds_a_flipped_bit(self):
        self.pack(self.tmp / "x.tok", 300, 1000, [7] * 1000)
        content = bytearray((self.tmp / "x.tok").read_bytes())
        content[1000] ^= 1
        (self.tmp / "x.tok").write_bytes(content)
        done = self.verify(self.tmp / "x.tok")
        self.assertEqual(done.returncode, 3)
        self.assertIn("checksum", done.stderr)

    def test_usage(self):
        for words in ([], ["x.tok"], ["--verify"], ["x.tok", "0", "1"], ["x.tok", "10", "0"], ["x.tok", "10", "x"],
                      ["--unknown", "10", "1"]):
            done = subprocess.run([PACK_TOKENS, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 2, words)


if __name__ == "__main__":
    PACK_TOKENS = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
