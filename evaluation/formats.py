"""A table as data, and as a terminal table, Markdown, HTML and CSV: the same cells in each."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rich.table


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


def to_rich(table: Table, width: int) -> "rich.table.Table":
    """For a terminal of so many columns; where the small print is too wide it takes two lines."""
    from rich.markup import escape as plain
    from rich.table import Table as RichTable

    columns = zip(*table.rows, strict=True)
    needed = [max(len(text) for c in column for text in (c.text, c.detail)) for column in columns]
    fold = sum(needed) + len(needed) > width
    drawn = RichTable(
        title=plain(table.title),
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    for index, name in enumerate(table.head):
        justify = "left" if index < table.words else "right"
        drawn.add_column(plain(name), justify=justify, no_wrap=index == 0)
    for row in table.rows:
        drawn.add_row(*(_rich_cell(cell, fold) for cell in row))
    return drawn


def _rich_cell(cell: Cell, fold: bool) -> str:
    from rich.markup import escape as plain

    text = f"[bold]{plain(cell.text)}[/bold]" if cell.strong else plain(cell.text)
    detail = plain(cell.detail.replace(" to ", "–\n") if fold else cell.detail)
    return text + (f"\n[dim]{detail}[/dim]" if detail else "")


def to_markdown(table: Table) -> str:
    def text(cell: Cell) -> str:
        number = f"**{cell.text}**" if cell.strong else cell.text
        return (f"{number} ({cell.detail})" if cell.detail else number).replace("|", "\\|")

    rules = ["---" if i < table.words else "---:" for i in range(len(table.head))]
    lines = [table.head, rules, *([text(cell) for cell in row] for row in table.rows)]
    drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {table.title}\n\n{drawn}\n" + (f"\n{table.note}\n" if table.note else "")


def to_html(table: Table) -> str:
    """The table alone; whoever places it adds title and note."""
    classes = [' class="word"' if i < table.words else "" for i in range(len(table.head))]
    head = "".join(
        f'<th scope="col"{c}>{escape(n)}</th>' for c, n in zip(classes, table.head, strict=True)
    )

    def cell(index: int, cell: Cell) -> str:
        text = f"<strong>{escape(cell.text)}</strong>" if cell.strong else escape(cell.text)
        text += f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
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
    """Values as they are, a line each; all rows have the same keys."""
    file = StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
