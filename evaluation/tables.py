"""What the tables of a report hold, for people (rounded) and for programs (exact, as CSV)."""

from collections.abc import Sequence
from typing import Any

from evaluation.collect import Group, differing
from evaluation.formats import Cell, Table, number, span, to_csv
from evaluation.measures import Difference, Measure, Section, exp

WORDS = {"unsupported": "unsupported", "not finite": "not finite", "missing": "–"}


def _table(title: str, groups: Sequence[Group], section: Section, note: str, cell: Any) -> Table:
    head = ["scheme", "seeds", *(_place(place) for place in section.places)]
    rows = [
        [Cell(g.name), Cell(str(len(g.runs))), *(cell(g, place) for place in section.places)]
        for g in groups
    ]
    return Table(title, head, rows, note)


def _place(place: str) -> str:
    return f"{int(place):,}" if place.isdigit() else place


def perplexities(groups: Sequence[Group], section: Section) -> Table:
    """Perplexity with its interval; strong: the lowest of a column."""
    best = {
        place: min((m.loss for m in column if m.loss is not None), default=None)
        for place in section.places
        for column in [[section.measures[g.name][place] for g in groups]]
    }

    def cell(group: Group, place: str) -> Cell:
        measure = section.measures[group.name][place]
        if measure.loss is None:
            return Cell(WORDS[measure.state])
        small = span(exp(measure.low), exp(measure.high))
        fewer = "" if measure.seeds == len(group.runs) else f"{measure.seeds} seeds"
        strong = measure.loss == best[place] and len(groups) > 1
        return Cell(number(exp(measure.loss)), " ".join(filter(None, [small, fewer])), strong)

    note = "Bold: the lowest of a column. " if len(groups) > 1 else ""
    return _table("Perplexity", groups, section, note + interval_note(groups), cell)


def interval_note(groups: Sequence[Group]) -> str:
    """What the small print under a number is."""
    counts = {len(group.runs) for group in groups}
    one = "text alone: it belongs to that one trained model and says nothing about its scheme"
    many = "seeds: what training again with other seeds would give on this text"
    if counts == {1}:
        return f"Small: 95% interval over the {one}."
    if 1 in counts:
        return f"Small: 95% interval over the {many}; with 1 seed, over the {one}."
    return f"Small: 95% interval over the {many}. The number is exp of the mean loss over seeds."


def ratios(groups: Sequence[Group], section: Section) -> Table:
    """Perplexity by that at the trained length."""

    def cell(group: Group, place: str) -> Cell:
        measure, ratio = section.measures[group.name][place], section.ratio(group, place)
        if measure.loss is None:
            return Cell(WORDS[measure.state])
        if ratio is None:
            return Cell(WORDS["missing"])
        low, high = section.ratio_interval(group, place)
        return Cell(number(ratio), span(low, high))

    note = (
        "Perplexity divided by that at the trained length, on the same tokens: more than 1.00 is "
        "worse than at the trained length. " + interval_note(groups)
    )
    return _table("Ratio to the trained length", groups, section, note, cell)


def bits(groups: Sequence[Group], section: Section) -> Table:
    """Bits per byte, which do not depend on the tokenizer."""

    def cell(group: Group, place: str) -> Cell:
        measure = section.measures[group.name][place]
        return Cell(f"{measure.bpb:.3f}" if measure.bpb is not None else WORDS[_state(measure)])

    note = "Bits per byte of text, mean over seeds: comparable between tokenizers."
    return _table("Bits per byte", groups, section, note, cell)


def _state(measure: Measure) -> str:
    return "missing" if measure.state == "measured" else measure.state


def paired(section: Section, found: Sequence[Difference], baseline: Group) -> Table | None:
    """Loss minus the baseline's; None where no two seeds are shared."""
    if not found:
        return None
    names, at = dict.fromkeys(d.group for d in found), {(d.group, d.place): d for d in found}

    def cell(name: str, place: str) -> Cell:
        if (name, place) not in at:
            return Cell(WORDS["missing"])
        one = at[name, place]
        small = span(one.interval.low, one.interval.high, lambda value: f"{value:+.3f}")
        return Cell(f"{one.interval.estimate:+.3f}", small, one.clear)

    note = (
        f"Loss minus that of {baseline.name} in nats per token, paired by seed and token: below zero "
        f"is better than {baseline.name}. Small: 95% interval over seeds, on this text. Bold: clear "
        "of zero at the 5% level after Holm's correction for all numbers of this table."
    )
    head = ["scheme", *(_place(place) for place in section.places)]
    rows = [[Cell(name), *(cell(name, place) for place in section.places)] for name in names]
    return Table(f"Difference from {baseline.name}", head, rows, note)


RUN_COLUMNS = {
    "scheme": lambda group, run: group.name,
    "run": lambda group, run: str(run.folder),
    "seed": lambda group, run: run.header["seed"],
    "parameters": lambda group, run: run.header["parameters"],
    "trained context": lambda group, run: run.header["trained_context"],
    "step": lambda group, run: run.header["checkpoint_step"],
    "trained tokens": lambda group, run: run.tokens_trained,
    "data": lambda group, run: f"{run.header['data']}, {run.header['split']}",
    "data hash": lambda group, run: run.header["data_hash"][:12],
    "tokenizer hash": lambda group, run: run.header["tokenizer_hash"][:12],
    "precision": lambda group, run: run.header["precision"],
    "torch": lambda group, run: run.header["torch"],
    "commit": lambda group, run: (run.header["commit"] or "")[:12],
}


def inventory(groups: Sequence[Group]) -> Table:
    """Every run: where it lies, how it was made, and what it was measured on."""

    def cell(value: Any) -> Cell:
        grouped = isinstance(value, int)
        return Cell(f"{value:,}" if grouped else WORDS["missing"] if value is None else str(value))

    rows = [
        [cell(read(group, run)) for read in RUN_COLUMNS.values()]
        for group in groups
        for run in group.runs.values()
    ]
    return Table("Runs", list(RUN_COLUMNS), rows, words=2)


def settings(groups: Sequence[Group]) -> Table:
    """The configuration keys in which the groups differ, seeds and machine aside."""
    configs = [group.any.config for group in groups]
    keys = [key for key in differing(configs) if key != "seed" and not key.startswith("tracker.")]
    missing = WORDS["missing"]
    rows = [[Cell(k), *(Cell(str(c[k]) if k in c else missing) for c in configs)] for k in keys]
    return Table("Settings that differ", ["key", *(g.name for g in groups)], rows)


def measurements_csv(groups: Sequence[Group], section: Section) -> str:
    """Everything measured in a section, exact; empty where there is no number."""
    rows = []
    for group in groups:
        for place in section.places:
            m = section.measures[group.name][place]
            low, high = section.ratio_interval(group, place)
            rows.append(
                {
                    "scheme": group.name,
                    "place": place,
                    "state": m.state,
                    "seeds": m.seeds,
                    "ppl": exp(m.loss),
                    "ppl_low": exp(m.low),
                    "ppl_high": exp(m.high),
                    "loss": m.loss,
                    "loss_low": m.low,
                    "loss_high": m.high,
                    "bpb": m.bpb,
                    "ratio": section.ratio(group, place) if not section.way.length else None,
                    "ratio_low": low,
                    "ratio_high": high,
                    "interval_over": m.over,
                }
            )
    return to_csv(rows)


def inventory_csv(groups: Sequence[Group]) -> str:
    return to_csv(
        [
            {name: read(group, run) for name, read in RUN_COLUMNS.items()}
            for group in groups
            for run in group.runs.values()
        ]
    )
