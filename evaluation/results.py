"""Rows of results, and the two files that keep them: one to read, one to compare.

`eval/<label>.json` holds the rows. What is unusual: `eval/<label>.npz` holds the nats of every
single target, so that two runs can later be paired token by token; evaluating again replaces only
the rows measured again, as long as the file speaks of the same checkpoint, data and settings; and
the two files check each other when read, so that half of an interrupted write is never believed.
"""

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from errors import UserError, printable
from evaluation.fields import ROW_KEY, checked
from evaluation.header import CODE, IDENTITY
from evaluation.protocols import Plan, Scores
from evaluation.statistics import CHECKPOINT_UNIT, block_interval
from evaluation.stored import read
from storage import replace, replace_text

ONE_SET = "same_tokens"  # promises one set of targets at every length
Row = dict[str, Any]
Entry = tuple[Row, Scores]


@dataclass(frozen=True)
class Results:
    """One evaluated checkpoint: rows[i] rests on scores[i], which is empty where unsupported."""

    header: dict[str, Any]
    rows: list[Row]
    scores: list[Scores]


def make_rows(plan: Plan, scores: Scores | None, words: np.ndarray | None = None) -> list[Entry]:
    """One row, or one for each bin of the plan; scores of None mean an unsupported length.

    words: (D,) in each document, None where the corpus has none. They count where a plan scores
    whole documents.
    """
    document, index, context = plan.targets()
    counted = words is not None and plan.whole and scores is not None
    count = int(words[np.unique(document)].sum()) if words is not None and counted else None
    parts = [(f"{low}-{high}", (low <= context) & (context <= high)) for low, high in plan.bins]
    entries = []
    for label, where in parts or [(None, slice(None))]:
        asked = target_set(document[where], index[where])
        found = scores.select(where) if scores is not None else _nothing()
        row = {
            "protocol": plan.protocol,
            "context_length": plan.context_length,
            "stride": plan.stride,
            "window": plan.window,
            "bin": label,
            "supported": scores is not None,
            **_measures(found, count),
            "ci95": _interval(found),
            "ci_unit": CHECKPOINT_UNIT,
            "target_set": asked,
        }
        entries.append((row, found))
    return entries


def target_set(document: np.ndarray, index: np.ndarray) -> str:
    """Hash of the sorted (document, index) pairs: equal where the same tokens were asked."""
    pairs = np.stack([document, index], axis=1)
    pairs = pairs[np.lexsort((index, document))].astype("<i8")
    return sha256(pairs.tobytes()).hexdigest()[:16]


def _measures(scores: Scores, words: int | None) -> Row:
    """A row's numbers; null for what is not finite, since strict JSON has no word for it."""
    nats, count = float(scores.nats.sum(dtype=np.float64)), len(scores)
    size = int(scores.bytes.sum(dtype=np.int64))
    loss = nats / count if count else math.nan
    return {
        "tokens_scored": count,
        "bytes_scored": size,
        "nats": _finite(nats) if count else None,
        "loss": _finite(loss),
        "ppl": _exp(loss),
        "bpb": _finite(nats / (math.log(2) * size)) if size else None,
        "words": words,
        "word_ppl": _exp(nats / words) if words else None,
    }


def _interval(scores: Scores) -> list[float] | None:
    finite = len(scores) and np.isfinite(scores.nats).all()
    found = block_interval(scores) if finite else None
    return [found.low, found.high] if found else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _exp(loss: float) -> float | None:
    with np.errstate(over="ignore"):
        return _finite(float(np.exp(np.float64(loss))))


def _nothing() -> Scores:
    return Scores(np.empty(0, np.float32), *(np.empty(0, np.int32) for _ in range(3)))


