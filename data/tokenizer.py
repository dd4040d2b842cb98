"""Tokenizers: a byte-level BPE trained on the training text, and bytes as a BPE without merges.

Both are a `tokenizers` JSON, read by one class. All 256 bytes are in the vocabulary and nothing is
normalised, so any text comes back exactly. The end-of-text token is an ordinary entry that no merge
leads to, and no "special token": text that spells it is encoded as the characters it is made of,
and only its id ends a document.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from configs.check import within
from errors import UserError

EOS = "<|endoftext|>"
PIECE = 1 << 16  # characters
MOST = 1 << 18
BLANK, SPACE = re.compile(r"\S(?= \S)"), re.compile(r"\S(?=[ \n])")
AWKWARD = [  # texts that a tokenizer is likely to change
    "  two\r\n\tend \n\n ",
    "a\0b\x1c\x85\u2028\u2029c",
    "e\u0301 \u00e9 ﬁ ½ Å ŝ ß İ",
    "\ufeff x\u00a0\u3000y",
    "it's 12,345.60 don't ENDS",
    "".join(map(chr, range(0x250))),
    "".join(map(chr, range(0x300, 0xD800, 61))),
    "🐕👩‍🚀\U0010ffff\ue000",
    EOS,
    f"{EOS} {EOS}",
    "▁Ġ ##x</w>Ċ",
    "x" * 300 + " " * 300,
    " lead",
    "",
]


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (as in GPT-2)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of 64K to 256K characters, encoded one by one as the whole would be.

    So a text may be of any length, and is encoded in parallel. The cut is before a single blank
    between two words, or else before any blank or line end after a word, where GPT-2's pattern always
    starts a new match. Only a text that has neither is cut somewhere.
    """
    start = 0
    while end := cut(text, start):
        yield text[start:end]
        start = end
    yield text[start:]


def cut(text: str, start: int) -> int | None:
    """Where the piece that begins there ends; None: with the text."""
    found = BLANK.search(text, start + PIECE, start + 2 * PIECE)
    found = found or SPACE.search(text, start + PIECE, start + MOST)
    if found:
        return found.end()
    return start + MOST if len(text) > start + MOST else None


class Tokenizer:
    """`token_bytes[i]` is the number of bytes that token i stands for: (V,) int64, 0 for EOS."""

    def __init__(self, text: str) -> None:
        """`text` is a `tokenizers` JSON, kept as it is: `hash` is its SHA-256."""
        self._text = text
        self._tokenizer = tokenizers.Tokenizer.from_str(text)
        vocab = self._tokenizer.get_vocab()
        self.vocab_size = len(vocab)
        self.eos = vocab[EOS]
        self.token_bytes = np.zeros(self.vocab_size, np.int64)
        for token, index in vocab.items():
            self.token_bytes[index] = len(token)
        self.token_bytes[self.eos] = 0
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self.hash = hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        try:
            text = Path(path).read_bytes().decode()
            check_form(json.loads(text))
            tokenizer = cls(text)
            tokenizer.check_exact()
            return tokenizer
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such tokenizer file") from None
        except Exception as error:  # `tokenizers` raises plain Exception
            raise UserError(f"{path}: not a tokenizer of this program: {error}") from None

    def check_exact(self) -> None:
        """ValueError unless awkward texts come back from tokens of as many bytes: of none is the end of a document."""
        for text, ids in zip(AWKWARD, self.encode_batch(AWKWARD), strict=True):
            size = int(self.token_bytes[ids].sum())
            if self.decode(ids.tolist()) != text or size != len(text.encode()):
                raise ValueError(f"it does not give back {text!a:.40}")

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self._text.encode())

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """The ids of each text, in `dtype`."""
        ids = [[np.empty(0, self.dtype)] for _ in texts]
        work = [(index, piece) for index, text in enumerate(texts) for piece in pieces(text)]
        for start in range(0, len(work), 64):  # `tokenizers` takes about 100 bytes a token
            group = work[start : start + 64]
            encodings = self._tokenizer.encode_batch_fast([piece for _, piece in group])
            for (index, _), encoding in zip(group, encodings, strict=True):
                ids[index].append(np.array(encoding.ids, self.dtype))
        return [np.concatenate(parts) for parts in ids]

    def decode(self, ids: list[int]) -> str:
        """The exact text of an encoding. What is not UTF-8 becomes U+FFFD, an EOS is spelt."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def check_form(state: Any) -> None:
    """ValueError unless the JSON is a byte-level BPE that changes nothing about a text, as ours are."""
    model, words, decoder = state["model"], state["pre_tokenizer"], state["decoder"]
    vocab, alphabet = model["vocab"], set(byte_characters())
    plain = ("normalizer", "post_processor", "truncation", "padding", "added_tokens")
    if any(state.get(key) for key in plain) or (alphabet | {EOS}) - vocab.keys():
        raise ValueError(
            f"it must have all bytes, a plain {EOS}, and no {', '.join(plain)}".replace("_", " ")
        )
    if {words["type"], decoder["type"]} != {"ByteLevel"}:
        raise ValueError("its pre-tokenizer and decoder must be ByteLevel")
    marks = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    if model["type"] != "BPE" or any(model.get(key) for key in marks):
        raise ValueError("its model must be BPE, without dropout, prefix and suffix")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError("its tokens must be numbered 0, 1, 2, ...")
    if any(not alphabet.issuperset(token) for token in vocab if token != EOS):
        raise ValueError("its tokens must be made of bytes")


def learned(texts: Iterable[str], vocab_size: int) -> models.Model:
    """A BPE of the texts, learned by a process that ends with us or whenever we are asked to stop."""
    program = str(Path(__file__).with_name("bpe.py"))
    child = subprocess.Popen(
        [sys.executable, "-P", program, str(vocab_size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin and child.stdout
    try:
        with suppress(BrokenPipeError):
            for text in chain(texts, [None]):
                child.stdin.write(json.dumps(text).encode() + b"\n")
            child.stdin.flush()
        answer = child.stdout.read()
        if code := child.wait():
            raise UserError(
                f"learning the tokenizer ended with {code}, perhaps for want of memory:"
                " tokenizer.sample_bytes=100000000 takes less of the text"
            )
        return tokenizers.Tokenizer.from_str(answer.decode()).model
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        with suppress(BrokenPipeError):
            child.stdin.close()


def with_eos(model: models.Model, use_regex: bool) -> Tokenizer:
    """A byte-level tokenizer of the model, the end-of-text token as the vocabulary's last entry."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"][EOS] = len(state["model"]["vocab"])
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)).to_str(pretty=True))


