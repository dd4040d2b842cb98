"""What the tables of a report hold, for people (rounded) and for programs (exact, as CSV)."""

from collections.abc import Callable, Sequence
from typing import Any

from evaluation.collect import Group, differing
from evaluation.differences import Difference
from evaluation.formats import Cell, Table, number, span, to_csv
from evaluation.measures import Line, Measure, Section, exp
from storage import digest

WORDS = {"unsupported": "unsupported", "not finite": "not finite", "missing": "–"}


def _table(title: str, section: Section, note: str, cell: Callable[[Line, str], Cell]) -> Table:
    head = ["scheme", "seeds", *(_place(place) for place in section.places)]
    rows = [
        [Cell(line.name), Cell(str(len(line.group.runs))), *(cell(line, p) for p in section.places)]
        for line in section.lines
    ]
    return Table(title, head, rows, note)


def _place(place: str) -> str:
    return f"{int(place):,}" if place.isdigit() else place


def perplexities(section: Section) -> Table:
    """Perplexity with its interval; strong: the lowest of a column."""
    best = {
        place: min((m.loss for m in column if m.loss is not None), default=None)
        for place in section.places
        for column in [[section.measures[line.name][place] for line in section.lines]]
    }

    def cell(line: Line, place: str) -> Cell:
        measure = section.measures[line.name][place]
        if measure.loss is None:
            return Cell(WORDS[measure.state])
        small = span(exp(measure.low), exp(measure.high))
        fewer = "" if measure.seeds == len(line.group.runs) else f"{measure.seeds} seeds"
        strong = measure.loss == best[place] and len(section.lines) > 1
        return Cell(number(exp(measure.loss)), " ".join(filter(None, [small, fewer])), strong)

    note = [
        "Bold: the lowest of a column." if len(section.lines) > 1 else "",
        interval_note(section),
        "The number is exp of the mean loss over seeds."
        if any(len(group.runs) > 1 for group in section.groups)
        else "",
    ]
    return _table("Perplexity", section, " ".join(filter(None, note)), cell)


def interval_note(section: Section) -> str:
    """What the small print under a number is."""
    counts = {len(group.runs) for group in section.groups}
    one = "text alone: it belongs to that one trained model and says nothing about its scheme"
    many = f"seeds: what training again with other seeds would give on {section.claim}"
    if counts == {1}:
        return f"Small: 95% interval over the {one}."
    if 1 in counts:
        return f"Small: 95% interval over the {many}; with 1 seed, over the {one}."
    return f"Small: 95% interval over the {many}."


def gains(section: Section) -> Table:
    """Loss with the context cropped to the trained length minus loss with the longer context."""

    def cell(line: Line, place: str) -> Cell:
        if gain := section.gains[line.name].get(place):
            small = span(gain.low, gain.high, fine)
            return Cell(fine(gain.estimate), small, gain.low > 0)
        trained = place == str(line.group.trained_context) and not line.window
        return Cell("0" if trained else WORDS[_state(section.measures[line.name][place])])

    note = (
        "Loss with the context cropped to the trained length minus loss with this context, in nats per "
        "token, on the same tokens: above zero the longer context helps. Bold: the interval lies above "
        "zero. " + interval_note(section)
    )
    return _table("Context gain", section, note, cell)


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def fine(value: float | None) -> str:
    """Gains are small where they are above zero."""
    return "" if value is None else f"{value:+.4f}"


def ratios(section: Section) -> Table:
    """Perplexity by that at the trained length."""

    def cell(line: Line, place: str) -> Cell:
        measure, ratio = section.measures[line.name][place], section.ratio(line, place)
        if measure.loss is None:
            return Cell(WORDS[measure.state])
        if ratio is None:
            return Cell(WORDS["missing"])
        low, high = section.ratio_interval(line, place)
        return Cell(number(ratio), span(low, high))

    note = (
        "Perplexity divided by that at the trained length, on the same tokens: more than 1.00 is "
        "worse than at the trained length. " + interval_note(section)
    )
    return _table("Ratio to the trained length", section, note, cell)


