"""`data=files`: your own text. A .txt or .md file is one document, a .jsonl or .parquet row is one.

Text is taken as it is: line ends, NUL bytes and words that look like special tokens stay. Where
`data.validation` or `data.test` is null, that split is drawn from `data.train` by a hash of each
document's text, so that a document stays where it is whatever is added later, and copies of one
document are never on both sides.
"""

import glob
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data.corpus import SPLITS, Corpus
from errors import UserError
from storage import digest


def expand(key: str, patterns: list[str]) -> list[str]:
    """The files that paths and globs name, each once, in the order of their names."""
    found: set[str] = set()
    for pattern in patterns:
        path = str(Path(pattern).expanduser())
        files = [path] if Path(path).exists() else glob.glob(path, recursive=True)
        if not files:
            raise UserError(f"{key}: there is no file '{pattern}'")
        found.update(files)
    for file in sorted(found):
        if Path(file).is_dir():
            raise UserError(f"{key}: '{file}' is a folder; name its files: '{file}/**/*.txt'")
        if Path(file).suffix not in READERS:
            raise UserError(f"{key}: '{file}' is none of {', '.join(READERS)}")
    return sorted(found)


def decode(content: bytes, file: str, start: int = 0) -> str:
    """`start`: where the content begins in the file, for the message."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 at byte {start + error.start}") from None


def read_text(file: str, field: str) -> Iterator[tuple[str, str]]:
    yield file, decode(Path(file).read_bytes(), file)


def read_jsonl(file: str, field: str) -> Iterator[tuple[str, str]]:
    start = 0
    with open(file, "rb") as lines:  # bytes, where only \n ends a line and U+2029 does not
        for number, line in enumerate(lines, 1):
            if line.strip():
                name = f"{file}:{number}"
                yield name, text_of(decode(line, file, start), name, field)
            start += len(line)


def text_of(line: str, name: str, field: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # the latter of brackets without end
        raise UserError(f"{name}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise UserError(f"{name}: a row must be an object with the field data.text_field={field}")
    if field not in row:
        raise UserError(f"{name}: no field data.text_field={field}; there are {', '.join(row)}")
    text = row[field]
    if not isinstance(text, str):
        raise UserError(f"{name}: field '{field}' is not a text: {json.dumps(text)[:40]}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise UserError(
            f"{name}: field '{field}' has {half}, half of a surrogate pair and no character"
        ) from None
    return text


def read_parquet(file: str, field: str) -> Iterator[tuple[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise UserError(f"{file}: not a parquet file: {str(error).splitlines()[0]}") from None
    names = table.schema_arrow.names
    if field not in names:
        raise UserError(f"{file}: no field data.text_field={field}; there are {', '.join(names)}")
    number = 0
    for batch in table.iter_batches(columns=[field], batch_size=1000):
        for value in batch.column(0):
            number += 1
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                raise UserError(f"{file}:{number}: not UTF-8 at byte {error.start}") from None
            if not isinstance(text, str):
                raise UserError(f"{file}:{number}: field '{field}' is not a text: {text!r:.40}")
            yield f"{file}:{number}", text


READERS = {".txt": read_text, ".md": read_text, ".jsonl": read_jsonl, ".parquet": read_parquet}


@dataclass(kw_only=True)
class Files(Corpus):
    train: list[str]
    validation: list[str] | None
    test: list[str] | None
    text_field: str
    held_out: float
    split_seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train:
            raise UserError("data.train names no file: data=files 'data.train=[corpus/*.txt]'")
        if not 0 < self.held_out < 0.5:
            raise UserError(f"data.held_out={self.held_out}: must lie between 0 and 0.5")
        seen: dict[Path, str] = {}
        for split in SPLITS:
            for file in expand(f"data.{split}", getattr(self, split) or []):
                other = seen.setdefault(Path(file).resolve(), split)
                if other != split:
                    raise UserError(f"data.{split}: '{file}' is in data.{other} too")

    def drawn_for(self, text: str) -> str:
        """The split that a document of data.train belongs to."""
        sha256 = hashlib.sha256(f"{self.split_seed}:{text}".encode())
        u = int.from_bytes(sha256.digest()[:8], "big") / 2**64
        if self.test is None and u < self.held_out:
            return "test"
        if self.validation is None and self.held_out <= u < 2 * self.held_out:
            return "validation"
        return "train"

    def _is_drawn(self, split: str) -> bool:
        return split == "train" or getattr(self, split) is None

    def _files(self, split: str) -> list[str]:
        of = "train" if self._is_drawn(split) else split
        return expand(f"data.{of}", getattr(self, of))

    def sources(self, split: str) -> list:
        settings: list = [self.text_field]
        if self._is_drawn(split):
            settings += [self.validation is None, self.test is None, self.held_out, self.split_seed]
        return [settings, *([file, digest(file)] for file in self._files(split))]

    def documents(self, split: str) -> Iterator[dict[str, str]]:
        seen = kept = 0
        for file in self._files(split):
            for name, text in READERS[Path(file).suffix](file, self.text_field):
                seen += 1
                if not self._is_drawn(split) or self.drawn_for(text) == split:
                    kept += 1
                    yield {"text": text, "name": name}
        if not seen:
            raise UserError(f"data.{split}: there is no document in its files")
        if not kept:
            raise UserError(
                f"data.{split}: none of the {seen} documents of data.train was drawn for it; give "
                f"data.{split}=[...], or more documents, or another data.held_out"
            )
