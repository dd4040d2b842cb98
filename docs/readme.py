"""Puts the tables of committed results into the pages that show them: python -m docs.readme

After `compare.py ... out=docs/results/demo` or a benchmark. Only what stands between two marks, `<!-- demo -->` and
`<!-- /demo -->`, is replaced, so that the numbers there are a command's and never typed.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs import methodology, performance

ROOT = Path(__file__).parents[1]
REPORT = Path("docs/results/demo/report.md")
PROTOCOLS = {
    "same_tokens": "The same tokens at every length",
    "non_overlapping": "Non-overlapping windows",
}


def tables(report: str) -> dict[str, str]:
    """The perplexity table of each protocol in a report.md."""
    found = {}
    for part in re.split(r"^## ", report, flags=re.M)[1:]:
        protocol = re.search(r"^Protocol (\w+)", part, re.M)
        table = re.search(r"^### Perplexity\n\n((?:\|.*\n)+)", part, re.M)
        if protocol and table:
            found[protocol[1]] = table[1]
    return found


def demo() -> str:
    found = tables((ROOT / REPORT).read_text())
    picture = f"![Perplexity against context length, same tokens]({REPORT.parent}/perplexity-same_tokens.svg)"
    parts = [
        f"{title} (`{name}`), perplexity:\n\n{found[name]}" for name, title in PROTOCOLS.items()
    ]
    return "\n".join([picture + "\n", *parts])


PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"demo": demo},
    "docs/methodology.md": methodology.SECTIONS,
    "docs/performance.md": performance.SECTIONS,
}


def filled(page: str) -> str:
    """The page's text with what its marks should hold today."""
    text = (ROOT / page).read_text()
    for name, section in PAGES[page].items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
        if not marks.search(text):
            raise ValueError(f"{page} has no marks <!-- {name} -->")
        text = marks.sub(lambda m, section=section: m[1] + section() + m[2], text)
    return text


if __name__ == "__main__":
    if "--help" in sys.argv[1:]:
        sys.exit(print(__doc__))
    for page in PAGES:
        (ROOT / page).write_text(filled(page))
    methodology.PICTURE.write_text(methodology.picture())
