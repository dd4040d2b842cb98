"""`data=files`: your own text. A .txt or .md file is one document, a .jsonl or .parquet row is one.

Text is taken as it is: line ends, NUL bytes and words that look like special tokens stay. Where
`data.validation` or `data.test` is null, that split is drawn from `data.train` by a hash of each
document's text, so that a document stays where it is whatever is added later, and copies of one
document are never on both sides. Nor are they where splits are named: texts are compared once, and
a document that stands in two splits is refused.
"""

import glob
import hashlib
import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.cache import cached
from data.corpus import SPLITS, Corpus
from data.corpus import digest as corpus_digest
from errors import UserError
from storage import digest


def expand(key: str, patterns: list[str]) -> list[str]:
    """The files that paths and globs name, in the order of their names; each once, however it is named."""
    found: set[str] = set()
    for pattern in patterns:
        path = str(Path(pattern).expanduser())
        files = [path] if Path(path).exists() else glob.glob(path, recursive=True)
        if not files:
            raise UserError(f"{key}: there is no file '{pattern}'")
        found.update(files)
    once: dict[tuple[int, int], str] = {}
    for file in sorted(found):
        try:
            once.setdefault(identity(file), file)
        except OSError as error:  # a glob finds links that lead nowhere
            link = f", a link to '{os.readlink(file)}'" if os.path.islink(file) else ""
            raise UserError(f"{key}: '{file}'{link}: {error.strerror}; mend or remove it") from None
        if Path(file).is_dir():
            raise UserError(f"{key}: '{file}' is a folder; name its files: '{file}/**/*.txt'")
        if Path(file).suffix not in READERS:
            raise UserError(f"{key}: '{file}' is none of {', '.join(READERS)}")
        if not Path(file).is_file():
            raise UserError(f"{key}: '{file}' is no regular file")
    return list(once.values())


def identity(file: str) -> tuple[int, int]:
    """The same for two names of one file, links of either kind."""
    status = os.stat(file)
    return status.st_dev, status.st_ino


def decode(content: bytes, file: str, start: int = 0) -> str:
    """`start`: where the content begins in the file; a mark of the byte order there is no text."""
    if not start and content.startswith(BOM_UTF8):
        start = len(BOM_UTF8)
        content = content[start:]
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
            if line.removeprefix(BOM_UTF8 if number == 1 else b"").strip():
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
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file}: not a parquet file: {first_line(error)}") from None
    names = table.schema_arrow.names
    if field not in names:
        raise UserError(f"{file}: no field data.text_field={field}; there are {', '.join(names)}")
    number = 0
    for group in range(table.num_row_groups):
        for value in read_group(table, group, field, file):
            number += 1
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                raise UserError(f"{file}:{number}: not UTF-8 at byte {error.start}") from None
            if not isinstance(text, str):
                raise UserError(f"{file}:{number}: field '{field}' is not a text: {text!r:.40}")
            yield f"{file}:{number}", text


def read_group(table: Any, group: int, field: str, file: str) -> Iterator[Any]:
    """The values of a row group, a thousand rows at a time."""
    import pyarrow as pa

    try:
        for batch in table.iter_batches(columns=[field], batch_size=1000, row_groups=[group]):
            yield from batch.column(0)
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{file}: row group {group} of {table.num_row_groups} (counted from 0) is damaged:"
            f" {first_line(error)}; fetch the file again"
        ) from None


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


READERS = {".txt": read_text, ".md": read_text, ".jsonl": read_jsonl, ".parquet": read_parquet}


@dataclass(kw_only=True)
class Files(Corpus):
    train: list[str]
    validation: list[str] | None
    test: list[str] | None
    text_field: str
    held_out: float
    split_seed: int
    _checked: bool = field(default=False, init=False, repr=False)  # every file is hashed for it

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train:
            raise UserError("data.train names no file: data=files 'data.train=[corpus/*.txt]'")
        if not 0 < self.held_out < 0.5:
            raise UserError(f"data.held_out={self.held_out}: must lie between 0 and 0.5")
        seen: dict[tuple[int, int], tuple[str, str]] = {}
        for split in SPLITS:
            for file in expand(f"data.{split}", getattr(self, split) or []):
                other, name = seen.setdefault(identity(file), (split, file))
                if other != split:
                    named = "" if name == file else f", as '{name}'"
                    raise UserError(f"data.{split}: '{file}' is in data.{other} too{named}")

    def drawn_for(self, text: str) -> str:
        """The split that a document of data.train belongs to."""
        sha256 = hashlib.sha256(f"{self.split_seed}:{text}".encode())
        u = int.from_bytes(sha256.digest()[:8], "big") / 2**64
        if self.test is None and u < self.held_out:
            return "test"
        if self.validation is None and self.held_out <= u < 2 * self.held_out:
            return "validation"
        return "train"

    def check(self) -> None:
        """UserError where a text stands in two of data.train, data.validation and data.test.

        What data.train holds is compared whole, whichever split its documents are drawn for.
        """
        named = [split for split in SPLITS if getattr(self, split)]
        if self._checked or len(named) < 2:
            return
        files = [[[file, digest(file)] for file in self._files(split)] for split in named]
        key = corpus_digest("apart", Path(__file__).read_text(), self.text_field, named, files)
        cached(self.cache_dir, f"apart-{key[:16]}", lambda _: self._compare(named), lambda _: None)
        self._checked = True

    def _compare(self, named: list[str]) -> None:
        held_out: dict[bytes, tuple[str, str]] = {}
        for split in [s for s in named if s != "train"] + ["train"]:  # the largest is not kept
            for name, text in self._read(split):
                sha256 = hashlib.sha256(text.encode()).digest()
                other, place = held_out.get(sha256, (split, name))
                if other != split:
                    raise UserError(
                        f"data.{other}: '{place}' and '{name}' of data.{split} are the same text: take it"
                        " out of one of them"
                    )
                if split != "train" and text:
                    held_out[sha256] = split, name

    def _read(self, split: str) -> Iterator[tuple[str, str]]:
        """Name and text of each document in the split's files."""
        for file in self._files(split):
            yield from READERS[Path(file).suffix](file, self.text_field)

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
        for name, text in self._read(split):
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