def sample(documents: Iterable[Any], sample_bytes: int | None) -> Iterator[str]:
    """All texts, or about that many bytes of them: whole documents, spread evenly."""
    total = 0
    if sample_bytes is not None:
        total = sum(len(row["text"].encode()) for row in documents)
    seen = taken = 0
    for row in documents:
        size = len(row["text"].encode())
        if sample_bytes is None or taken * total <= seen * sample_bytes:
            taken += size
            yield row["text"]
        seen += size


@dataclass(kw_only=True)
class BPE:
    """Byte-level BPE (Sennrich et al. 2016), trained on the training split alone."""

    vocab_size: int
    sample_bytes: int | None

    def __post_init__(self) -> None:
        if self.vocab_size < 257:
            raise UserError(f"tokenizer.vocab_size={self.vocab_size}: 256 bytes and EOS are 257")
        within("tokenizer.vocab_size", self.vocab_size, 257, 2**20)  # room is made for so many
        if self.sample_bytes is not None and self.sample_bytes < 1:
            raise UserError(f"tokenizer.sample_bytes={self.sample_bytes}: null, or more than 0")

    def train(self, documents: Iterable[Any]) -> Tokenizer:
        texts = sample(documents, self.sample_bytes)
        model = learned((piece for text in texts for piece in pieces(text)), self.vocab_size - 1)
        trained = with_eos(model, use_regex=True)
        if trained.vocab_size < self.vocab_size:
            raise UserError(
                f"tokenizer.vocab_size={self.vocab_size}: the training text gives only "
                f"{trained.vocab_size}; use tokenizer.vocab_size={trained.vocab_size} or less, or "
                "tokenizer=bytes"
            )
        return trained


@dataclass(kw_only=True)
class Bytes:
    """Token i is byte i and 256 is EOS: BPE without merges."""

    def train(self, documents: Iterable[Any]) -> Tokenizer:
        vocab = {character: byte for byte, character in enumerate(byte_characters())}
        return with_eos(models.BPE(vocab=vocab, merges=[]), use_regex=False)


TOKENIZERS: dict[str, type[BPE] | type[Bytes]] = {"bpe": BPE, "bytes": Bytes}
