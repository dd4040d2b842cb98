"""From run folders to groups of comparable runs, and to what makes them not comparable.

A group is what one curve of the report shows: the runs of one label whose configurations differ in
nothing but the seed. What is unusual: two runs are never averaged because they share a name, so a
`rope` trained at 128 tokens and one trained at 256 are two groups, named by the key they differ in;
and whatever speaks against putting two groups side by side is collected here in plain sentences.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from errors import UserError
from evaluation.protocols import Scores
from evaluation.results import ONE_SET, Results, Row, load
from runs.config import flat, load_config
from runs.find import find_runs, is_pattern, override

Record = dict[str, Any]
# What may differ between two runs of one group: nothing here changes what a number means.
FREE = re.compile(
    r"seed|resume|device|compile|tracker\..*|data\.cache_dir|train\.(log|save)_every|train\.keep"
)

# What is compared: groups may differ in it, and in nothing else where a claim is made. What has a
# warning in words of its own is not said again.
METHOD = re.compile(
    r"position\..*|model\.softmax_scale|train\.position_range"
    r"|context_length|data\..*|tokenizer\..*|train\.(steps|batch_size)"
)


@dataclass(frozen=True)
class Run:
    """One result file of one run folder, with the run's configuration and training curve."""

    folder: Path
    config: dict[str, Any]  # dotted key -> value
    curve: list[Record]  # of metrics.jsonl, by step
    results: Results

    @property
    def header(self) -> dict[str, Any]:
        return self.results.header

    @property
    def tokens_trained(self) -> int | None:
        """Tokens that the evaluated checkpoint had seen."""
        step = self.header["checkpoint_step"]
        for record in self.curve:
            if record["step"] == step:
                return record["tokens"]
        sizes = [self.config.get(key) for key in ("train.batch_size", "context_length")]
        return None if None in sizes else step * sizes[0] * sizes[1]

    @cached_property
    def entries(self) -> list[tuple[Row, Scores]]:
        return list(zip(self.results.rows, self.results.scores, strict=True))


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, by seed; `name` is unique in a report."""

    name: str
    runs: dict[int, Run]

    @property
    def any(self) -> Run:
        return next(iter(self.runs.values()))

    @property
    def trained_context(self) -> int:
        return self.any.header["trained_context"]


def find_folders(patterns: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Folders with results, and remarks on those without. UserError where a name leads nowhere.

    A glob keeps folders with a config.yaml alone and passes over runs without results with a
    remark; a plain path must be a run that was evaluated.
    """
    found: list[Path] = []
    waiting: list[Path] = []
    for pattern in patterns:
        runs = find_runs([pattern], "runs")
        without = [folder for folder in runs if not any(folder.glob("eval/*.json"))]
        if without and not is_pattern(pattern):
            raise UserError(f"runs: {_unevaluated(without[0])}")
        waiting += without
        found += [folder for folder in runs if folder not in without]
    if not found:
        raise UserError(f"runs: {_unevaluated(waiting[0])}" if waiting else "runs: name some runs")
    remarks = [f"Left out: {_unevaluated(folder)}" for folder in dict.fromkeys(waiting)]
    return list(dict.fromkeys(found)), remarks


def _unevaluated(folder: Path) -> str:
    return f"{folder} has no results yet; type: python eval.py {override('run', folder)}"


def read_runs(folders: Sequence[Path], curve: Callable[[Path], list[Record]]) -> list[Run]:
    """Every result file of every folder; `curve` reads a folder's metrics.jsonl."""
    runs = []
    for folder in folders:
        config = dict(flat(asdict(load_config(folder))))
        records = curve(folder)
        for path in sorted((folder / "eval").glob("*.json")):
            runs.append(Run(folder, config, records, load(path)))
    return runs


