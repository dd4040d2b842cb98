"""The report as one HTML page that needs nothing else, and the same as Markdown.

No scripts, no fonts, no requests: the page can be mailed, printed and read on a phone in ten years.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from errors import printable
from evaluation.formats import Table, html, markdown, to_html, to_markdown


@dataclass(frozen=True)
class Figure:
    """What it shows, in a sentence or two, and how to draw it: only a page that is written pays."""

    name: str
    caption: str
    draw: Callable[[], str]

    @cached_property
    def svg(self) -> str:
        return self.draw()


@dataclass(frozen=True)
class Part:
    """A chapter: `definition` says how the numbers under this title were measured."""

    title: str
    definition: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    listing: list[str] = field(default_factory=list)  # lines, folded away


@dataclass(frozen=True)
class Page:
    title: str
    facts: list[str]  # short, for one line under the title
    finding: str
    warnings: list[str]  # why the runs should not be compared
    remarks: list[str]
    parts: list[Part]


CSS = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #5b6470; --line: #d9dee4; --accent: #0b5cad; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 66rem; color: var(--ink);
  background: #fff; font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; text-wrap: balance; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3.5rem 0 0.4rem; padding-top: 1.2rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 2rem 0 0.4rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
.facts { color: var(--soft); margin-top: 0.6rem; }
.finding { font-size: 1.2rem; line-height: 1.5; margin: 1.5rem 0 0; padding-left: 1rem;
  border-left: 4px solid var(--accent); }
.warning { background: #fff4e5; border: 1px solid #e0a458; border-left: 4px solid #b45309;
  padding: 0.8rem 1rem; margin: 1.5rem 0 0; max-width: 46rem; }
.warning ul { margin: 0.4rem 0 0; padding-left: 1.2rem; }
.note, figcaption { color: var(--soft); font-size: 0.875rem; line-height: 1.5; max-width: 46rem; }
.figures { display: grid; gap: 1.5rem 2.5rem; margin-top: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; max-width: 40rem; }
figure svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.95rem; }
th, td { text-align: right; padding: 0.4rem 0 0.4rem 1.5rem; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--ink); }
tbody th { font-weight: 600; }
th.word, td.word { text-align: left; }
th:first-child, td:first-child { padding-left: 0; padding-right: 0.5rem; position: sticky; left: 0;
  background: #fff; }
td strong { color: var(--accent); }
small { display: block; color: var(--soft); font-size: 0.78rem; font-weight: 400; }
details { margin-top: 1.5rem; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font-size: 0.85rem; line-height: 1.45; }
footer { margin-top: 4rem; color: var(--soft); font-size: 0.875rem; }
@media (max-width: 40rem) { body { padding-top: 1.5rem; } h1 { font-size: 1.5rem; }
  .finding { font-size: 1.08rem; } th, td { padding-left: 1rem; } }
@media print { body { max-width: none; padding: 0; } .scroll { overflow: visible; }
  figure, table, .warning { break-inside: avoid; } }
"""


def render_html(page: Page) -> str:
    facts = " · ".join(map(html, page.facts))
    parts = "\n".join(map(_part_html, page.parts))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html(page.title)}</title>
<style>{CSS}</style>
</head>
<body>
<header>
<h1>{html(page.title)}</h1>
<p class="facts">{facts}</p>
{_warnings_html(page.warnings)}<p class="finding">{html(page.finding)}</p>
</header>
<main>
{parts}
</main>
<footer>
{_paragraphs(page.remarks)}<p>Made by compare.py of Lengthwise. The same tables lie beside this
page as report.md and, exact, as CSV; the figures as SVG.</p>
</footer>
</body>
</html>
"""


def _warnings_html(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{html(warning)}</li>" for warning in warnings)
    return (
        '<div class="warning" role="alert"><strong>Not comparable as they stand.</strong>'
        f"<ul>{items}</ul></div>\n"
    )


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{html(text)}</p>\n" for text in texts)


def _part_html(part: Part) -> str:
    pieces = [f"<section>\n<h2>{html(part.title)}</h2>"]
    if part.definition:
        pieces.append(f"<p>{html(part.definition)}</p>")
    if part.figures:
        figures = [
            f"<figure>\n{figure.svg.strip()}\n<figcaption>{html(figure.caption)}</figcaption></figure>"
            for figure in part.figures
        ]
        pieces.append('<div class="figures">\n' + "\n".join(figures) + "\n</div>")
    for table in part.tables:
        pieces += [f"<h3>{html(table.title)}</h3>", to_html(table)]
        pieces += [f'<p class="note">{html(table.note)}</p>'] if table.note else []
    if part.listing:
        pieces.append(
            "<details><summary>Settings that all runs share</summary>\n"
            f"<pre>{_listing(part, html)}</pre></details>"
        )
    return "\n".join([*pieces, "</section>"])


def render_markdown(page: Page) -> str:
    lines = [f"# {markdown(page.title)}", " · ".join(map(markdown, page.facts))]
    if page.warnings:
        lines.append("> **Not comparable as they stand.**\n" + _bullets(page.warnings, "> - "))
    lines.append(f"**{markdown(page.finding)}**")
    for part in page.parts:
        lines += [f"## {markdown(part.title)}", markdown(part.definition)]
        for figure in part.figures:
            caption = markdown(figure.caption)
            lines += [f"![{caption}]({figure.name}.svg)", caption]
        lines += [to_markdown(table) for table in part.tables]
        lines += [_fenced(_listing(part, printable))] if part.listing else []
    lines.append(_bullets(page.remarks, "- "))
    return "\n\n".join(line.strip() for line in lines if line.strip()) + "\n"


def _bullets(texts: Sequence[str], mark: str) -> str:
    return "\n".join(mark + markdown(text) for text in texts)


def _listing(part: Part, safe: Callable[[str], str]) -> str:
    return "\n".join(map(safe, part.listing))


def _fenced(text: str) -> str:
    """As code, between more backticks than stand anywhere in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"