def save(folder: Path, header: dict[str, Any], entries: Sequence[Entry]) -> Path:
    """Writes or merges `<label>.json` and `.npz`, each in one step; returns the path of the json.

    Rows of equal protocol, length, window, stride and bin are replaced and the others kept, if the
    header agrees in what the numbers depend on, but for those of `same_tokens` that are of other
    tokens; a file about something else, or a damaged one, is replaced as a whole.
    """
    path = folder / f"{header['label']}.json"
    code = {key: header[key] for key in CODE}
    fresh = [({**row, **code}, scores) for row, scores in entries]
    tokens = _one_set(row for row, _ in entries)
    kept = [(row, found) for row, found in _kept(path, header) if not _other(row, tokens)]
    merged = {_key(row): (row, scores) for row, scores in [*kept, *fresh]}
    header, rows = checked({**header, "rows": [row for row, _ in merged.values()]})
    text = json.dumps({**header, "rows": rows}, indent=2, allow_nan=False) + "\n"
    scores = [found for _, found in merged.values()]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(found, name) for found in scores])
        for name in ("nats", "document", "index", "bytes")
    }
    arrays["row"] = np.repeat(np.arange(len(rows), dtype=np.int32), [len(s) for s in scores])
    folder.mkdir(parents=True, exist_ok=True)
    replace(path.with_suffix(".npz"), lambda file: np.savez_compressed(file, **arrays))
    replace_text(path, text)
    return path


def missing(path: Path, header: dict[str, Any], plans: Sequence[Plan]) -> list[Plan]:
    """The plans that the file at `path` does not hold for this checkpoint, data and code."""
    try:
        old = load(path)
    except UserError:
        return list(plans)
    if any(old.header[key] != header[key] for key in IDENTITY):
        return list(plans)
    now = [row for row in old.rows if all(row[key] == header[key] for key in CODE)]
    there = {(*_key(row), row["target_set"]) for row in now}
    asked = [{(*_key(row), row["target_set"]) for row, _ in make_rows(p, None)} for p in plans]
    return [p for p, rows in zip(plans, asked, strict=True) if not rows <= there]


def leaving(path: Path, header: dict[str, Any], plans: Sequence[Plan]) -> list[str]:
    """What the file at `path` will lose when the plans are saved into it, a line each."""
    try:
        old = load(path)
    except UserError:
        return []
    if other := [key for key in IDENTITY if old.header[key] != header[key]]:
        return [f"{path}: its {len(old.rows)} rows are of another {', '.join(other)}, and go"]
    asked = _one_set(row for plan in plans for row, _ in make_rows(plan, None))
    lengths = {row["context_length"] for row in old.rows if _other(row, asked)}
    lengths -= {plan.context_length for plan in plans if plan.protocol == ONE_SET}
    listed = ", ".join(f"{length:,}" for length in sorted(lengths))
    said = f"{path}: {ONE_SET} at {listed} scored other tokens than these lengths share, and goes"
    return [said] if lengths else []


def _one_set(rows: Iterable[Row]) -> set[str]:
    return {row["target_set"] for row in rows if row["protocol"] == ONE_SET}


def _other(row: Row, tokens: set[str]) -> bool:
    """Whether the row is of other tokens, where a file may hold one set alone."""
    return bool(tokens) and row["protocol"] == ONE_SET and row["target_set"] not in tokens


def rows_of(rows: Sequence[Row], plans: Sequence[Plan]) -> list[Row]:
    """Those rows that belong to the plans, in the plans' order."""
    by_key = {_key(row): row for row in rows}
    return [by_key[_key(row)] for p in plans for row, _ in make_rows(p, None)]


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in ROW_KEY)


def _kept(path: Path, header: dict[str, Any]) -> list[Entry]:
    try:
        old = load(path)
    except UserError as error:
        if path.exists():
            warnings.warn(f"{error}; its rows are replaced", stacklevel=3)
        return []
    same = all(old.header[key] == header[key] for key in IDENTITY)
    return list(zip(old.rows, old.scores, strict=True)) if same else []


def load(path: Path) -> Results:
    """A result file and its npz; raises UserError naming it if either is missing, damaged or wrong."""
    header, rows, scores = read(path)
    for number, (row, found) in enumerate(zip(rows, scores, strict=True)):
        if wrong := _contradiction(row, found):
            raise UserError(
                printable(
                    f"{path}: rows[{number}].{wrong}={row[wrong]}: its .json and .npz do not belong"
                    " together; run eval.py again"
                )
            )
    return Results(header, rows, scores)


def _contradiction(row: Row, scores: Scores) -> str | None:
    """The field of the row that does not follow from its scores."""
    if row["supported"] and target_set(scores.document, scores.index) != row["target_set"]:
        return "target_set"
    for key, value in _measures(scores, row["words"]).items():
        if (value is None) != (row[key] is None):
            return key
        if value is not None and not math.isclose(value, row[key], rel_tol=1e-9):
            return key
    return None
