"""What a report says, as numbers: for every group and context length a loss with its interval.

A section is one way of measuring (a protocol with its stride and attention window). What is
unusual: each number knows what its interval is over. One run's interval is over the text alone and
says nothing about a scheme; only two or more seeds make a claim, and the claim of the headline is
corrected for the number of schemes compared (Holm 1979).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np

from evaluation.collect import Group
from evaluation.protocols import Scores
from evaluation.results import Row
from evaluation.statistics import Interval, context_gain, holm, paired_difference, scheme_interval

State = Literal["measured", "unsupported", "not finite", "missing"]
ORDER = ("same_tokens", "non_overlapping", "sliding", "per_position")


@dataclass(frozen=True)
class Measure:
    """A group at one place of a section; `low` and `high` bound the loss, None where unknown."""

    state: State
    seeds: int = 0
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    bpb: float | None = None
    over: str = ""  # what the interval generalises over


@dataclass(frozen=True, order=True)
class Way:
    """A way of measuring. `length` is set where the places are positions in windows of that length."""

    order: int
    window: int = 0  # 0: attention sees the whole context
    stride: int = 0  # 0: none, or half of each length where the protocol has one
    length: int = 0

    @property
    def protocol(self) -> str:
        return ORDER[self.order]

    @property
    def name(self) -> str:
        """For a file or an id: `sliding-stride-64`."""
        extras = {"window": self.window, "stride": self.stride, "at": self.length}
        return "-".join([self.protocol, *(f"{key}-{n}" for key, n in extras.items() if n)])


Entries = dict[int, tuple[Row, Scores]]  # of one group at one place, by seed


@dataclass(frozen=True)
class Section:
    """One way of measuring all groups: entries, measures and gains by group and place.

    A place is a context length ("1024") or a bin of positions ("64-127"). `gains` holds loss with
    the context cropped to the trained length minus loss at the place, on the same tokens.
    """

    way: Way
    places: list[str]
    entries: dict[str, dict[str, Entries]]
    measures: dict[str, dict[str, Measure]]
    gains: dict[str, dict[str, Interval]]

    @cached_property
    def at(self) -> list[float]:
        """Places as numbers: a context length, or the middle of a bin on a logarithmic axis."""
        return [math.sqrt(math.prod(map(float, (p.split("-") * 2)[:2]))) for p in self.places]

    def ratio(self, group: Group, place: str) -> float | None:
        """Perplexity there by perplexity at the trained length."""
        losses = [self.measures[group.name].get(p) for p in (place, str(group.trained_context))]
        known = [m.loss for m in losses if m is not None and m.loss is not None]
        return exp(known[0] - known[1]) if len(known) == 2 else None

    def ratio_interval(self, group: Group, place: str) -> tuple[float | None, float | None]:
        gain = self.gains[group.name].get(place)
        return (exp(-gain.high), exp(-gain.low)) if gain else (None, None)


def exp(loss: float | None) -> float | None:
    """Perplexity of a loss; None where there is none or it overflows."""
    return None if loss is None or loss > 709 else math.exp(loss)


def make_sections(groups: Sequence[Group], headline: str) -> list[Section]:
    """Every way in which any group was measured, the headline protocol first."""
    found: dict[Way, dict[str, dict[str, Entries]]] = {}
    for group in groups:
        for seed, run in group.runs.items():
            for row, scores in run.entries:
                places = found.setdefault(_way(row), {}).setdefault(group.name, {})
                place = row["bin"] or str(row["context_length"])
                places.setdefault(place, {})[seed] = (row, scores)
    ways = sorted(found, key=lambda way: (way.window > 0, way.protocol != headline, way))
    return [_section(way, found[way], groups) for way in ways]


def _way(row: Row) -> Way:
    # Strides of half of each length, the default, make one curve; any other stride one of its own.
    half = max(1, row["context_length"] // 2)
    stride = 0 if row["stride"] in (None, half) else row["stride"]
    length = row["context_length"] if row["bin"] else 0
    return Way(ORDER.index(row["protocol"]), row["window"] or 0, stride or 0, length)


def _section(way: Way, entries: dict[str, dict[str, Entries]], groups: Sequence[Group]) -> Section:
    entries = {group.name: entries.get(group.name, {}) for group in groups}
    everywhere = {place for places in entries.values() for place in places}
    places = sorted(everywhere, key=lambda place: int(place.split("-")[0]))
    measures = {
        name: {place: _measure(known.get(place, {})) for place in places}
        for name, known in entries.items()
    }
    gains: dict[str, dict[str, Interval]] = {group.name: {} for group in groups}
    for group in groups:
        known, trained = entries[group.name], str(group.trained_context)
        for place in set(known) - {trained} if trained in known else ():
            if gain := _gain(known[trained], known[place]):
                gains[group.name][place] = gain
    return Section(way, places, entries, measures, gains)


def _measure(entries: Entries) -> Measure:
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
    if len(rows) == 1:
        low, high = rows[0]["ci95"] or (None, None)
        return Measure("measured", 1, loss, low, high, bpb, rows[0]["ci_unit"])
    if len({row["target_set"] for row in rows}) > 1:
        return Measure("measured", len(rows), loss, bpb=bpb, over="seeds read different tokens")
    interval = scheme_interval(_sound(entries))
    assert interval is not None
    return Measure("measured", len(rows), loss, interval.low, interval.high, bpb, interval.unit)


def _sound(entries: Entries) -> dict[int, Scores]:
    return {seed: scores for seed, (row, scores) in entries.items() if row["loss"] is not None}


def _gain(crop: Entries, long: Entries) -> Interval | None:
    a, b = _sound(crop), _sound(long)
    shared = sorted(a.keys() & b.keys())
    if not shared or any(_targets(crop, seed) != _targets(long, seed) for seed in shared):
        return None
    if len({_targets(crop, seed) for seed in shared}) > 1:
        return None
    return context_gain({s: a[s] for s in shared}, {s: b[s] for s in shared})


def _targets(entries: Entries, seed: int) -> str:
    return entries[seed][0]["target_set"]


@dataclass(frozen=True)
class Difference:
    """Loss of a group minus loss of another at one place, paired by seed and token."""

    place: str
    group: str
    other: str
    interval: Interval
    p_holm: float  # corrected for all differences asked for together

    @property
    def clear(self) -> bool:
        return self.p_holm <= 0.05


def differences(
    section: Section, pairs: Sequence[tuple[Group, Group]], places: Sequence[str]
) -> list[Difference]:
    """Those that at least two shared seeds allow, with Holm's correction over all of them."""
    found: list[tuple[str, str, str, Interval]] = []
    for place in places:
        for group, other in pairs:
            both = [section.entries[g.name].get(place, {}) for g in (group, other)]
            a, b = map(_sound, both)
            sets = {_targets(entries, seed) for entries in both for seed in a.keys() & b.keys()}
            interval = paired_difference(a, b) if len(sets) == 1 else None
            if interval is not None:
                found.append((place, group.name, other.name, interval))
    adjusted = holm([p for *_, i in found if (p := i.p_value) is not None])
    return [
        Difference(place, group, other, interval, p)
        for (place, group, other, interval), p in zip(found, adjusted, strict=True)
    ]


def lead(groups: Sequence[Group], section: Section) -> tuple[str, list[Group], list[Difference]]:
    """The longest place where two groups have a loss, those groups by loss, all their differences."""
    for place in reversed(section.places):
        measures = {g.name: section.measures[g.name][place] for g in groups}
        ranked = [g for g in groups if measures[g.name].loss is not None]
        if len(ranked) > 1:
            ranked.sort(key=lambda g: measures[g.name].loss or 0.0)
            return place, ranked, differences(section, list(combinations(ranked, 2)), [place])
    return "", [], []
