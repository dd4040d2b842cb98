"""Each benchmark runs at a toy size and writes what docs/performance.md reads."""

import json
import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from conftest import ROOT, SCHEMES

from benchmarks import (
    evaluation,
    gpu,
    options,
    peers,
    profile_step,
    quality_per_minute,
    speed,
    timing,
)
from data.files import Files
from docs import performance

NANOGPT = """
import torch, torch.nn as nn, torch.nn.functional as F
from dataclasses import dataclass

@dataclass
class GPTConfig:
    block_size: int; vocab_size: int; n_layer: int; n_head: int; n_embd: int; dropout: float; bias: bool

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size)
    def forward(self, idx, targets=None):
        logits = self.head(self.wte(idx))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=betas)
"""
# Makes every Python that is started with it on its path a machine without these packages.
WITHOUT = """
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
ABSENT = {
    "hydra", "omegaconf", "yaml", "datasets", "tokenizers", "transformers", "x_transformers", "wandb", "rich",
    "matplotlib", "scipy", "hypothesis", "pytest_timeout",
}  # fmt: skip


@pytest.fixture
def checkout(tmp_path):
    """A folder that looks like nanoGPT's from outside."""
    folder = tmp_path / "nanoGPT"
    folder.mkdir()
    (folder / "model.py").write_text(NANOGPT)
    return str(folder)


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """The text of a section of docs/performance.md, from results in tmp_path."""
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    return lambda name: performance.SECTIONS[name]()


@pytest.fixture(autouse=True)
def low_ceiling(monkeypatch):
    monkeypatch.setattr(timing, "SIZE", 64)


def test_speed(tmp_path, checkout, shown, monkeypatch):
    monkeypatch.setattr(timing, "quiet", lambda *_: None)  # every sample counts
    words = ["sizes=tiny", "lengths=16", "scheme_size=tiny", "scheme_lengths=16", "tokens=32"]
    words += ["rounds=1", "patience=0", f"nanogpt={checkout}", f"out={tmp_path}"]
    speed.measure(options.parse(speed.Settings, words))
    report, other = (
        json.loads((tmp_path / f"speed-{part}.json").read_text()) for part in ("peers", "schemes")
    )
    (against,), (schemes,) = report["tables"], other["tables"]
    rows = {row["case"]: row for row in against["rows"]}
    theirs = {"transformers Llama", "nanoGPT"} | {name for name in rows if "x-trans" in name}
    assert len(theirs) == 5 and rows.keys() == theirs | {"rope", "learned", "alibi"}
    assert set(report["absent"]) == {"litgpt", "lingua"}
    for name, row in rows.items():
        assert row["loss"] == pytest.approx(math.log(64), rel=0.1), name
        tokens = 32 / row["seconds"]
        assert row["tokens_per_second"] == pytest.approx(tokens)
        if name in theirs:
            ours = rows[peers.PEERS[name].like]
            assert row["ours"]["case"] == peers.PEERS[name].like
            found = row["ours"]["ratio"] * row["seconds"]  # one round: one sample of theirs
            assert ours["fastest"] <= found * 1.0001 and found <= ours["slowest"] * 1.0001
    none, *others = schemes["rows"]
    assert none["case"] == "none" and "of_none" not in none
    for row in others:
        found = row["seconds"] / row["of_none"]["ratio"]
        assert none["fastest"] <= found * 1.0001 and found <= none["slowest"] * 1.0001
    assert {row["case"] for row in schemes["rows"]} == set(SCHEMES)
    assert "nanoGPT | 0." in shown("peers") and "| t5 |" in shown("schemes")
    assert str(tmp_path) not in json.dumps([report, other])  # results name no folder of the machine


