"""Real runs as a check of the statistics: are runs of one scheme told apart that should not be?

python -m benchmarks.replicates 'outputs/rope/check_*' 'outputs/alibi/check_*'     # evaluated run folders
python -m docs.readme                                                              # into docs/methodology.md

Two schemes, an even number of seeds each. Two halves of one scheme's seeds are no two schemes: split
in every way, paired in their order and tested as two schemes are, they should come out different in
5 % of the cases. Then the two schemes themselves, paired by seed. What is unusual: nothing is
simulated and nothing known; the splits of six runs depend on each other, so a rate here is rough, and
benchmarks/simulation.py is where rates are exact.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

from errors import UserError
from evaluation.collect import Group, find_folders, make_groups, obstacles, read_runs
from evaluation.differences import differences
from evaluation.measures import Section, make_sections, sound
from evaluation.protocols import Scores
from evaluation.statistics import Claim, paired_difference

FILE = Path(__file__).parents[1] / "docs/results/replicates.json"
LEVEL = 0.05


def halves(seeds: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Every way to make two halves of the seeds, each once: the first seed is always in the first."""
    first, *rest = sorted(seeds)
    for others in combinations(rest, len(seeds) // 2 - 1):
        yield [first, *others], [seed for seed in rest if seed not in others]


def called_different(runs: dict[int, Scores], claim: Claim) -> list[bool]:
    """For every split of one scheme's runs: whether its halves pass for two schemes."""
    found = []
    for a, b in halves(list(runs)):
        one, two = ({i: runs[seed] for i, seed in enumerate(half)} for half in (a, b))
        interval = paired_difference(one, two, claim)
        if interval is not None and interval.p_value is not None:
            found.append(interval.p_value < LEVEL)
    return found


def same_scheme(groups: Sequence[Group], sections: dict[Claim, Section]) -> list[dict[str, Any]]:
    """By scheme and length: splits, and how many of them each claim calls different."""
    section, rows = sections["this text"], []
    for group in groups:
        for place in section.places:
            runs = sound(section.entries[group.name].get(place, {}))
            if len(runs) == len(group.runs):  # supported and finite in all of them
                found = {claim: called_different(runs, claim) for claim in get_args(Claim)}
                row = {"scheme": group.name, "place": place, "splits": len(found["this text"])}
                rows.append(row | {claim: sum(found[claim]) for claim in get_args(Claim)})
    return rows


def two_schemes(groups: Sequence[Group], sections: dict[Claim, Section]) -> list[dict[str, Any]]:
    """Loss of the second group minus loss of the first, by length; Holm over the lengths."""
    rows = []
    for claim, section in sections.items():
        for d in differences(section, [(groups[1], groups[0])], section.places):
            estimate, low, high = d.interval.estimate, d.interval.low, d.interval.high
            row = {"claim": claim, "place": d.place, "estimate": estimate, "low": low, "high": high}
            rows.append(row | {"p": d.interval.p_value, "p_holm": d.p_holm})
    return rows


def check(groups: Sequence[Group]) -> None:
    names = ", ".join(f"{group.name} ({len(group.runs)} seeds)" for group in groups)
    if len(groups) != 2:
        raise UserError(f"give the runs of two schemes; these are {len(groups)}: {names}")
    if any(len(group.runs) < 4 or len(group.runs) % 2 for group in groups):
        raise UserError(f"each scheme needs an even number of seeds, at least 4: {names}")
    if found := obstacles(groups):
        raise UserError(" ".join(found))


def measure(patterns: Sequence[str]) -> dict[str, Any]:
    """All of it, from evaluated run folders; UserError where they do not fit the question."""
    folders, _ = find_folders(patterns)
    groups, _ = make_groups(read_runs(folders, lambda folder: []))
    check(groups)
    sections: dict[Claim, Section] = {
        claim: make_sections(groups, "same_tokens", claim)[0] for claim in get_args(Claim)
    }
    if sections["this text"].way.protocol != "same_tokens":
        raise UserError("these runs have no same_tokens results: python eval.py run=...")
    return {
        "protocol": "same_tokens",
        "trained_context": groups[0].trained_context,
        "trained_tokens": groups[0].any.tokens_trained,
        "seeds": {group.name: sorted(group.runs) for group in groups},
        "same_scheme": same_scheme(groups, sections),
        "two_schemes": two_schemes(groups, sections),
    }


def main(patterns: Sequence[str], file: Path = FILE) -> None:
    report = measure(patterns)
    file.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    for claim in get_args(Claim):
        wrong, splits = (sum(r[key] for r in report["same_scheme"]) for key in (claim, "splits"))
        print(f"{claim}: {wrong} of {splits} splits of one scheme called different at {LEVEL:.0%}")
    print(f"done: {file}\nnext: python -m docs.readme")


if __name__ == "__main__":
    if "--help" in sys.argv[1:]:
        sys.exit(print(__doc__))
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
