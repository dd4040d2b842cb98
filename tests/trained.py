"""What tests ask of run folders."""

import dataclasses
import json
from pathlib import Path

import torch
from conftest import SMALL, command
from safetensors.torch import load_file

from training import checkpoint
from training.metrics import read_metrics

# for number formats that a CPU is slow in
FEW_TOKENS = ["context_length=16", "train.batch_size=2", "train.eval_tokens=64"]


def records(folder: Path) -> list[dict]:
    def refuse(word):
        raise AssertionError(f"{word} is not strict JSON")

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def trained_weights(folder: Path, which: str = "last") -> dict[str, torch.Tensor]:
    return load_file(checkpoint.find(folder, which) / "model.safetensors")


def train(folder: Path, monkeypatch, *overrides: str) -> int:
    monkeypatch.chdir(folder)
    return command("train", *SMALL, *overrides)


def same_bits(a: Path, b: Path) -> None:
    """The newest checkpoints of two runs hold the same weights and, but for clocks and attempts, the same state."""
    paths = [checkpoint.find(folder, "last") for folder in (a, b)]
    assert paths[0].name == paths[1].name
    one, two = (load_file(path / "model.safetensors") for path in paths)
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
    (adam, scaler, state), (adam2, scaler2, state2) = map(checkpoint.load_state, paths)
    for mine, other in zip(adam["state"].values(), adam2["state"].values(), strict=True):
        assert all(torch.equal(mine[key], other[key]) for key in mine)
    assert adam["param_groups"] == adam2["param_groups"] and scaler == scaler2
    clocks = {"seconds": 0.0, "attempt": 0, "tracker_id": None}
    assert dataclasses.replace(state, **clocks) == dataclasses.replace(state2, **clocks)


def same_metrics(a: Path, b: Path) -> None:
    """Step by step the same numbers, whatever the attempt, but for what a clock says."""
    timed = {"seconds", "attempt", "train/tokens_per_second", "train/mfu"}
    one, two = (
        [{k: v for k, v in r.items() if k not in timed} for r in read_metrics(f / "metrics.jsonl")]
        for f in (a, b)
    )
    assert one == two
