"""From text to tokens, once: a tokenizer and a flat token file a split, in `data.cache_dir`.

A folder there is named by a hash of all that its content depends on. It is filled under another
name, written through to the disk and then renamed, so that a folder that exists is whole; what a
killed process left behind is thrown away. A file that hasn't the length it was written with is made
again. Processes that want the same folder at once wait for the first.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import filelock
import numpy as np
import tokenizers

from data.corpus import SPLITS, Corpus, digest, quiet
from data.tokenizer import BPE, Bytes, Tokenizer
from errors import UserError
from storage import flush

if TYPE_CHECKING:
    import datasets

T = TypeVar("T")
FORMAT = 1  # of the files, and of how text becomes tokens: raise it when either changes
AT_ONCE = 64  # documents
NOT_WHOLE = (OSError, ValueError, KeyError, UserError)


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
    key = digest(FORMAT, tokenizers.__version__, corpus.fingerprint("train"), settings)

    def build(folder: Path) -> None:
        spec.train(corpus.load("train")).save(folder / "tokenizer.json")

    def opened(folder: Path) -> Tokenizer:
        return Tokenizer.load(folder / "tokenizer.json")

    return cached(corpus.cache_dir, f"tokenizer-{key[:16]}", build, opened)


def prepare_split(corpus: Corpus, split: str, tokenizer: Tokenizer) -> TokenSplit:
    if split not in SPLITS:
        raise UserError(f"split={split}: must be one of {', '.join(SPLITS)}")
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
    size = (folder / "tokens.bin").stat().st_size
    if len(offsets) != len(names) + 1 or size != meta["tokens"] * tokenizer.dtype.itemsize:
        raise ValueError("not as it was written")
    tokens = np.memmap(folder / "tokens.bin", tokenizer.dtype, "r")
    return TokenSplit(tokens, offsets, names, tokenizer.token_bytes, meta["hash"], meta["empty"])


def cached(
    cache_dir: str, name: str, build: Callable[[Path], None], opened: Callable[[Path], T]
) -> T:
    """`opened` of the folder, which `build` fills if it isn't there or isn't whole."""
    folder = Path(cache_dir, name)
    try:
        return opened(folder)
    except NOT_WHOLE:
        pass
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(f"{folder}.lock").acquire()
    except OSError as error:
        raise UserError(f"data.cache_dir={cache_dir}: can't write there: {error}") from None
    with lock:
        try:
            return opened(folder)  # another process made it meanwhile
        except NOT_WHOLE:
            pass
        fill(folder, build)
        return opened(folder)


def fill(folder: Path, build: Callable[[Path], None]) -> None:
    """The folder appears when all of it is on the disk; the caller holds its lock."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # a killed process's
    partial.mkdir()
    try:
        build(partial)
        for path in (*partial.iterdir(), partial):
            flush(path)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
