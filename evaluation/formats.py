"""A table as data, and as a terminal table, Markdown, HTML and CSV: the same cells in each.

Names in a cell come from other people's files. They are kept as they are until a table is drawn,
and each form escapes what it would take for more than text: `html`, `markdown`, `spreadsheet`.
"""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from errors import printable

if TYPE_CHECKING:
    import rich.table
    import rich.text


@dataclass(frozen=True)
class Cell:
    """`detail` is the smaller print; `strong` marks what the table's note explains."""

    text: str
    detail: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """`head` begins with the columns of words, as many as `words`; the others hold numbers."""

    title: str
    head: list[str]
    rows: list[list[Cell]]
    note: str = ""
    words: int = 1

    def records(self) -> list[dict[str, str]]:
        """A dict a row, without the small print."""
        return [dict(zip(self.head, [cell.text for cell in r], strict=True)) for r in self.rows]


def number(value: float | None) -> str:
    """Four figures or so: 3.21, 45.67, 123.4, 12,346, 1.2e+09; "overflow" for None."""
    if value is None:
        return "overflow"
    if value < 100:
        return f"{value:.2f}"
    if value < 1000:
        return f"{value:.1f}"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def span(
    low: float | None, high: float | None, text: Callable[[float | None], str] = number
) -> str:
    """An interval in words; empty where there is none."""
    return "" if low is None and high is None else f"{text(low)} to {text(high)}"


def html(text: str) -> str:
    """For a text or an attribute of a page."""
    return escape(printable(text))


def markdown(text: str) -> str:
    """Text that GitHub's Markdown shows as it is: no HTML, link, code, formula or further cell."""
    special = r"[\\`*\[\]<>|&~$]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\."
    return re.sub(special, r"\\\g<0>", printable(text), flags=re.ASCII)


def spreadsheet(value: Any) -> Any:
    """A cell that no spreadsheet runs: a text that could be a formula gets an apostrophe before it."""
    if not isinstance(value, str):
        return value
    runs = re.match(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]", value)  # the last four: full width
    harmless = re.fullmatch(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", value, re.ASCII | re.I)
    return ("'" if runs and not harmless else "") + printable(value)


def to_rich(table: Table, width: int) -> "rich.table.Table":
    """For a terminal of so many columns; where the small print is too wide it takes two lines."""
    from rich.table import Table as RichTable
    from rich.text import Text

    columns = zip(*table.rows, strict=True)
    needed = [max(len(text) for c in column for text in (c.text, c.detail)) for column in columns]
    fold = sum(needed) + len(needed) > width
    drawn = RichTable(
        title=Text(printable(table.title)),
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    for index, name in enumerate(table.head):
        justify = "left" if index < table.words else "right"
        drawn.add_column(Text(printable(name)), justify=justify, no_wrap=index == 0)
    for row in table.rows:
        drawn.add_row(*(_rich_cell(cell, fold) for cell in row))
    return drawn


def _rich_cell(cell: Cell, fold: bool) -> "rich.text.Text":
    from rich.text import Text

    text, detail = Text(printable(cell.text), "bold" if cell.strong else ""), printable(cell.detail)
    if detail:
        text.append("\n" + (detail.replace(" to ", "–\n") if fold else detail), "dim not bold")
    return text


def to_markdown(table: Table) -> str:
    def text(cell: Cell) -> str:
        shown, detail = markdown(cell.text), markdown(cell.detail)
        number = f"**{shown}**" if cell.strong else shown
        return f"{number} ({detail})" if detail else number

    rules = ["---" if i < table.words else "---:" for i in range(len(table.head))]
    head = [markdown(name) for name in table.head]
    lines = [head, rules, *([text(cell) for cell in row] for row in table.rows)]
    drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    note = f"\n{markdown(table.note)}\n" if table.note else ""
    return f"### {markdown(table.title)}\n\n{drawn}\n{note}"


def to_html(table: Table) -> str:
    """The table alone; whoever places it adds title and note."""
    classes = [' class="word"' if i < table.words else "" for i in range(len(table.head))]
    head = "".join(
        f'<th scope="col"{c}>{html(n)}</th>' for c, n in zip(classes, table.head, strict=True)
    )

    def cell(index: int, cell: Cell) -> str:
        text = f"<strong>{html(cell.text)}</strong>" if cell.strong else html(cell.text)
        text += f"<small>{html(cell.detail)}</small>" if cell.detail else ""
        if index == 0:
            return f'<th scope="row"{classes[0]}>{text}</th>'
        return f"<td{classes[index]}>{text}</td>"

    rows = ["".join(cell(i, c) for i, c in enumerate(row)) for row in table.rows]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Values in full, a line each; all rows have the same keys."""
    file = StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: spreadsheet(value) for key, value in row.items()} for row in rows)
    return file.getvalue()
