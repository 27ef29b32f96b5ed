#!/usr/bin/env python3
"""Makes train.tok and val.tok, the token files that `data.kind: tokens` reads, from text.

Every file is a document, <s> text </s>. Which documents are held out for validation, and the order of all, depend on
their names alone: the same text gives the same files on every machine, and neighbours in a directory are spread.
The text is tokenised in parts that stay on disk, so an interrupted call goes on where it was when it is repeated.
"""
import argparse
import array
import collections
import concurrent.futures
import ctypes
import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from text_tokenizer import UsageError, open_tokenizer  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
EPILOG = """\
examples:
  tools/prepare_data.sh                                        the Linux kernel, 10 million tokens, into data/tokens
  tools/prepare_data.sh --max-tokens 0                         all of it
  tools/prepare_data.sh --input notes.txt books/ --output data/mine
"""
KERNEL_MAX_TOKENS = 10_000_000

# What is taken from a directory: sources and documentation. Larger files there are tables of numbers made by programs.
TEXT_SUFFIXES = {".c", ".h", ".S", ".rs", ".py", ".pl", ".sh", ".y", ".l", ".lds", ".cpp", ".hpp", ".cc", ".cu",
                 ".rst", ".txt", ".md", ".yaml", ".dts", ".dtsi", ".dtso"}
TEXT_NAMES = ("Kconfig", "Makefile", "Kbuild", "README", "MAINTAINERS", "CREDITS")
MAX_FILE_BYTES = 256 * 1024
PART_BYTES = 1 << 20  # of text, in one part

Document = collections.namedtuple("Document", "name path size mtime_ns required")


def is_text_name(name):
    return pathlib.PurePath(name).suffix in TEXT_SUFFIXES or name.startswith(TEXT_NAMES)


def find_documents(inputs):
    """The files named, and the text files in the directories named; those are called by their path from there."""
    documents = []
    for given in map(pathlib.Path, inputs):
        if given.is_dir():
            for folder, _, names in os.walk(given):
                for name in filter(is_text_name, names):
                    path = pathlib.Path(folder, name)
                    status = path.lstat()
                    if not path.is_symlink() and 0 < status.st_size <= MAX_FILE_BYTES:
                        inside = path.relative_to(given).as_posix()
                        documents.append(Document(inside, str(path), status.st_size, status.st_mtime_ns, False))
        elif given.is_file():
            status = given.stat()
            documents.append(Document(given.as_posix(), str(given), status.st_size, status.st_mtime_ns, True))
        else:
            raise UsageError(f"--input: {given}: no such file or directory")
    if not documents:
        raise UsageError(f"no text files in {' '.join(map(str, inputs))}")
    return documents


def name_hash(salt, name):
    return hashlib.sha256(f"{salt}\0{name}".encode("utf-8", "surrogateescape")).digest()


def split_documents(documents, val_fraction):
    """(train, validation), each in the order of a hash of the names; another hash chooses the validation documents."""
    ordered = sorted(documents, key=lambda document: (name_hash("order", document.name), document.name))
    held_out = {document for document in ordered
                if int.from_bytes(name_hash("split", document.name)[:8], "big") < val_fraction * 2.0**64}
    return [d for d in ordered if d not in held_out], [d for d in ordered if d in held_out]


def cut_parts(documents, part_bytes):
    """The documents in runs of about part_bytes: a part ends with the document that reaches it."""
    parts, size = [[]], 0
    for document in documents:
        if size >= part_bytes:
            parts.append([])
            size = 0
        parts[-1].append(document)
        size += document.size
    return parts if documents else []


def read_text(document):
    """The document's text, or None for one in a directory that is not text; a file named as input has to be."""
    content = pathlib.Path(document.path).read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        text, reason = None, f"not UTF-8 at byte {error.start}"
    else:
        if "\0" in text:
            text, reason = None, "holds a zero byte, this is not text"
        elif not text:
            reason = "empty, there is nothing to read"
    if not text and document.required:
        raise UsageError(f"{document.path}: {reason}")
    return text or None


def encode_part(tokenizer, documents):
    """(ids, what went in): each document is decoded again and has to come back as it was."""
    ids, about = array.array("I"), {"documents": 0, "bytes": 0, "skipped": 0}
    for document in documents:
        text = read_text(document)
        if text is None:
            about["skipped"] += 1
            continue
        encoded = tokenizer.encode(text)
        if tokenizer.decode(encoded) != text:
            raise UsageError(f"{document.path}: {tokenizer.name} does not give its text back")
        ids.append(tokenizer.bos)
        ids.extend(encoded)
        ids.append(tokenizer.eos)
        about["documents"] += 1
        about["bytes"] += len(text.encode("utf-8"))
    return ids, about


