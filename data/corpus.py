"""What every corpus is: documents by split, and a fingerprint of all that they come from.

A corpus yields documents one at a time; `datasets` keeps them in an Arrow file that is read through
memory mapping, so a corpus may be larger than memory. The fingerprint is computed from the raw
content (never from sizes or times), the settings and the source code of the rules, so that what is
cached under it can't be out of date.
"""

import hashlib
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from data.cache import cached
from errors import UserError

if TYPE_CHECKING:
    import datasets

SPLITS = ("train", "validation", "test")


def digest(*parts: Any) -> str:
    """SHA-256 of anything that JSON can say."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars inside; afterwards they are as they were."""
    import datasets
    from huggingface_hub import utils as hub

    loud = [library for library in (datasets, hub) if not library.are_progress_bars_disabled()]
    for library in loud:
        library.disable_progress_bars()
    try:
        yield
    finally:
        for library in loud:
            library.enable_progress_bars()


@dataclass(kw_only=True)
class Corpus:
    """The base of every option of `data=`; the fields are the keys of the option's YAML.

    `document_mask` is for the loader and the model, `cache_dir` says where files go: neither
    changes the documents, so neither is part of a fingerprint.
    """

    document_mask: bool
    cache_dir: str
    words: ClassVar[bool] = False  # whether blanks part what its literature counts as words

    def __post_init__(self) -> None:
        if not self.cache_dir:
            raise UserError("data.cache_dir is empty: name a folder for tokenizers and tokens")

    def documents(self, split: str) -> Iterator[dict[str, str]]:
        """Each document of the split, as {"text", "name"}."""
        raise NotImplementedError  # every corpus has its own

    def check(self) -> None:
        """UserError where a document stands in two splits."""

    def sources(self, split: str) -> list:
        """All that `documents(split)` depends on besides its code, as JSON can say it."""
        raise NotImplementedError  # every corpus has its own

    def fingerprint(self, split: str) -> str:
        """Changes whenever `load(split)` could. SHA-256 in hexadecimal."""
        rules = Path(inspect.getfile(type(self))).read_text(encoding="utf-8")
        return digest(type(self).__name__, rules, split, self.sources(split))

    def load(self, split: str) -> "datasets.Dataset":
        """One row a document, columns "text" and "name".

        Its folder in `cache_dir` only saves reading the source again and may be deleted at any time.
        """
        import datasets
        from datasets.exceptions import DatasetGenerationError

        columns = {"text": datasets.Value("large_string"), "name": datasets.Value("string")}

        def build(folder: Path) -> None:
            try:
                with quiet():
                    datasets.Dataset.from_generator(
                        self.documents,
                        features=datasets.Features(columns),
                        cache_dir=str(folder),
                        gen_kwargs={"split": split},
                    )
            except DatasetGenerationError as error:  # wraps what a generator raises
                raise error.__cause__ or error from None

        def opened(folder: Path) -> "datasets.Dataset":
            parts = [datasets.Dataset.from_file(str(p)) for p in sorted(folder.rglob("*.arrow"))]
            return datasets.concatenate_datasets(parts)

        return cached(self.cache_dir, f"text-{self.fingerprint(split)[:16]}", build, opened)
