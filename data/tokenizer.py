"""Tokenizers: a byte-level BPE trained on the training text, and bytes as a BPE without merges.

Both are a `tokenizers` JSON, read by one class. All 256 bytes are in the vocabulary and nothing is
normalised, so any text comes back exactly. The end-of-text token is an ordinary entry that no merge
leads to, and no "special token": text that spells it is encoded as the characters it is made of,
and only its id ends a document.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from configs.check import within
from errors import UserError

EOS = "<|endoftext|>"
PIECE = 1 << 16  # characters
CUT = re.compile(r"\S(?= \S)")


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (as in GPT-2)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of about 64K characters, encoded one by one as the whole would be.

    So a text may be of any length, and is encoded in parallel. The cut is before a single blank
    between two words, where GPT-2's pattern always starts a new match.
    """
    start = 0
    while cut := CUT.search(text, start + PIECE):
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


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
            state = json.loads(text)
            missing = {*byte_characters(), EOS} - state["model"]["vocab"].keys()
            if missing or state["added_tokens"]:
                raise ValueError("it must have all bytes, a plain <|endoftext|>, no added tokens")
            return cls(text)
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such tokenizer file") from None
        except Exception as error:  # `tokenizers` raises plain Exception
            raise UserError(f"{path}: not a tokenizer of this program: {error}") from None

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
        learner = tokenizers.Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size - 1,
            initial_alphabet=byte_characters(),
            show_progress=False,
        )
        texts = sample(documents, self.sample_bytes)
        learner.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
        trained = with_eos(learner.model, use_regex=True)
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
