"""Run folders from somebody else: what they hold never reaches beyond them, and a refusal is one line that names it."""

import dataclasses
import json
import math
import os
import shlex
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import SMALL, command
from safetensors.torch import load_file, save_file

from errors import UserError
from eval import own_tracker
from runs.config import LARGEST, load_config
from runs.find import find_run, find_runs, override
from storage import digest
from training import checkpoint
from training.metrics import read_metrics

QUICK = ["tracker=none", "device=cpu", "lengths=[32]", "protocols=[same_tokens]"]
COMMANDS = {
    "train": lambda folder: [f"resume={folder}", "train.steps=21"],
    "eval": lambda folder: [f"run={folder}", "eval.targets=32", *QUICK],
    "generate": lambda folder: [f"run={folder}", "tokens=2", "device=cpu"],
    "compare": lambda folder: [f"runs=[{folder}]", f"out={folder.parent}/report"],
}


@pytest.fixture(scope="module")
def finished(smoke, tmp_path_factory) -> Path:
    """A run with results."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    shutil.copytree(smoke("rope"), folder)
    assert command("eval", *COMMANDS["eval"](folder)) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refused(name: str, folder: Path, capfd) -> str:
    capfd.readouterr()
    assert command(name, *COMMANDS[name](folder)) == 1
    lines = capfd.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ") and "Traceback" not in "".join(lines)
    return lines[-1]


def state_of(folder: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


# Links


def entries(folder: Path) -> Iterator[Path]:
    """All that a run folder has or may have."""
    yield from (p.relative_to(folder) for p in sorted(folder.rglob("*")))
    yield from map(Path, (".lock", "wandb", "notes", "checkpoints/.git", "checkpoints/step-000099"))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_follows_a_link_out_of_a_run(run, name, tmp_path, capfd):
    elsewhere = tmp_path / "elsewhere"
    for entry in sorted(set(entries(run))):
        path = run / entry
        if path.exists():
            shutil.move(path, elsewhere)
        else:
            elsewhere.mkdir()
            (elsewhere / ".env").write_text("precious")
        before = state_of(elsewhere)
        path.symlink_to(elsewhere)
        if entry == Path("config.yaml") or (entry == Path("eval") and name == "compare"):
            assert str(run) in refused(name, run, capfd)
        else:
            assert f"{path} is a link" in refused(name, run, capfd)
        assert state_of(elsewhere) == before
        path.unlink()
        shutil.move(elsewhere, path)
        if entry.name in ("notes", "step-000099", ".git", "wandb", ".lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("kind", ["dangling", "loop", "pipe"])
def test_odd_entries_are_refused_and_never_opened(run, kind, capfd):
    path = run / "metrics.jsonl"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("metrics.jsonl" if kind == "loop" else "nowhere")
    for name in COMMANDS:
        assert str(path) in refused(name, run, capfd)


def test_a_run_reached_through_a_link_is_a_run(run, tmp_path):
    (tmp_path / "best").symlink_to(run)
    assert find_run(str(tmp_path / "best")) == tmp_path / "best"


def test_a_new_run_does_not_save_through_a_link(tmp_path, corpus, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    disk = tmp_path / "disk"
    (disk / ".ssh").mkdir(parents=True)
    (disk / ".env").write_text("precious")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/checkpoints").symlink_to(disk)
    assert command("train", *SMALL, *corpus, "hydra.run.dir=new") == 1
    assert "new/checkpoints is a link" in capfd.readouterr().err
    assert state_of(disk) == {str(disk / ".env"): b"precious", str(disk / ".ssh"): None}


def test_saving_deletes_nothing_that_is_not_its_own(run):
    root = run / "checkpoints"
    names = [".gitignore", ".env", ".draft", ".old-notes", ".draft-step-1x", ".last.draft", "notes"]
    for name in names:
        (root / name).write_text("mine")
    (root / ".git").mkdir()
    (root / ".git/HEAD").write_text("mine")
    (root / "step-notes").mkdir()
    assert command("train", f"resume={run}", "train.steps=24", "train.save_every=1") in (0, 1)
    assert command("train", f"resume={run}", "train.steps=24") == 0
    assert all((root / name).read_text() == "mine" for name in [*names, ".git/HEAD"])
    assert (root / "step-notes").is_dir()


@pytest.mark.parametrize("entry", ["metrics.jsonl", "tokenizer.json", ".lock", "checkpoints/last"])
def test_a_folder_where_a_file_belongs_is_one_line(run, entry, capfd):
    path = run / entry
    if path.exists():
        path.unlink()
    path.mkdir()
    if entry in ("metrics.jsonl", ".lock", "checkpoints/last"):
        assert str(path) in refused("train", run, capfd)


# The configuration


def test_no_environment_variable_reaches_a_report(run, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_API_KEY", "precious")
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["tracker"] = {"name": "none", "group": "${oc.env:WANDB_API_KEY}"}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    assert "every value written out" in refused("compare", run, capfd)
    assert not (run.parent / "report").exists()


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS = {
    "aliases": BOMB,
    "merge": "base: &b {x: 1}\ntrain: {<<: *b}\n",
    "size": "# " + "x" * LARGEST,
    "depth": "a: " + "[" * 5000,
    "braces": "a: " + "{a: " * 5000,
    "digits": "seed: " + "9" * 10_000,
    "code": "a: !!python/object/apply:os.system [touch owned]",
    "bytes": "\udcff",
    "list": "[1, 2]",
    "nothing": "",
    "two": "--- 1\n--- 2\n",
    "date": "seed: 2026-99-99",
    "key": "? [a, b]\n: c",
}


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_configuration_is_refused_at_once(run, text):
    (run / "config.yaml").write_bytes(TEXTS[text].encode("utf-8", "surrogateescape"))
    began = time.monotonic()
    with pytest.raises(UserError, match="is no configuration of a run") as refusal:
        load_config(run)
    assert time.monotonic() - began < 5
    assert "\n" not in str(refusal.value) and not Path("owned").exists()


WRONG: list[Any] = [[1], {"a": 1}, "big", None, True, -1.5, 10**30, math.nan, math.inf, b"x"]


def places(tree: Any, at: tuple = ()) -> Iterator[tuple]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield (*at, key)
            yield from places(value, (*at, key))


def changed(tree: dict, place: tuple, value: Any) -> dict:
    key, *rest = place
    return tree | {key: changed(tree[key], tuple(rest), value) if rest else value}


def test_every_key_of_a_wrong_type_is_one_line_that_names_it(run, capfd):
    """Through the command that needs most of them; what a type allows may be a run."""
    good = yaml.safe_load((run / "config.yaml").read_text())
    for place in places(good):
        if place == ("model", "softmax_scale"):  # ModelConfig's to check
            continue
        for wrong in WRONG:
            (run / "config.yaml").write_text(yaml.safe_dump(changed(good, place, wrong)))
            try:
                load_config(run)
            except UserError as error:
                assert "\n" not in str(error) and str(place[0]) in str(error)
            else:
                assert (
                    len(place) == 1
                    or place[0] not in ("model", "optim", "train")
                    or wrong in ([None, True, -1.5, 10**30])
                )


# Checkpoints


def resave(path: Path, name: str) -> None:
    """The manifest says what the file now is, as somebody who means harm would have it."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest[name] = {"bytes": (path / name).stat().st_size, "sha256": digest(path / name)}
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["eval", "generate", "train"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, torch.int64, torch.float64, torch.float16])
def test_weights_of_another_type_or_not_finite_are_refused(run, wrong, name, capfd):
    path = checkpoint.find(run, "last")
    tensors = load_file(path / "model.safetensors")
    for key in list(tensors)[:: len(tensors) - 1]:  # the first and the last
        changed = dict(tensors)
        if isinstance(wrong, float):
            changed[key] = tensors[key].clone()
            changed[key].view(-1)[-1] = wrong
        else:
            changed[key] = tensors[key].to(wrong)
        save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
        resave(path, "model.safetensors")
        assert key in refused(name, run, capfd)