def make_groups(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Groups in the order in which they first appear, and remarks on runs that were left out."""
    keyed: dict[str, dict[int, Run]] = {}
    remarks = []
    for run in runs:
        fixed = {key: value for key, value in run.config.items() if not FREE.fullmatch(key)}
        identity = [run.header["label"], run.header["position_settings"], fixed]
        seeds = keyed.setdefault(json.dumps(identity, sort_keys=True, default=str), {})
        older = seeds.pop(run.header["seed"], None)
        if older is not None:
            older, run = sorted((older, run), key=lambda r: r.folder.name)
            remarks.append(
                f"Left out: {older.folder} repeats seed {run.header['seed']} of {run.folder}, "
                "and a repetition is no further seed"
            )
        seeds[run.header["seed"]] = run
    members = [dict(sorted(seeds.items())) for seeds in keyed.values()]
    return [Group(n, m) for n, m in zip(_names(members), members, strict=True)], remarks


def outgrown(groups: Sequence[Group]) -> list[str]:
    """Remarks on runs that were trained further since their last checkpoint was measured."""
    remarks = []
    for run in (run for group in groups for run in group.runs.values()):
        names = [path.name[5:] for path in (run.folder / "checkpoints").glob("step-*")]
        newest = max((int(name) for name in names if name.isdecimal()), default=0)
        step = run.header["checkpoint_step"]
        if newest > step and "checkpoint-" not in run.header["label"]:
            remarks.append(
                f"{run.folder} was measured at step {step:,} and is at {newest:,} now; type: "
                f"python eval.py {override('run', run.folder)}"
            )
    return list(dict.fromkeys(remarks))


def _names(members: list[dict[int, Run]]) -> list[str]:
    """The label; of groups with one label, also the keys in which they differ."""
    firsts = [next(iter(seeds.values())) for seeds in members]
    names = []
    for run in firsts:
        same = [other for other in firsts if other.header["label"] == run.header["label"]]
        keys = [key for key in differing([r.config for r in same]) if not FREE.fullmatch(key)]
        extra = ", ".join(f"{key}={run.config.get(key)}" for key in keys)
        names.append(run.header["label"] + (f" ({extra})" if extra else ""))
    return [f"{n} #{names[:i].count(n) + 1}" if n in names[:i] else n for i, n in enumerate(names)]


def differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of the configurations."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [k for k in keys if any(c.get(k) != configs[0].get(k) for c in configs)]


def obstacles(groups: Sequence[Group]) -> list[str]:
    """Why these groups must not be compared, a sentence each; empty where nothing speaks against it."""
    read = {
        "were scored on different text": lambda run: run.header["data_hash"],
        "use different tokenizers, so a token is not the same thing (bits per byte still compare)": (
            lambda run: run.header["tokenizer_hash"]
        ),
        "were trained at different context lengths": lambda run: run.header["trained_context"],
        "were trained on different numbers of tokens": lambda run: run.tokens_trained,
        "were evaluated in different precision": lambda run: run.header["precision"],
        "were evaluated with and without BOS": lambda run: run.header["bos"],
    }
    found = []
    for what, value_of in read.items():
        names: dict[Any, dict[str, None]] = {}
        for group in groups:
            for run in group.runs.values():
                names.setdefault(value_of(run), {})[group.name] = None
        if len(names) > 1:
            found.append(f"These runs {what}: {_listed(names)}.")
    others = [
        {k: v for k, v in run.config.items() if not FREE.fullmatch(k) and not METHOD.fullmatch(k)}
        for group in groups
        for run in group.runs.values()
    ]
    if keys := differing(others):
        found.append(f"These runs were trained with different {', '.join(keys)}.")
    return found + _different_targets(groups)


def _listed(names: dict[Any, dict[str, None]]) -> str:
    return "; ".join(f"{_shown(value)} ({', '.join(who)})" for value, who in names.items())


def _shown(value: Any) -> str:
    if type(value) is int:
        return f"{value:,}"
    return "unknown" if value is None else str(value)[:12]


def _different_targets(groups: Sequence[Group]) -> list[str]:
    sets: dict[tuple, dict[str, dict[str, None]]] = {}
    for group in groups:
        for run in group.runs.values():
            for row in run.results.rows:
                length = None if row["protocol"] == ONE_SET else row["context_length"]
                names = sets.setdefault((row["protocol"], row["bin"], length), {})
                names.setdefault(row["target_set"], {})[group.name] = None
    wrong = dict.fromkeys(place[0] for place, names in sets.items() if len(names) > 1)
    return [
        f"These runs did not score the same tokens under {protocol}: evaluate them again with equal "
        "lengths, eval.targets and eval.block."
        for protocol in wrong
    ]
