"""The comparison of evaluated runs: reads them, puts the report together, writes it down.

What it measures is in measures.py, what it shows in tables.py and figures.py, what it says in
wording.py. What is unusual: the same runs give the same bytes, so a report can be kept in git.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from errors import UserError
from evaluation import figures, tables, wording
from evaluation.collect import (
    Group,
    Record,
    differing,
    find_folders,
    make_groups,
    obstacles,
    outgrown,
    read_runs,
)
from evaluation.differences import differences
from evaluation.formats import Table
from evaluation.measures import ORDER, Section, make_sections
from evaluation.page import Figure, Page, Part, render_html, render_markdown
from evaluation.statistics import Claim
from runs.find import override


@dataclass(frozen=True)
class Report:
    """The page, the table for the terminal and the wandb run, and exact numbers by file name."""

    page: Page
    headline: Table
    measurements: dict[str, str]


def make_report(
    patterns: Sequence[str],
    *,
    curve: Callable[[Path], list[Record]],
    protocol: str,
    baseline: str | None,
    claim: str,
) -> Report:
    """Compares the runs that paths and globs name.

    curve: reads the metrics.jsonl of a run folder; protocol: the one whose table stands first;
    baseline: the scheme that others are subtracted from, or None for the first; claim: what
    intervals over seeds speak of. Raises UserError for a path that is no evaluated run, and for an
    unknown protocol, baseline or claim.
    """
    if protocol not in ORDER:
        raise UserError(f"protocol={protocol} is none of {', '.join(ORDER)}")
    claims: dict[str, Claim] = {known: known for known in get_args(Claim)}
    if claim not in claims:
        raise UserError(f"claim={claim} is none of {', '.join(claims)}")
    folders, remarks = find_folders(patterns)
    groups, more = make_groups(read_runs(folders, curve))
    base = _baseline(groups, baseline)
    sections = make_sections(groups, protocol, claims[claim])
    if not sections:
        raise UserError(
            f"runs: {folders[0]} has empty results; type: python eval.py {override('run', folders[0])}"
        )
    warnings = obstacles(groups)
    page = Page(
        title=wording.title(groups),
        facts=wording.facts(sections[0]),
        finding=wording.finding(sections[0], warnings),
        warnings=warnings,
        remarks=remarks + more + outgrown(groups),
        parts=[*(_part(s, base) for s in _shown(sections)), *_appendix(groups)],
    )
    files = {f"{s.way.name}.csv": tables.measurements_csv(s) for s in sections}
    files["runs.csv"] = tables.inventory_csv(groups)
    return Report(page, tables.perplexities(sections[0]), files)


def _baseline(groups: Sequence[Group], name: str | None) -> Group:
    named = {group.name: group for group in groups}
    if name is not None and name not in named:
        raise UserError(f"baseline={name} is none of the schemes: {', '.join(named)}")
    return groups[0] if name is None else named[name]


def write(report: Report, out: Path) -> Path:
    """index.html, report.md, CSV and SVG files in `out`; the same runs give the same bytes."""
    out.mkdir(parents=True, exist_ok=True)
    files = {"index.html": render_html(report.page), "report.md": render_markdown(report.page)}
    files |= report.measurements
    files |= {f"{f.name}.svg": f.svg for part in report.page.parts for f in part.figures}
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    return out / "index.html"


def _shown(sections: Sequence[Section]) -> list[Section]:
    """All but the shorter windows of per_position, which are in the CSV files."""
    longest = max(section.way.length for section in sections)
    return [section for section in sections if section.way.length in (0, longest)]


def _part(section: Section, baseline: Group) -> Part:
    way, drawn, shown = section.way, [], []
    if way.length:
        drawn.append(("position", wording.caption(way), figures.by_position))
    else:
        drawn.append(("perplexity", wording.caption(way), figures.perplexity))
        shown.append(tables.perplexities(section))
    if way.protocol == "same_tokens":
        if any(section.gains.values()):
            drawn.insert(0, ("gain", wording.GAIN, figures.gain))
        pairs = [(group, baseline) for group in section.groups if group is not baseline]
        found = differences(section, pairs, section.places)
        shown += [tables.gains(section), tables.ratios(section)]
        shown.append(tables.paired(section, found, baseline))
    if not way.length:
        shown += [tables.bits(section), tables.words(section)]
    return Part(
        wording.heading(way),
        wording.definition(section),
        [Figure(f"{k}-{way.name}", text, partial(f, section)) for k, text, f in drawn],
        [table for table in shown if table is not None],
    )


def _appendix(groups: Sequence[Group]) -> list[Part]:
    parts = []
    if any(len(points) > 1 for *_, points in figures.curves(groups)):
        text = "Validation loss while training, a line a run. It is measured at the trained length."
        drawn = Figure("training", text, partial(figures.training, groups))
        parts.append(Part("Training", figures=[drawn]))
    configs: list[dict[str, Any]] = [r.config for group in groups for r in group.runs.values()]
    apart = set(differing(configs))
    shared = [f"{key}: {value}" for key, value in configs[0].items() if key not in apart]
    shown = [table for table in (tables.inventory(groups), tables.settings(groups)) if table.rows]
    return [*parts, Part("Runs and settings", tables=shown, listing=shared)]
