"""Run folders for the tests of the report: real files, made-up losses."""

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from conftest import ROOT
from omegaconf import OmegaConf

from evaluation import results
from evaluation.protocols import Plan, Scores, non_overlapping, per_position, same_tokens
from evaluation.report import Report, make_report
from training.metrics import read_metrics

DOCUMENTS = np.array([9000, 7000])
LENGTHS = (64, 128, 256, 512)
Loss = Callable[[int, np.ndarray], np.ndarray | float]  # context length, tokens of context -> nats


def write_run(
    folder: Path,
    *,
    loss: Loss,
    seed: int = 1,
    label: str = "rope",
    limit: int | None = None,
    lengths: Sequence[int] = LENGTHS,
    protocols: Sequence[str] = ("same_tokens", "non_overlapping"),
    window: int | None = None,
    words: np.ndarray | None = None,
    evaluated: bool = True,
    header: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """One trained run, evaluated at `lengths`; unsupported beyond `limit`."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = {"context_length": 128, "seed": seed, "train": {"batch_size": 4, "steps": 50}}
    trained |= {"position": {"name": label}}
    merged = OmegaConf.merge(default_config(), trained, config or {})
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(merged, resolve=True))
    lines = [
        {"attempt": 0, "step": s, "tokens": 512 * s, "seconds": s / 10, "val/loss": 5 - s / 25}
        for s in (10, 30, 50)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not evaluated:
        return folder
    head = make_header(label, seed) | (header or {})
    entries = []
    for protocol in protocols:
        for length in lengths:
            plan = make_plan(protocol, length, max(lengths), window)
            supported = limit is None or length <= limit
            scores = score(plan, loss, seed) if supported else None
            entries += results.make_rows(plan, scores, words)
    results.save(folder / "eval", head, entries)
    return folder


@cache
def default_config() -> Any:
    """What `python train.py` alone composes, as far as compare reads it."""
    whole: Any = OmegaConf.load(ROOT / "configs/train.yaml")
    for entry in whole.pop("defaults"):
        for group, option in entry.items() if not isinstance(entry, str) else ():
            if (path := ROOT / f"configs/{group}/{option}.yaml").is_file():
                whole[group] = OmegaConf.load(path)
    del whole["hydra"]
    return whole


def make_header(label: str, seed: int) -> dict[str, Any]:
    return {
        "label": label,
        "position": label,
        "position_settings": {"name": label},
        "trained_position": label,
        "trained_context": 128,
        "checkpoint_step": 50,
        "seed": seed,
        "parameters": 1000,
        "position_parameters": 10,
        "data": "shakespeare",
        "split": "test",
        "precision": "fp32",
        "bos": False,
        "data_hash": "d" * 64,
        "tokenizer_hash": "f" * 64,
        "torch": "2.13.0",
        "commit": None,
    }


def make_plan(protocol: str, length: int, longest: int, window: int | None = None) -> Plan:
    if protocol == "same_tokens":
        plan = same_tokens(DOCUMENTS, length, longest=longest, targets=4096, block=32)
    elif protocol == "non_overlapping":
        plan = non_overlapping(DOCUMENTS, length)
    else:
        plan = per_position(DOCUMENTS, length)
    return Plan(**{**plan.__dict__, "window": window})


def score(plan: Plan, loss: Loss, seed: int) -> Scores:
    """The loss asked for, plus what a token has in itself (the same in all runs) and a seed adds."""
    document, index, context = plan.targets()
    text = np.random.default_rng(0).normal(0, 0.5, (len(DOCUMENTS), DOCUMENTS.max()))
    nats = loss(plan.context_length, context) + text[document, index] + 0.02 * (seed - 2)
    sizes = np.full(len(index), 3)
    return Scores(*(a.astype(t) for a, t in zip(
        (nats, document, index, sizes), (np.float32, np.int32, np.int32, np.int32), strict=True
    )))  # fmt: skip


def flat(n: int, context: np.ndarray) -> float:
    return 3.0


def steep(n: int, context: np.ndarray) -> float:
    """A ratio of 2 nats between 512 tokens and 128."""
    return 3.0 + max(0.0, math.log2(n / 128))


def report(
    *patterns: Path | str,
    protocol: str = "same_tokens",
    baseline: str | None = None,
    claim: str = "this text",
) -> Report:
    return make_report(
        [str(pattern) for pattern in patterns],
        curve=lambda folder: read_metrics(folder / "metrics.jsonl"),
        protocol=protocol,
        baseline=baseline,
        claim=claim,
    )


def write_seeds(
    root: Path, label: str, loss: Loss, seeds: Sequence[int] = (1, 2, 3), **more: Any
) -> None:
    for seed in seeds:
        write_run(
            root / label / f"2026-01-31_12-00-00_{seed}", label=label, loss=loss, seed=seed, **more
        )


def write_sweep(root: Path) -> Path:
    """Three schemes with three seeds: flat, steep, and one that ends at 128 tokens."""
    write_seeds(root, "alibi", flat)
    write_seeds(root, "rope", steep)
    write_seeds(root, "learned", flat, limit=128)
    return root


def tables(made: Report, part: int = 0) -> dict:
    return {table.title: table for table in made.page.parts[part].tables}


def cells(table, scheme: str) -> dict:
    (row,) = [row for row in table.rows if row[0].text == scheme]
    return dict(zip(table.head, row, strict=True))


def loaded(sweep: Path, label: str, protocol: str, length: int) -> dict:
    """Scores by seed, read without the report's own code."""
    found = {}
    for folder in sorted((sweep / label).iterdir()):
        result = results.load(folder / "eval" / f"{label}.json")
        for row, scores in zip(result.rows, result.scores, strict=True):
            if (row["protocol"], row["context_length"]) == (protocol, length):
                found[result.header["seed"]] = scores
    return found
