"""metrics.jsonl: every number of a training run, one strict-JSON object a line, tracker or not.

A line has `attempt` (0, then +1 a resume), `step`, `tokens`, `seconds`, perhaps `batch` (a hash of
what the step read) and any of the `train/*` and `val/*` metrics. Unusual: the file is only ever
appended to. A run that resumes from an older checkpoint repeats some steps; the reader keeps the
newest attempt, so that nothing is lost and nothing is edited.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from storage import writing

Record = dict[str, Any]


class NoMetrics:
    """Writes nothing, and is the interface: the metrics of a process that another one writes for."""

    attempt = 0

    def log(
        self,
        metrics: dict[str, float],
        *,
        step: int,
        tokens: int,
        seconds: float,
        batch: Callable[[], str] | None = None,
    ) -> None:
        """`tokens` and `seconds` since training began; `batch`: makes a hash of what the step read."""

    def sync(self) -> None:
        """Through to the disk: a checkpoint must not know of steps that a power failure takes from here."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MetricsFile(NoMetrics):
    """Appends to `path`; a line is the system's when `log` returns, and on the disk after `sync`."""

    def __init__(self, path: Path, after: int = -1) -> None:
        """Opening again: next attempt, beyond `after` too, the one that a checkpoint knows of."""
        self.path = path
        self.attempt = 1 + max((r["attempt"] for _, r in _records(path)), default=-1)
        self.attempt = max(self.attempt, after + 1)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
            self._file = path.open("a", encoding="utf-8")
            if torn:  # a killed run left half a line: keep it from swallowing our first one
                self._file.write("\n")

    def log(
        self,
        metrics: dict[str, float],
        *,
        step: int,
        tokens: int,
        seconds: float,
        batch: Callable[[], str] | None = None,
    ) -> None:
        """What is not finite is written as null."""
        record = {"attempt": self.attempt, "step": step, "tokens": tokens, "seconds": seconds}
        record |= {} if batch is None else {"batch": batch()}
        record |= {key: _plain(value) for key, value in metrics.items()}
        with writing(self.path):
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()

    def sync(self) -> None:
        with writing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with suppress(OSError):  # of a line that `log` has said it could not write
            self._file.close()


def open_metrics(folder: Path, after: int, main: bool) -> NoMetrics:
    """Of a run in `folder`, for one process to write."""
    return MetricsFile(folder / "metrics.jsonl", after) if main else NoMetrics()


def read_metrics(path: Path) -> list[Record]:
    """One record a step, by step; of each value the one from the newest attempt. [] without a file.

    A damaged line is left out, with a warning that names it.
    """
    merged: dict[int, Record] = {}
    records = sorted(_records(path), key=lambda item: (item[1]["attempt"], item[0]))
    for _, record in records:
        merged[record["step"]] = merged.get(record["step"], {}) | record
    return [merged[step] for step in sorted(merged)]


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """(line number, record) of each sound line; a warning names any other."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record = json.loads(line, parse_constant=_refuse)
            counts = [record["attempt"], record["step"], record.get("tokens", 0)]
            if not all(type(x) is int and 0 <= x < 2**63 for x in counts):
                raise ValueError("no attempt, or no step")
            numbers = {key: x for key, x in record.items() if key != "batch" and x is not None}
            if not all(type(x) in (int, float) and abs(x) < 2**63 for x in numbers.values()):
                raise ValueError("a value that is no number")
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            if line.strip():
                warnings.warn(f"{path}, line {number}: damaged, left out", stacklevel=3)
            continue
        yield number, record


def _plain(value: float) -> float | int | None:
    if isinstance(value, int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
