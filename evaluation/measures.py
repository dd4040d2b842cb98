"""What a report says, as numbers: for every group and context length a loss with its interval.

A section is one way of measuring: a protocol with its stride. Its lines are the groups, each with
its attention full and limited to a window. What is unusual: each number knows what its interval is
over. One run's interval is over the text alone and says nothing about a scheme.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from evaluation.collect import Group
from evaluation.protocols import Scores
from evaluation.results import Row
from evaluation.statistics import (
    Claim,
    Interval,
    context_gain,
    scheme_interval,
)

State = Literal["measured", "unsupported", "not finite", "missing"]
ORDER = ("same_tokens", "non_overlapping", "sliding", "per_position")


@dataclass(frozen=True)
class Measure:
    """A line at one place of a section; `low` and `high` bound the loss, None where unknown."""

    state: State
    seeds: int = 0
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    bpb: float | None = None
    word_loss: float | None = None  # nats a word
    over: str = ""  # what the interval generalises over


@dataclass(frozen=True, order=True)
class Way:
    """A way of measuring. `length` is set where the places are positions in windows of that length."""

    order: int
    stride: int = 0  # 0: none, or half of each length where the protocol has one
    length: int = 0

    @property
    def protocol(self) -> str:
        return ORDER[self.order]

    @property
    def name(self) -> str:
        """For a file or an id: `sliding-stride-64`."""
        extras = {"stride": self.stride, "at": self.length}
        return "-".join([self.protocol, *(f"{key}-{n}" for key, n in extras.items() if n)])


@dataclass(frozen=True)
class Line:
    """What one curve shows: a group whose attention sees everything, or the last `window` tokens."""

    group: Group
    window: int = 0

    @property
    def name(self) -> str:
        return f"{self.group.name}, window {self.window:,}" if self.window else self.group.name


Entries = dict[int, tuple[Row, Scores]]  # of one line at one place, by seed


@dataclass(frozen=True)
class Section:
    """One way of measuring all groups: entries, measures and gains by a line's name and place.

    A line without a window has its group's name. A place is a context length ("1024") or a bin of
    positions ("64-127"). `gains` holds loss with the context cropped to the trained length minus
    loss at the place, on the same tokens. `claim` is what intervals over seeds speak of.
    """

    way: Way
    claim: Claim
    lines: list[Line]
    places: list[str]
    entries: dict[str, dict[str, Entries]]
    measures: dict[str, dict[str, Measure]]
    gains: dict[str, dict[str, Interval]]

    @property
    def groups(self) -> list[Group]:
        return [line.group for line in self.lines if not line.window]

    @cached_property
    def at(self) -> list[float]:
        """Places as numbers: a context length, or the middle of a bin on a logarithmic axis."""
        return [math.sqrt(math.prod(map(float, (p.split("-") * 2)[:2]))) for p in self.places]

    def ratio(self, line: Line, place: str) -> float | None:
        """Perplexity there by perplexity at the trained length."""
        crop = self.measures[line.group.name].get(str(line.group.trained_context))
        losses = [self.measures[line.name].get(place), crop]
        known = [m.loss for m in losses if m is not None and m.loss is not None]
        return exp(known[0] - known[1]) if len(known) == 2 else None

    def ratio_interval(self, line: Line, place: str) -> tuple[float | None, float | None]:
        gain = self.gains[line.name].get(place)
        return (exp(-gain.high), exp(-gain.low)) if gain else (None, None)


Key = tuple[int, int]  # a line: number of its group, and window


def exp(loss: float | None) -> float | None:
    """Perplexity of a loss; None where there is none or it overflows."""
    return None if loss is None or loss > 709 else math.exp(loss)


def make_sections(groups: Sequence[Group], headline: str, claim: Claim) -> list[Section]:
    """Every way in which any group was measured, the headline protocol first."""
    found: dict[Way, dict[Key, dict[str, Entries]]] = {}
    for number, group in enumerate(groups):
        for seed, run in group.runs.items():
            for row, scores in run.entries:
                line = (number, row["window"] or 0)
                places = found.setdefault(_way(row), {}).setdefault(line, {})
                place = row["bin"] or str(row["context_length"])
                places.setdefault(place, {})[seed] = (row, scores)
    ways = sorted(found, key=lambda way: (way.protocol != headline, way))
    return [_section(way, found[way], groups, claim) for way in ways]


def _way(row: Row) -> Way:
    # Strides of half of each length, the default, make one curve; any other stride one of its own.
    half = max(1, row["context_length"] // 2)
    stride = 0 if row["stride"] in (None, half) else row["stride"]
    length = row["context_length"] if row["bin"] else 0
    return Way(ORDER.index(row["protocol"]), stride or 0, length)


def _section(
    way: Way, found: dict[Key, dict[str, Entries]], groups: Sequence[Group], claim: Claim
) -> Section:
    keys = sorted({*found, *((number, 0) for number in range(len(groups)))})
    lines = [Line(groups[number], window) for number, window in keys]
    entries = {line.name: found.get(key, {}) for line, key in zip(lines, keys, strict=True)}
    everywhere = {place for places in entries.values() for place in places}
    places = sorted(everywhere, key=lambda place: int(place.split("-")[0]))
    measures = {
        name: {place: _measure(known.get(place, {}), claim) for place in places}
        for name, known in entries.items()
    }
    gains: dict[str, dict[str, Interval]] = {line.name: {} for line in lines}
    for line in lines:
        trained = str(line.group.trained_context)
        crop = entries[line.group.name].get(trained, {})
        for place, long in entries[line.name].items():
            itself = place == trained and not line.window
            if not itself and (gain := _gain(crop, long, claim)):
                gains[line.name][place] = gain
    return Section(way, claim, lines, places, entries, measures, gains)


def _measure(entries: Entries, claim: Claim) -> Measure:
    if not entries:
        return Measure("missing")
    rows = [row for row, _ in entries.values() if row["supported"]]
    if not rows:
        return Measure("unsupported", len(entries))
    if any(row["loss"] is None for row in rows):
        return Measure("not finite", len(rows))
    loss = float(np.mean([row["loss"] for row in rows]))
    known = [row["bpb"] for row in rows if row["bpb"] is not None]
    bpb = float(np.mean(known)) if known else None
    per_word = [row["nats"] / row["words"] for row in rows if row["words"]]
    units = {"bpb": bpb, "word_loss": float(np.mean(per_word)) if per_word else None}
    if len(rows) == 1:
        low, high = rows[0]["ci95"] or (None, None)
        return Measure("measured", 1, loss, low, high, **units, over=rows[0]["ci_unit"])
    if len({row["target_set"] for row in rows}) > 1:
        return Measure("measured", len(rows), loss, **units, over="seeds read different tokens")
    one = scheme_interval(sound(entries), claim)
    if one is None:
        return Measure(
            "measured", len(rows), loss, **units, over=f"one document: nothing on {claim}"
        )
    return Measure("measured", len(rows), loss, one.low, one.high, **units, over=one.unit)


def sound(entries: Entries) -> dict[int, Scores]:
    return {seed: scores for seed, (row, scores) in entries.items() if row["loss"] is not None}


def _gain(crop: Entries, long: Entries, claim: Claim) -> Interval | None:
    a, b = sound(crop), sound(long)
    shared = sorted(a.keys() & b.keys())
    if not shared or any(targets(crop, seed) != targets(long, seed) for seed in shared):
        return None
    if len({targets(crop, seed) for seed in shared}) > 1:
        return None
    return context_gain({s: a[s] for s in shared}, {s: b[s] for s in shared}, claim)


def targets(entries: Entries, seed: int) -> str:
    return entries[seed][0]["target_set"]
