"""`data=wikitext103`: WikiText-103 (Merity et al. 2016, arXiv:1609.07843), lines put into articles.

The text comes from the Hugging Face hub at a fixed commit, or from a local copy of that repository.
An article starts at a line ` = Title = ` with a blank line on both sides. ` = = Section = = ` is
inside one, and so is a part of a formula on a line of its own (the test text has ` = 1 rad / s and
a nominal impedance k = `). With this rule the validation and the test text have the 60 articles each
that the paper counts. The hub is asked only when text has to be read: a prepared corpus needs no
network, since what a commit holds can't change.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.corpus import Corpus, quiet
from errors import UserError
from storage import digest

if TYPE_CHECKING:
    import datasets

PROBE_SECONDS = 5.0


def is_title(line: str) -> bool:
    words = line.split()
    return len(words) >= 3 and words[0] == words[-1] == "=" and "=" not in (words[1], words[-2])


def articles(rows: Iterable[str]) -> Iterator[dict[str, str]]:
    """Articles out of lines. A row is a line, with or without its line end; "" is a blank line.

    Blank lines before the first title are dropped, nothing else is: other text there is an article
    without a name.
    """
    title, body, before = "", [], ""
    for row, after in pairwise(chain(rows, [""])):
        if is_title(row) and not before.strip() and not after.strip():
            if "".join(body).strip():
                yield {"text": "".join(body), "name": title}
            title, body = row.strip()[1:-1].strip(), []
        body.append(row if row.endswith("\n") else row + "\n")
        before = row
    if not title:
        raise UserError("data=wikitext103: the text has no line ' = Title = ', so no article")
    yield {"text": "".join(body), "name": title}


def hub_folder(path: str, config: str, revision: str) -> Path:
    """The repository in the usual Hugging Face cache, at this revision and no other."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    wanted: dict[str, Any] = {"repo_type": "dataset", "revision": revision}
    try:  # asked first: a download without a network would try for half a minute
        HfApi().dataset_info(path, revision=revision, timeout=PROBE_SECONDS)
        return Path(snapshot_download(path, **wanted, allow_patterns=["README.md", f"{config}/*"]))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise UserError(
            f"data.path={path} data.revision={revision}: not on the Hugging Face hub, or not "
            "without a login"
        ) from None
    except Exception as error:  # no network, no name, a proxy, offline mode: each its own class
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    try:
        return Path(snapshot_download(path, **wanted, local_files_only=True))
    except FileNotFoundError:
        raise UserError(
            f"data=wikitext103: the Hugging Face hub can't be reached and {path} is not in its "
            "cache; use data=shakespeare, or data=files 'data.train=[corpus/*.txt]', or "
            f"data.path=<folder with a copy of {path}> ({reason})"
        ) from None


@dataclass(kw_only=True)
class WikiText(Corpus):
    words = True
    path: str
    config: str
    revision: str
    train: str
    validation: str
    test: str
    text_field: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self._folder() and not re.fullmatch("[0-9a-f]{40}", self.revision):
            raise UserError(
                f"data.revision={self.revision}: give a whole commit (40 hexadecimal digits), so "
                "that the text can't change; or a folder as data.path"
            )

    def _folder(self) -> Path | None:
        """The local copy, if `path` is one."""
        folder = Path(self.path).expanduser()
        return folder if folder.is_dir() else None

    def _builder(self) -> "datasets.DatasetBuilder":
        """What the README tells `datasets`: the files of each split, and their number of rows."""
        import datasets

        folder = self._folder() or hub_folder(self.path, self.config, self.revision)
        try:
            return datasets.load_dataset_builder(
                str(folder.resolve()), self.config, cache_dir=f"{self.cache_dir}/datasets"
            )
        except (ValueError, FileNotFoundError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"data.path={self.path} data.config={self.config}: {reason}") from None

    def _files(self, builder: "datasets.DatasetBuilder", split: str) -> list[str]:
        files = builder.config.data_files or {}
        name = getattr(self, split)
        if name not in files:
            raise UserError(f"data.{split}={name}: no such split; there are {', '.join(files)}")
        return list(files[name])

    def sources(self, split: str) -> list:
        settings = [self.config, getattr(self, split), self.text_field]
        if not self._folder():
            return [self.path, self.revision, *settings]
        with quiet():
            return [*settings, *map(digest, self._files(self._builder(), split))]

    def documents(self, split: str) -> Iterator[dict[str, str]]:
        with quiet():
            builder = self._builder()
        self._files(builder, split)
        yield from articles(self._rows(builder, getattr(self, split)))

    def _rows(self, builder: "datasets.DatasetBuilder", name: str) -> Iterator[str]:
        """Straight from the files: no copy that `datasets` keeps can be out of date."""
        rows: Any = builder.as_streaming_dataset(name)
        count = 0
        for batch in rows.iter(1000):
            if self.text_field not in batch:
                there = ", ".join(batch)
                raise UserError(f"data.text_field={self.text_field}: {self.path} has {there}")
            count += len(batch[self.text_field])
            yield from batch[self.text_field]
        promised = (builder.info.splits or {}).get(name)
        if promised and promised.num_examples not in (None, 0, count):
            raise UserError(
                f"data.path={self.path}: {name} has {count} rows where its README.md says "
                f"{promised.num_examples}: the copy is not whole"
            )
