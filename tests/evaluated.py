"""Real run folders, evaluated in a moment: `python eval.py` in this process, and what it wrote."""

import json
from pathlib import Path

from conftest import command

from evaluation import results

QUICK = ["eval.targets=256", "tracker=none", "eval.multiples=[1,2,8]", "windows=[full]"]
PROTOCOLS = "protocols=[same_tokens,non_overlapping,sliding,per_position]"
BOTH, SAME = "windows=[full,trained]", ["protocols=[same_tokens]"]


def evaluate(folder: Path, *overrides: str) -> dict:
    """`python eval.py run=<folder>`, and the newest result file."""
    assert command("eval", f"run={folder}", *QUICK, *overrides) == 0
    newest = max((folder / "eval").glob("*.json"), key=lambda p: p.stat().st_mtime_ns)
    results.load(newest)  # strict, and in agreement with its .npz
    return json.loads(newest.read_text())


def by_length(result: dict, protocol: str, window: int | None = None) -> dict[int, dict]:
    rows = [r for r in result["rows"] if (r["protocol"], r["window"]) == (protocol, window)]
    return {r["context_length"]: r for r in rows}