def write_part(tokenizer, documents, path):
    """Writes the ids to path, which appears whole or not at all, after what is known about them beside it."""
    ids, about = encode_part(tokenizer, documents)
    about["tokens"] = len(ids)
    if sys.byteorder == "big":
        ids.byteswap()
    path.with_suffix(".json").write_text(json.dumps(about))
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(ids.tobytes())
    unfinished.rename(path)


TOKENIZER = None  # of a worker process: inherited, because reading the file takes seconds


def start_worker():
    """A key press stops the parent alone, which lets parts be finished; a killed parent takes its workers with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def work(documents, path):
    write_part(TOKENIZER, documents, path)


class Progress:
    """One line that is written over on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, stream=sys.stderr):
        self.stream, self.started, self.shown, self.open = stream, time.monotonic(), 0.0, False

    def show(self, text, last=False):
        now = time.monotonic()
        terminal = self.stream.isatty()
        if last or now - self.shown >= (0.2 if terminal else 10):
            self.shown, self.open = now, terminal and not last
            line = f"prepare_data: {text}, {now - self.started:.0f} s"
            self.stream.write(f"\r{line:<100}" + ("\n" if last else "") if terminal else line + "\n")
            self.stream.flush()

    def close(self):
        if self.open:
            self.stream.write("\n")


def tokenise(parts, folder, name, limit, jobs):
    """Makes the first parts that hold `limit` tokens (0: all parts); returns (path, what is known of it) of each."""
    paths = [folder / f"{name}-{number:05}.ids" for number in range(len(parts))]
    done, total, progress, waiting = [], 0, Progress(), collections.deque()
    pool = concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), start_worker)
    try:
        next_part = 0
        while len(done) < len(parts) and (limit == 0 or total < limit):
            while next_part < len(parts) and len(waiting) < 2 * jobs:
                missing = not paths[next_part].exists()
                waiting.append(pool.submit(work, parts[next_part], paths[next_part]) if missing else None)
                next_part += 1
            future = waiting.popleft()
            if future:
                future.result()
            path = paths[len(done)]
            about = json.loads(path.with_suffix(".json").read_text())
            done.append((path, about))
            total += about["tokens"]
            share = f"{min(1.0, total / limit if limit else len(done) / len(parts)):.0%}"
            progress.show(f"{name}: {share}, {total:,} tokens")
        progress.show(f"{name}: {min(total, limit or total):,} tokens", last=True)
    finally:
        progress.close()
        pool.shutdown(cancel_futures=True)
    return done


def pack(program, output, done, limit, vocab_size):
    """Joins the parts into a token file, at most `limit` tokens (0: all); returns what is known about it."""
    total = {key: sum(about[key] for _, about in done) for key in ("documents", "bytes", "skipped", "tokens")}
    count = min(total["tokens"], limit or total["tokens"])
    if count == 0:
        raise UsageError(f"no text at all for {output.name}: more text or another --val-fraction is needed")
    left = 4 * count
    words = [program, output, str(vocab_size), str(count)]
    packer = subprocess.Popen(words, stdin=subprocess.PIPE)
    try:
        with packer:
            for path, _ in done:
                content = path.read_bytes()[:left]
                packer.stdin.write(content)
                left -= len(content)
    except BrokenPipeError:
        pass  # its exit status says why
    if packer.returncode != 0:
        raise RuntimeError(f"{program} ended with status {packer.returncode}")
    # Of whole parts: where the last document was cut is not looked up.
    about = {"tokens": count, "bytes_per_token": round(total["bytes"] / total["tokens"], 4)}
    if count == total["tokens"]:
        about |= {"documents": total["documents"], "skipped_files": total["skipped"]}
    return about