def test_every_field_of_a_state_is_held_against_its_type(run):
    path = checkpoint.find(run, "last")
    good = torch.load(path / "state.pt", weights_only=True)
    fields = {field.name for field in dataclasses.fields(checkpoint.State)}
    assert fields <= good.keys()
    for key in good:
        for wrong in [{"a": 1}, [[1]], "../../x", torch.ones(2), -7, math.nan, 10**30, ["x"]]:
            torch.save(good | {key: wrong}, path / "state.pt")
            try:
                checkpoint.load_state(path)
            except UserError as error:
                assert "\n" not in str(error) and "state.pt" in str(error)
            else:  # theirs is held against the optimizer below
                harmless = {"optimizer", "scaler", "data_hash", "held_out_hash", "losses"}
                assert key in harmless or (key in ("best", "seconds") and wrong in (-7, 10**30))
    torch.save(good | {"more": 1}, path / "state.pt")
    with pytest.raises(UserError):
        checkpoint.load_state(path)


def moments(**change: Any) -> dict[str, Any]:
    good = {
        "step": torch.tensor(1.0),
        "exp_avg": torch.zeros(3, 2),
        "exp_avg_sq": torch.zeros(3, 2),
    }
    return {"state": {0: good | change}, "param_groups": [{"params": [0]}]}


