#!/usr/bin/env python3
"""Text from a model with a tokenizer's vocabulary: encodes the prompt, calls xce-train --sample, decodes the rest.

The prompt begins a document (<s> goes before it), and the text ends where the model ends the document (</s>). Every
token costs a forward pass over prompt and text on the CPU: fine for a hundred tokens, slow for a thousand.
"""
import argparse
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
from text_tokenizer import UsageError, open_tokenizer  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def find_model(directory):
    """The export of a run, or its newest checkpoint; another directory is a model itself."""
    directory = pathlib.Path(directory)
    if (directory / "export" / "config.json").is_file():
        return directory / "export"
    steps = [(int(path.name[5:]), path) for path in directory.glob("checkpoints/step-*") if path.name[5:].isdigit()]
    return max(steps)[1] if steps else directory


def text_of(tokenizer, ids):
    """The document that begins with the first id, without </s> and what follows it."""
    end = ids.index(tokenizer.eos) if tokenizer.eos in ids else len(ids)
    return tokenizer.decode([i for i in ids[:end] if i != tokenizer.bos])


def sample(options):
    if not pathlib.Path(options.xce_train).is_file():
        raise UsageError(f"no program {options.xce_train}; cmake --build --preset cpu --target xce-train makes it")
    tokenizer = open_tokenizer(options.tokenizer)
    ids = [tokenizer.bos, *tokenizer.encode(options.prompt)]
    words = [options.xce_train, "--sample", find_model(options.model), "--prompt-ids", ",".join(map(str, ids)),
             "--print-ids"]
    for name in ("tokens", "temperature", "seed", "threads", "device"):
        if getattr(options, name) is not None:
            words += [f"--{name}", getattr(options, name)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return done.returncode  # it said why
    print(text_of(tokenizer, [int(word) for word in done.stdout.split(",")]))
    return 0


def parse_options(words):
    parser = argparse.ArgumentParser(prog="tools/sample_text.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="RUN_OR_EXPORT", help="a run's directory, an export or a checkpoint")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what the text begins with (default: nothing)")
    parser.add_argument("--tokenizer", default="tekken", metavar="NAME",
                        help="tekken, bytes, or a Tekken file: that of the training data (default: tekken)")
    parser.add_argument("--tokens", default="100", metavar="N", help="tokens to write at most (default: 100)")
    for name in ("temperature", "seed", "threads"):
        parser.add_argument(f"--{name}", metavar="N", help="as for xce-train --sample")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"),
                        help="where to compute; cuda with --xce-train build/cuda/bin/xce-train (default: cpu)")
    parser.add_argument("--xce-train", default=str(ROOT / "build" / "cpu" / "bin" / "xce-train"), metavar="FILE",
                        help="the program (default: build/cpu/bin/xce-train)")
    return parser.parse_args(words)


def main(words):
    try:
        return sample(parse_options(words))
    except UsageError as error:
        print(f"sample_text: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
