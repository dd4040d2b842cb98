"""Puts the tables of a report into the README: python -m docs.readme, after compare.py ... out=docs/results/demo

Only what stands between the two marks is replaced, so that the numbers there are a command's and never typed.
"""

import re
from pathlib import Path

README, REPORT = Path("README.md"), Path("docs/results/demo/report.md")
MARKS = re.compile(r"(<!-- demo -->\n).*?(<!-- /demo -->)", re.S)
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


def section(report: str) -> str:
    found = tables(report)
    picture = f"![Perplexity against context length, same tokens]({REPORT.parent}/perplexity-same_tokens.svg)"
    parts = [
        f"{title} (`{name}`), perplexity:\n\n{found[name]}" for name, title in PROTOCOLS.items()
    ]
    return "\n".join([picture + "\n", *parts])


if __name__ == "__main__":
    text = MARKS.sub(lambda m: m[1] + section(REPORT.read_text()) + m[2], README.read_text())
    README.write_text(text)