STATES = {
    "shape": moments(exp_avg=torch.zeros(2, 3)),
    "last": moments(exp_avg_sq=torch.zeros(3, 3)),
    "nan": moments(exp_avg=torch.full((3, 2), math.nan)),
    "dtype": moments(exp_avg=torch.zeros(3, 2, dtype=torch.int64)),
    "stretched": moments(exp_avg=torch.zeros(1).expand(3, 2)),
    "sparse": moments(exp_avg=torch.zeros(3, 2).to_sparse()),
    "step": moments(step=1),
    "text": moments(exp_avg_sq="x"),
    "more": moments(more=torch.zeros(1)),
    "index": {"state": {1: moments()["state"][0]}, "param_groups": [{"params": [0]}]},
    "groups": {"state": {}, "param_groups": []},
    "list": [],
    "nothing": {},
}


@pytest.mark.parametrize("state", STATES)
def test_the_optimizer_takes_moments_of_its_own_parameters_alone(state, tmp_path):
    weight = torch.nn.Parameter(torch.ones(3, 2))
    adam = torch.optim.AdamW([weight], lr=0.5)
    checkpoint.load_optimizer(adam, moments(), tmp_path)
    assert adam.param_groups[0]["lr"] == 0.5 and adam.state[weight]["step"] == 1
    with pytest.raises(UserError, match=r"state\.pt holds no state of this run's optimizer"):
        checkpoint.load_optimizer(adam, STATES[state], tmp_path)


@pytest.mark.parametrize("wrong", [{}, {"scale": "1"}, {"scale": math.nan}, [], {"more": 1.0}])
def test_the_loss_scaler_takes_its_own_state_alone(wrong, tmp_path):
    scaler = torch.amp.GradScaler("cpu")
    good = scaler.state_dict()
    checkpoint.load_scaler(scaler, good | {"scale": 8.0}, tmp_path)
    assert scaler.get_scale() == 8.0
    with pytest.raises(UserError, match=r"state\.pt holds no state of a loss scaler"):
        checkpoint.load_scaler(scaler, good | wrong if wrong else wrong, tmp_path)


def test_a_compressed_state_is_not_unpacked(run):
    path = checkpoint.find(run, "last")
    with zipfile.ZipFile(path / "state.pt") as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path / "state.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in parts.items():
            new.writestr(name, content)
    with pytest.raises(UserError, match="compressed"):
        checkpoint.load_state(path)