def fetch_kernel():
    done = subprocess.run([ROOT / "tools" / "fetch_kernel.sh"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise UsageError("without a corpus there is nothing to do; --input takes text of your own")
    return str(ROOT / done.stdout.strip())


def key_of(tokenizer, documents, options):
    """Changes when the parts' content or their order would."""
    what = [1, PART_BYTES, tokenizer.identity, options.val_fraction, [list(document) for document in documents]]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def prepare(options):
    global TOKENIZER
    if not pathlib.Path(options.pack_tokens).is_file():
        raise UsageError(f"no program {options.pack_tokens}; tools/prepare_data.sh builds it")
    inputs = options.input or [fetch_kernel()]
    limit = options.max_tokens
    if limit is None:
        limit = 0 if options.input else KERNEL_MAX_TOKENS
    val_limit = max(1, round(limit * options.val_fraction)) if limit else 0
    documents = find_documents(inputs)
    TOKENIZER = open_tokenizer(options.tokenizer)
    train, validation = split_documents(documents, options.val_fraction)
    if not train or (options.val_fraction > 0 and not validation):
        raise UsageError(f"--val-fraction {options.val_fraction} holds out {len(validation)} of {len(documents)} "
                         "documents; 0 makes no val.tok, and data.val_fraction can then hold out the end of train.tok")
    size = sum(document.size for document in documents)
    print(f"prepare_data: {len(documents):,} documents, {size / 1e6:,.1f} MB; {len(validation):,} of them held out; "
          f"tokenizer {TOKENIZER.name}, {TOKENIZER.vocab_size:,} entries", file=sys.stderr)

    output = pathlib.Path(options.output)
    parts = output / f".parts-{key_of(TOKENIZER, documents, options)}"
    parts.mkdir(parents=True, exist_ok=True)
    about = {"corpus": [pathlib.Path(path).name for path in inputs], "tokenizer": TOKENIZER.name,
             "tokenizer_identity": TOKENIZER.identity, "vocab_size": TOKENIZER.vocab_size, "bos": TOKENIZER.bos,
             "eos": TOKENIZER.eos, "val_fraction": options.val_fraction}
    for name, chosen, most in (("train", train, limit), ("val", validation, val_limit)):
        if not chosen:
            (output / f"{name}.tok").unlink(missing_ok=True)
            continue
        done = tokenise(cut_parts(chosen, PART_BYTES), parts, name, most, options.jobs)
        about[name] = pack(options.pack_tokens, output / f"{name}.tok", done, most, TOKENIZER.vocab_size)
    (output / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    for old in output.glob(".parts-*"):
        shutil.rmtree(old)
    for name in ("train", "val"):
        if name in about:
            print(f"prepare_data: wrote {output / name}.tok: {about[name]['tokens']:,} tokens, "
                  f"{about[name]['bytes_per_token']:.2f} bytes of text each", file=sys.stderr)


def parse_options(words):
    parser = argparse.ArgumentParser(prog="tools/prepare_data.sh", description=__doc__, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", nargs="+", metavar="PATH", default=[],
                        help="text files, one document each, and directories, of which sources and documentation up "
                        "to 256 KiB a file are taken (default: the Linux kernel's source package of this system)")
    parser.add_argument("--output", default=str(ROOT / "data" / "tokens"), metavar="DIR",
                        help="train.tok, val.tok and about.json go here (default: data/tokens)")
    parser.add_argument("--tokenizer", default="tekken", metavar="NAME",
                        help="tekken, bytes, or a Tekken file (default: tekken)")
    parser.add_argument("--max-tokens", type=int, metavar="N",
                        help="cut train.tok here, and val.tok at N times --val-fraction; 0: all of the text (default: "
                        "10,000,000 of the kernel, all of --input)")
    parser.add_argument("--val-fraction", type=float, default=0.025, metavar="F",
                        help="share of the documents held out, by a hash of their names; 0: none (default: 0.025)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
                        help="processes that tokenise (default: one per core)")
    parser.add_argument("--pack-tokens", default=str(ROOT / "build" / "cpu" / "bin" / "pack_tokens"), metavar="FILE",
                        help="the program that writes token files (default: build/cpu/bin/pack_tokens)")
    options = parser.parse_args(words)
    if not 0 <= options.val_fraction < 1:
        parser.error(f"--val-fraction: expected a number >= 0 and < 1, got {options.val_fraction}")
    if options.max_tokens is not None and options.max_tokens < 0:
        parser.error(f"--max-tokens: expected a number >= 0, got {options.max_tokens}")
    if options.jobs < 1:
        parser.error(f"--jobs: expected a number >= 1, got {options.jobs}")
    return options


def main(words):
    try:
        prepare(parse_options(words))
    except UsageError as error:
        print(f"prepare_data: error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:
        print(f"prepare_data: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare_data: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
