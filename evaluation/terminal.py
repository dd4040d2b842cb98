"""The rows of an evaluation on the terminal, a table for each protocol."""

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
COLUMNS = {
    "perplexity": ("ppl", "{:.2f}"),
    "loss": ("loss", "{:.4f}"),
    "95 % interval": ("ci95", "{0[0]:.4f} to {0[1]:.4f}"),
    "bits/byte": ("bpb", "{:.4f}"),
    "word perplexity": ("word_ppl", "{:.2f}"),
    "tokens": ("tokens_scored", "{:,}"),
}


def show_rows(rows: Sequence[Row], trained_context: int) -> None:
    from rich.console import Console
    from rich.table import Table

    for protocol in dict.fromkeys(row["protocol"] for row in rows):
        mine = [row for row in rows if row["protocol"] == protocol]
        words = any(row["words"] for row in mine)
        columns = {name: c for name, c in COLUMNS.items() if words or c[0] != "word_ppl"}
        table = Table(title=f"{protocol}, trained at {trained_context:,} tokens")
        for name in ("context", *columns):
            table.add_column(name, justify="right")
        for row in mine:
            table.add_row(place(row), *cells(row, list(columns.values())))
        Console().print(table)
    print(
        "The intervals are about other passages of these documents, this checkpoint only: not about its scheme."
    )


def place(row: Row) -> str:
    limited = f"window {row['window']:,}" if row["window"] else ""
    return " ".join(filter(None, [f"{row['context_length']:,}", row["bin"], limited]))


def cells(row: Row, columns: Sequence[tuple[str, str]]) -> list[str]:
    if not row["supported"]:
        return ["unsupported"]
    return [form.format(row[key]) if row[key] is not None else "–" for key, form in columns]