@pytest.mark.parametrize(
    "text",
    ["[]", "7", '{"a": 1}', '{"model.safetensors": {"bytes": 1}}', "[" * 9000, '{"a": {}}' * 2, ""],
)
def test_a_manifest_is_what_it_must_be(run, text):
    path = checkpoint.find(run, "last")
    (path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        checkpoint.verify(path)


@pytest.mark.parametrize("name", ["step-1", "step-0000004", "step-" + "9" * 30, "step-٣٣٣٣٣٣"])
def test_a_folder_that_only_looks_like_a_checkpoint_is_none(run, name):
    before = checkpoint.steps(run / "checkpoints")
    (run / "checkpoints" / name).mkdir()
    (run / "checkpoints/step-000098").write_text("a file")
    assert checkpoint.steps(run / "checkpoints") == before


# Metrics


@pytest.mark.parametrize("key", ["attempt", "step", "tokens", "seconds", "train/loss", "val/loss"])
@pytest.mark.parametrize(
    "value", ['"x"', "[1]", "{}", "true", "1e999", "NaN", "1" * 400, "[" * 9000]
)
def test_a_number_of_the_curve_is_a_number(tmp_path, key, value):
    good = {
        "attempt": 0,
        "step": 1,
        "tokens": 2,
        "seconds": 0.5,
        "train/loss": 3.0,
        "val/loss": 4.0,
    }
    bad = ", ".join(f'"{k}": {value if k == key else v}' for k, v in good.items())
    (tmp_path / "metrics.jsonl").write_text(f"{{{bad}}}\n{json.dumps(good | {'step': 2})}\n")
    with pytest.warns(UserWarning, match="line 1: damaged"):
        assert [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [2]


# Paths


@pytest.mark.parametrize(
    "name", ["runs [v1]/rope/a=1,b", "a*b", "it's", 'say "so"', "$HOME", "a b\\"]
)
def test_a_path_that_exists_is_taken_as_it_is(finished, name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / name)
    assert find_run(name) == Path(name) and find_runs([name, name]) == [Path(name)]


@pytest.mark.parametrize(
    "name", ["runs [v1]/rope/a=1,b", "it's", 'say "so"', "a b\\", "x;touch owned"]
)
def test_a_printed_command_can_be_pasted(name, finished, tmp_path, monkeypatch, corpus, capfd):
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(finished, name))
    shutil.rmtree(folder / "eval")
    assert command("compare", f"runs={[str(folder)]}".replace("'", '"')) in (0, 1)
    for key in ("run", "resume"):
        pasted = shlex.split(f"python x.py {override(key, folder)}")[2:]
        assert len(pasted) == 1
        asked = COMMANDS["eval"](folder)[1:] if key == "run" else ["train.steps=21"]
        assert command("eval" if key == "run" else "train", *pasted, *asked) == 0, (
            capfd.readouterr()
        )
    assert (folder / "eval").is_dir() and not Path("owned").exists()


# What evaluating a foreign run may do elsewhere


def with_settings(run: Path, group: str, **settings: Any) -> None:
    path = checkpoint.find(run, "last")
    for folder in (run, path):
        values = yaml.safe_load((folder / "config.yaml").read_text())
        values[group] |= settings
        (folder / "config.yaml").write_text(yaml.safe_dump(values))
    resave(path, "config.yaml")


def test_evaluating_says_where_a_run_reaches_and_can_move_its_cache(run, tmp_path, capfd):
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    with_settings(run, "data", cache_dir=str(theirs / "\x1b[2J"))
    away = tmp_path / "work"
    away.mkdir()
    os.chdir(away)
    arguments = [a for a in COMMANDS["eval"](run) if a != "tracker=none"]
    assert command("eval", *arguments, f"data.cache_dir={mine}") == 0
    out = capfd.readouterr().out
    assert "paths outside the working directory" in out and str(mine) in out
    assert any(mine.iterdir()) and not theirs.exists()
    shutil.rmtree(run / "eval")
    assert command("eval", *arguments) == 0
    out = capfd.readouterr().out
    assert "\\x1b[2J" in out and "\x1b[2J" not in out and theirs.exists()


@pytest.mark.parametrize(
    ("theirs", "given", "wanted"),
    [
        ({"name": "none"}, [], {"name": "none"}),
        ({"mode": "auto"}, [], {"project": "mine", "entity": None, "mode": "auto"}),
        ({"mode": "offline"}, [], {"project": "mine", "mode": "offline"}),
        ({"mode": "disabled"}, [], {"mode": "disabled"}),
        ({"mode": "online"}, [], {"mode": "auto"}),
        ({"mode": ["x"]}, [], {"mode": "auto"}),
        ({"name": "none"}, ["tracker.project"], {"project": "mine"}),
        ({"mode": "offline"}, ["tracker"], {"mode": "auto", "project": "mine"}),
    ],
)
def test_the_tracker_is_that_of_who_evaluates(theirs, given, wanted, capsys):
    mine = {"name": "wandb", "project": "mine", "entity": None, "mode": "auto", "tags": []}
    foreign = {"name": "wandb", "project": "spy", "entity": "spies", "mode": "auto", "tags": ["t"]}
    found = own_tracker(mine, foreign | theirs, given)
    assert wanted.items() <= found.items()
    assert not {"spy", "spies"} & set(map(str, found.values())) and found.get("tags") != ["t"]