def bits(section: Section) -> Table:
    """Bits per byte, which do not depend on the tokenizer."""
    note = "Bits per byte of text, mean over seeds: comparable between tokenizers."
    return _unit("Bits per byte", section, note, lambda m: m.bpb, "{:.3f}".format)


def words(section: Section) -> Table | None:
    """Perplexity a word, where the corpus has words and whole documents are scored."""
    if all(m.word_loss is None for places in section.measures.values() for m in places.values()):
        return None
    note = (
        "exp of nats per whitespace-separated word of the scored documents, whose first token is not "
        "scored. Comparable between tokenizers."
    )
    return _unit("Word-level perplexity", section, note, lambda m: exp(m.word_loss), number)


def _unit(
    title: str,
    section: Section,
    note: str,
    read: Callable[[Measure], float | None],
    form: Callable[[float], str],
) -> Table:
    def cell(line: Line, place: str) -> Cell:
        measure = section.measures[line.name][place]
        value = read(measure)
        return Cell(form(value) if value is not None else WORDS[_state(measure)])

    return _table(title, section, note, cell)


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
        small = span(one.interval.low, one.interval.high, signed)
        if one.interval.detectable is not None:
            small += f", found from {one.interval.detectable:.4f}"
        return Cell(signed(one.interval.estimate), small, one.clear)

    note = (
        f"Loss minus that of {baseline.name} in nats per token, paired by seed and token: below zero "
        f"is better than {baseline.name}. Small: 95% interval over seeds, on {section.claim}. Found "
        "from: the smallest difference that such a comparison finds in 80% of the cases. Bold: "
        "clear of zero at the 5% level after Holm's correction for all numbers of this table."
    )
    head = ["scheme", *(_place(place) for place in section.places)]
    rows = [[Cell(name), *(cell(name, place) for place in section.places)] for name in names]
    return Table(f"Difference from {baseline.name}", head, rows, note)


RUN_COLUMNS = {
    "scheme": lambda group, run: group.name,
    "run": lambda group, run: str(run.folder),
    "seed": lambda group, run: run.header["seed"],
    "parameters": lambda group, run: run.header["parameters"],
    "of the scheme": lambda group, run: run.header["position_parameters"],
    "trained context": lambda group, run: run.header["trained_context"],
    "step": lambda group, run: run.header["checkpoint_step"],
    "trained tokens": lambda group, run: run.tokens_trained,
    "data": lambda group, run: f"{run.header['data']}, {run.header['split']}",
    "config hash": lambda group, run: digest(run.folder / "config.yaml")[:12],
    "data hash": lambda group, run: run.header["data_hash"][:12],
    "tokenizer hash": lambda group, run: run.header["tokenizer_hash"][:12],
    "precision": lambda group, run: run.header["precision"],
    "BOS": lambda group, run: "yes" if run.header["bos"] else "no",
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


def measurements_csv(section: Section) -> str:
    """Everything measured in a section, exact; empty where there is no number."""
    places = [(line, place) for line in section.lines for place in section.places]
    return to_csv([_exact(section, line, place) for line, place in places])


def _exact(section: Section, line: Line, place: str) -> dict[str, Any]:
    m, gain = section.measures[line.name][place], section.gains[line.name].get(place)
    low, high = section.ratio_interval(line, place)
    rows = [row for row, _ in section.entries[line.name].get(place, {}).values()]
    sets = {row["target_set"] for row in rows}
    return {
        "scheme": line.group.name,
        "window": line.window or None,
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
        "word_ppl": exp(m.word_loss),
        "gain": gain and gain.estimate,
        "gain_low": gain and gain.low,
        "gain_high": gain and gain.high,
        "ratio": section.ratio(line, place) if not section.way.length else None,
        "ratio_low": low,
        "ratio_high": high,
        "interval_over": m.over,
        "target_set": " ".join(sorted(sets)),
    }


def inventory_csv(groups: Sequence[Group]) -> str:
    return to_csv(
        [
            {name: read(group, run) for name, read in RUN_COLUMNS.items()}
            for group in groups
            for run in group.runs.values()
        ]
    )
