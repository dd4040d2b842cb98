"""From text to tokens, once: a tokenizer and a flat token file a split, in `data.cache_dir`.

A folder there (data/cache.py) is named by a hash of all that its content depends on: the text, the
code that reads it, the tokenizer, the format.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from data.cache import cached
from data.corpus import SPLITS, Corpus, digest, quiet
from data.tokenizer import BPE, Bytes, Tokenizer
from errors import UserError

if TYPE_CHECKING:
    import datasets

FORMAT = 2  # of the files, and of how text becomes tokens: raise it when either changes
AT_ONCE = 64  # documents


@dataclass(frozen=True, repr=False)
class TokenSplit:
    """A split as tokens: all documents one after the other, each followed by one EOS.

    Document d is `tokens[offsets[d] : offsets[d + 1] - 1]`, its EOS stands at `offsets[d + 1] - 1`.
    """

    tokens: np.ndarray  # (N,) uint16 or uint32, memory-mapped
    offsets: np.ndarray  # (D + 1,) int64
    names: list[str]  # D
    token_bytes: np.ndarray  # (V,) int64: how many bytes of text each token stands for
    hash: str  # SHA-256 of tokens and offsets
    empty: int  # documents without a character: they are left out, and counted here

    def __len__(self) -> int:
        return len(self.names)

    def document(self, d: int) -> np.ndarray:
        """Its tokens, without the EOS."""
        return self.tokens[self.offsets[d] : self.offsets[d + 1] - 1]


def prepare_tokenizer(corpus: Corpus, spec: BPE | Bytes) -> Tokenizer:
    """Trained on the training split alone."""
    settings = [type(spec).__name__, asdict(spec)]
    corpus.check()
    key = digest(FORMAT, tokenizers.__version__, corpus.fingerprint("train"), settings)

    def build(folder: Path) -> None:
        spec.train(corpus.load("train")).save(folder / "tokenizer.json")

    def opened(folder: Path) -> Tokenizer:
        return Tokenizer.load(folder / "tokenizer.json")

    return cached(corpus.cache_dir, f"tokenizer-{key[:16]}", build, opened)


def prepare_split(corpus: Corpus, split: str, tokenizer: Tokenizer) -> TokenSplit:
    if split not in SPLITS:
        raise UserError(f"split={split}: must be one of {', '.join(SPLITS)}")
    corpus.check()
    key = digest(FORMAT, tokenizers.__version__, corpus.fingerprint(split), tokenizer.hash)

    def build(folder: Path) -> None:
        documents = corpus.load(split)
        encoded = encode(documents, tokenizer, folder / "encoded.arrow")
        if not len(encoded):
            raise UserError(f"data.{split}: all of its {len(documents)} documents are empty")
        write(encoded, tokenizer, len(documents) - len(encoded), folder)
        (folder / "encoded.arrow").unlink()

    def opened(folder: Path) -> TokenSplit:
        return read(folder, tokenizer)

    return cached(corpus.cache_dir, f"{split}-{key[:16]}", build, opened)


def count_words(split: TokenSplit, tokenizer: Tokenizer) -> np.ndarray:
    """What blanks and line ends part in the text of each document: (D,) int64."""
    texts = (tokenizer.decode(split.document(d).tolist()) for d in range(len(split)))
    return np.array([len(text.split()) for text in texts], np.int64)


def encode(documents: "datasets.Dataset", tokenizer: Tokenizer, file: Path) -> "datasets.Dataset":
    """Columns "ids" (with the EOS) and "name", without the empty documents, kept in the file."""
    import datasets

    eos = np.array([tokenizer.eos], tokenizer.dtype)

    def encode_some(batch: dict[str, list[str]]) -> dict[str, list]:
        kept = [row for row, text in enumerate(batch["text"]) if text]
        ids = tokenizer.encode_batch([batch["text"][row] for row in kept])
        names = [batch["name"][row] for row in kept]
        return {"ids": [np.concatenate([document, eos]) for document in ids], "name": names}

    ids = datasets.Sequence(datasets.Value(tokenizer.dtype.name))
    with quiet():
        return documents.map(
            encode_some,
            batched=True,
            batch_size=AT_ONCE,
            writer_batch_size=AT_ONCE,
            remove_columns=documents.column_names,
            features=datasets.Features(ids=ids, name=datasets.Value("string")),
            cache_file_name=str(file),
            load_from_cache_file=False,
            new_fingerprint=file.parent.name,
        )


def write(encoded: "datasets.Dataset", tokenizer: Tokenizer, empty: int, folder: Path) -> None:
    lengths: list[np.ndarray] = []
    names: list[str] = []
    sha256 = hashlib.sha256()
    table: Any
    with open(folder / "tokens.bin", "wb") as file:
        for table in encoded.with_format("arrow").iter(AT_ONCE):
            names += table["name"].to_pylist()
            for ids in table["ids"].chunks:
                lengths.append(ids.value_lengths().to_numpy())
                tokens = ids.flatten().to_numpy().astype(tokenizer.dtype).tobytes()
                file.write(tokens)
                sha256.update(tokens)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
    sha256.update(offsets.tobytes())
    np.save(folder / "offsets.npy", offsets)
    (folder / "names.json").write_text(json.dumps(names))
    meta = {"tokens": int(offsets[-1]), "empty": empty, "hash": sha256.hexdigest()}
    (folder / "meta.json").write_text(json.dumps(meta))


def read(folder: Path, tokenizer: Tokenizer) -> TokenSplit:
    meta = json.loads((folder / "meta.json").read_text())
    names = json.loads((folder / "names.json").read_text())
    offsets = np.load(folder / "offsets.npy")
    tokens = np.memmap(folder / "tokens.bin", tokenizer.dtype, "r")
    return TokenSplit(tokens, offsets, names, tokenizer.token_bytes, meta["hash"], meta["empty"])
