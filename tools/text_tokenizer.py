"""Tokenizers that turn text into ids and back: Tekken (131,072 entries, from PyPI's mistral-common) and plain bytes.

A document becomes <s> text </s>: `bos` tells a model that something begins, `eos` that it has ended.
"""
import hashlib
import pathlib

TEKKEN_FILE = "tekken_240911.json"  # inside the package mistral-common


class UsageError(Exception):
    """What the caller can put right; the text says how."""


class ByteTokenizer:
    """The bytes of UTF-8 as ids 0 to 255, then <s> and </s>: needs no file and no package."""
    name = "bytes"
    identity = "bytes"
    vocab_size, bos, eos = 258, 256, 257

    def encode(self, text):
        return list(text.encode("utf-8"))

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


class TekkenTokenizer:
    """A Tekken file read by mistral-common. Words in the text that look like special tokens stay plain text."""

    def __init__(self, path=None):
        try:
            import mistral_common
            from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        except ImportError as error:
            raise UsageError(f"{error}: the Tekken tokenizer needs the package mistral-common; tools/setup.sh --data "
                             "installs it into .venv-data") from error
        path = pathlib.Path(path) if path else pathlib.Path(mistral_common.__file__).parent / "data" / TEKKEN_FILE
        self.tekken = Tekkenizer.from_file(path)
        self.name = path.name
        self.identity = hashlib.sha256(path.read_bytes()).hexdigest()
        self.vocab_size, self.bos, self.eos = self.tekken.n_words, self.tekken.bos_id, self.tekken.eos_id

    def encode(self, text):
        return self.tekken.encode(text, bos=False, eos=False)

    def decode(self, ids):
        return self.tekken.decode(list(ids))  # special tokens are left out


def open_tokenizer(name):
    """'tekken', 'bytes', or the path of a Tekken file."""
    if name == "bytes":
        return ByteTokenizer()
    if name != "tekken" and not pathlib.Path(name).is_file():
        raise UsageError(f"--tokenizer: expected tekken, bytes or a Tekken file, got '{name}'")
    return TekkenTokenizer(None if name == "tekken" else name)
