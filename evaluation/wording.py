"""Every sentence of a report: titles, how a protocol is defined, and what may be concluded.

What is unusual: conclusions are refused. Runs that are not comparable as they stand are compared in
no sentence, one seed ranks trained models and never schemes, and "ahead" is said only of a scheme
whose difference from every other one is clear after correction for all of them.
"""

from collections.abc import Sequence

from evaluation.collect import Group
from evaluation.differences import lead
from evaluation.formats import number
from evaluation.measures import Line, Section, Way, exp

TITLES = {
    "same_tokens": "Same tokens, more context",
    "non_overlapping": "Non-overlapping windows",
    "sliding": "Sliding windows",
    "per_position": "Loss by position",
}
DEFINITIONS = {
    "same_tokens": (
        "Protocol same_tokens: the same {tokens} tokens are scored at every context length, in blocks "
        "that each end a window of N tokens of their own document. Only the text in front of them "
        "changes, so a difference along a row is an effect of context length and of nothing else."
    ),
    "non_overlapping": (
        "Protocol non_overlapping: each document is cut into consecutive windows of N tokens, and "
        "every token but a document's first is scored once, with what precedes it in its window. This "
        "is what papers mostly print; longer windows look better in it merely because fewer tokens "
        "stand at the beginning of one."
    ),
    "sliding": (
        "Protocol sliding: windows of N tokens advance by {stride}, and each scores only tokens that "
        "the one before it did not, so that every token but a document's first is scored once."
    ),
    "per_position": (
        "Protocol per_position: each document is cut into consecutive full windows of {length} tokens, "
        "what remains at its end is left out, and the loss is shown by how many tokens precede a token "
        "in its window."
    ),
}
WINDOW = (
    "Lines with a window are the second baseline, beside the context cropped to the trained length: the "
    "input is as long, but attention sees only so many last tokens. It is the cheap remedy that any "
    "scheme which claims to use long inputs has to beat."
)
BOS = "Every window begins with the end-of-text token, which takes the place of its first token."
GAIN = (
    "Context gain: loss with the context cropped to the trained length minus loss with the longer "
    "context, on the same tokens. Above zero the longer context helps; below zero the model reads "
    "worse than if it had been given less. Where losses are large the axis is logarithmic beyond 0.1."
)


def title(groups: Sequence[Group]) -> str:
    at = " or ".join(f"{n:,}" for n in sorted({group.trained_context for group in groups}))
    if len(groups) == 1:
        return f"How far {groups[0].name} reaches beyond the {at} tokens it was trained at"
    return f"How far {len(groups)} schemes reach beyond the {at} tokens they were trained at"


def facts(section: Section) -> list[str]:
    groups = section.groups
    runs = [run for group in groups for run in group.runs.values()]
    seeds = sorted({len(group.runs) for group in groups})
    read = sorted({f"{run.header['data']}, {run.header['split']} split" for run in runs})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    each = " of each scheme" if len(groups) > 1 else ""
    return [
        f"{len(runs)} {_plural('run', len(runs))}",
        f"{count} {_plural('seed', seeds[-1])}{each}",
        *read,
        *([f"claims about {section.claim}"] if seeds[-1] > 1 else []),
    ]


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def finding(section: Section, warnings: Sequence[str]) -> str:
    """The headline in words: what was measured at the longest length, and whether it is a claim."""
    place, ranked, found = lead(section)
    if not ranked:
        return _alone(section)
    best, second = ranked[:2]
    losses = [section.measures[group.name][place].loss for group in (best, second)]
    text = (
        f"{_where(best, place, section)}, the lowest perplexity is {number(exp(losses[0]))} "
        f"({best.name}), the next {number(exp(losses[1]))} ({second.name})."
    )
    against = {d.other: d for d in found if d.group == best.name}
    known = [d.interval.detectable for d in against.values() if d.interval.detectable is not None]
    power = (
        f" Differences from {max(known):.3f} nats would be found in 80% of such comparisons."
        if known
        else ""
    )
    if warnings:
        return text + " The runs are not comparable as they stand, so this compares no schemes."
    if len(against) < len(ranked) - 1:
        few = [g.name for g in ranked if len(g.runs) < 2]
        if not few and section.claim == "text like it":
            return text + " The text is a single document, which says nothing about text like it."
        who = f" of {', '.join(few)}" if few else " with shared seeds"
        return text + (
            f" There is one run{who}: this ranks trained models, not schemes. Two or more seeds of "
            "each are needed for that."
        )
    unclear = [name for name, d in against.items() if not d.clear]
    if unclear:
        return (
            text
            + f" Over the seeds that is not clearly better than {' or '.join(unclear)}."
            + power
        )
    seeds = min(len(best.runs.keys() & g.runs.keys()) for g in ranked[1:])
    return text + (
        f" {best.name} is ahead of every other scheme here: each difference, paired by seed and token "
        f"over {seeds} seeds, is clear at the 5% level (Holm), on {section.claim}.{power}"
    )


def _where(group: Group, place: str, section: Section) -> str:
    if section.way.length:
        return f"With {place} tokens of context"
    times = int(place) / group.trained_context
    return f"With {int(place):,} tokens of context, {times:g} times the length trained at"


def _alone(section: Section) -> str:
    group = section.groups[0]
    known = [p for p in section.places if section.measures[group.name][p].loss is not None]
    if not known:
        return "No perplexity could be measured."
    value = number(exp(section.measures[group.name][known[-1]].loss))
    ratio = section.ratio(Line(group), known[-1])
    beside = f", {number(ratio)} times that at the trained length" if ratio and ratio != 1 else ""
    return f"{_where(group, known[-1], section)}, {group.name} has a perplexity of {value}{beside}."


def heading(way: Way) -> str:
    parts = [
        TITLES[way.protocol],
        f"stride {way.stride}" if way.stride else "",
        f"windows of {way.length:,}" if way.length else "",
    ]
    return ", ".join(filter(None, parts))


def definition(section: Section) -> str:
    way = section.way
    rows = [
        row for places in section.entries.values() for e in places.values() for row, _ in e.values()
    ]
    tokens = max(row["tokens_scored"] for row in rows)
    stride = f"{way.stride:,} tokens" if way.stride else "half of N"
    text = DEFINITIONS[way.protocol].format(
        tokens=f"{tokens:,}", stride=stride, length=f"{way.length:,}"
    )
    more = [
        BOS if any(run.header["bos"] for g in section.groups for run in g.runs.values()) else "",
        WINDOW if any(line.window for line in section.lines) else "",
    ]
    return " ".join(filter(None, [text, *more]))


def caption(way: Way) -> str:
    if way.length:
        return "Loss by tokens of context, in bins that double. Bars: 95% intervals."
    return "Perplexity against context length; both axes are logarithmic. Bars: 95% intervals."
