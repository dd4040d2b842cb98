"""Which scheme is better, and is that clear? Losses subtracted, paired by seed and token.

What is unusual: a difference is only there where two runs of each scheme share their seeds, and all
that are asked for together are corrected together (Holm 1979).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from evaluation.collect import Group
from evaluation.measures import Section, sound, targets
from evaluation.statistics import Interval, holm, paired_difference


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
            a, b = map(sound, both)
            sets = {targets(entries, seed) for entries in both for seed in a.keys() & b.keys()}
            interval = paired_difference(a, b, section.claim) if len(sets) == 1 else None
            if interval is not None:
                found.append((place, group.name, other.name, interval))
    adjusted = holm([p for *_, i in found if (p := i.p_value) is not None])
    return [
        Difference(place, group, other, interval, p)
        for (place, group, other, interval), p in zip(found, adjusted, strict=True)
    ]


def lead(section: Section) -> tuple[str, list[Group], list[Difference]]:
    """The longest place where two groups have a loss, those groups by loss, all their differences."""
    for place in reversed(section.places):
        measures = {g.name: section.measures[g.name][place] for g in section.groups}
        ranked = [g for g in section.groups if measures[g.name].loss is not None]
        if len(ranked) > 1:
            ranked.sort(key=lambda g: measures[g.name].loss or 0.0)
            return place, ranked, differences(section, list(combinations(ranked, 2)), [place])
    return "", [], []