def test_speed_compiled(tmp_path, shown, monkeypatch):
    """How it is told; that compiled models compute the same is tested with the real compiler elsewhere."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(timing, "quiet", lambda *_: None)  # every sample counts
    words = ["parts=schemes", "schemes=none", "scheme_size=tiny", "scheme_lengths=16", "tokens=32"]
    words += ["rounds=1", "patience=0", "compile=true", f"out={tmp_path}"]
    speed.measure(options.parse(speed.Settings, words))
    report = json.loads((tmp_path / "speed-schemes-compiled.json").read_text())
    plain, compiled = report["tables"][0]["rows"]
    found = compiled["of_plain"]["ratio"]
    assert compiled["fastest"] / plain["slowest"] <= found * 1.0001
    assert found <= compiled["slowest"] / plain["fastest"] * 1.0001
    assert not plain["compiled"] and compiled["compiled"]
    assert plain["loss"] == pytest.approx(compiled["loss"], rel=1e-2)
    (tmp_path / "speed-peers-compiled.json").write_text(json.dumps(report))
    line = next(x for x in shown("compiled").splitlines() if ", compiled |" in x)
    assert f"| {found:.2f} (" in line and (" s, from" in line or " s, never" in line)


def test_profile(tmp_path, shown):
    words = ["size=tiny", "schemes=none,fire", "length=16", "tokens=32", "steps=2"]
    out = tmp_path / "profile.json"
    profile_step.measure(options.parse(profile_step.Settings, [*words, f"out={out}"]))
    assert str(tmp_path) not in out.read_text()
    none, fire = json.loads(out.read_text())["schemes"]
    assert 0 < sum(none["operators"].values()) < 5 * none["step_seconds"]
    rows = shown("profile").splitlines()
    (mm,) = (row for row in rows if row.startswith("| `aten::mm` |"))
    assert f"{fire['operators']['aten::mm']:.2f}" in mm and "-" not in mm


def test_evaluation(tmp_path, shown, monkeypatch):
    asked = []

    def here(name, length, kind, settings):
        asked.append((name, length, kind))
        return evaluation.peak(settings.size, name, length, kind)

    real = evaluation.in_subprocess
    monkeypatch.setattr(evaluation, "in_subprocess", here)
    out = tmp_path / "evaluation-speed.json"
    words = ["size=tiny", "schemes=alibi", "lengths=64,128", "rounds=1", "patience=0", f"out={out}"]
    settings = options.parse(evaluation.Settings, words)
    evaluation.measure(settings)
    report = json.loads(out.read_text())
    assert str(tmp_path) not in json.dumps(report)
    rows = report["rows"]
    assert [(r["scheme"], r["length"], r["scored"]) for r in rows] == asked and len(asked) == 8
    assert all(row["of_none"]["ratio"] == 1 for row in rows if row["scheme"] == "none")
    (alibi,) = (g for g in report["growth"] if (g["scheme"], g["scored"]) == ("alibi", "all"))
    short, long = (r for r in rows if (r["scheme"], r["scored"]) == ("alibi", "all"))
    assert alibi["seconds"] == pytest.approx(long["seconds"] / short["seconds"])
    assert "| alibi | 0." in shown("evaluation")
    if sys.platform == "linux":
        assert real("none", 128, "all", settings) >= 0


def test_peak_memory_is_that_of_the_reading(monkeypatch):
    if sys.platform != "linux":
        pytest.skip("asks Linux")
    reading = evaluation.reading

    def greedy(size, name, length, kind):
        read = reading(size, name, 64, kind)
        return read if length == 64 else lambda: torch.ones(2**25).sum()

    monkeypatch.setattr(evaluation, "reading", greedy)
    assert 120 < evaluation.peak("tiny", "none", 128, "all") < 160  # 128 MiB


def test_quality(tmp_path, checkout, shown, monkeypatch):
    monkeypatch.setattr(quality_per_minute, "TRIAL", 6)
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text(f"{split} of some text to learn by heart. " * 600)
    corpus = Files(
        train=[f"{tmp_path}/train.txt"], validation=[f"{tmp_path}/validation.txt"], test=None,
        text_field="text", held_out=0.1, split_seed=0,
        document_mask=False, cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    words = [f"nanogpt={checkout}", "seeds=1", "steps=8", "chunks=2", "schemes=rope", "patience=0"]
    words += ["eval_tokens=2000"]
    settings = options.parse(quality_per_minute.Settings, [*words, f"out={tmp_path}/quality.json"])
    report = quality_per_minute.measure(settings, corpus)
    assert str(tmp_path) not in json.dumps(report)
    (seed,) = report["seeds"]
    assert seed["curves"].keys() == {"nanoGPT", "rope", "rope, equal time"}
    assert [p["tokens"] for p in seed["curves"]["rope"]] == [4 * 12 * 64, 8 * 12 * 64]
    for curve in seed["curves"].values():
        assert 0 < curve[0]["seconds"] < curve[1]["seconds"]
    assert seed["curves"]["rope"][-1]["loss"] < math.log(257)
    fitting = max(2, round(8 * seed["pace"]["nanoGPT"] / seed["pace"]["rope"]))
    assert seed["curves"]["rope, equal time"][-1]["steps"] == fitting
    assert "ours, rope, equal time" in shown("quality")


def test_nanogpts_rate_ends_where_it_says():
    rate = quality_per_minute.nanogpt_rate
    assert rate(0, 2000) == pytest.approx(1e-3 / 101) and rate(100, 2000) == pytest.approx(1e-3)
    assert rate(2000, 2000) == pytest.approx(1e-4)


def test_gpu_on_a_bare_machine(tmp_path, shown):
    """All parts, at toy sizes on the CPU, without what a GPU machine may lack; its tests are collected too."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.replace("{names}", repr(ABSENT)))
    words = ["device=cpu", "tiny=true", "minutes=5", f"out={tmp_path}/gpu.jsonl"]
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert {row["part"] for row in rows} == {*gpu.PARTS, "machine", "end"}
    assert not [row for row in rows if "error" in row]
    (tests,) = (row for row in rows if row["part"] == "tests")
    assert tests["exit"] == 0 and "skipped" in tests["result"], tests
    errors = [row["relative_error"] for row in rows if "relative_error" in row]
    assert errors and max(errors) < 1e-2
    assert {r["scheme"] for r in rows if r["part"] == "schemes"} == set(SCHEMES)
    rows[0] |= {"gpu": "none", "cuda": "none"}
    (tmp_path / "gpu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "| pytest | 0 |" in shown("gpu") and "| fire |" in shown("gpu")
