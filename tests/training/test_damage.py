"""Each file of a run damaged in turn, then the real commands: a clear message or the numbers of a whole checkpoint."""

import json
import os
import shutil
import signal
import warnings
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import SMALL, command
from safetensors.torch import load_file

import train as train_module
from errors import UserError
from runs.config import load_config
from training import checkpoint, resume
from training.metrics import read_metrics

INSIDE = [f"checkpoints/step-000004/{n}" for n in sorted(checkpoint.FILES | {"manifest.json"})]
BESIDE = ["checkpoints/last", "checkpoints/best", "config.yaml", "tokenizer.json", "metrics.jsonl"]
QUICK = ["eval.targets=32", "tracker=none", "lengths=[32]", "protocols=[same_tokens]"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, corpus):
    """A run of six steps that was asked to stop at four, and what the commands say of it while it is whole."""
    folder = tmp_path_factory.mktemp("damage")
    whole = train_module.Loop.step

    def step(loop, batch):
        if loop.state.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(loop, batch)

    settings = ["train.steps=6", "train.save_every=2", "train.eval_every=2", "train.log_every=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(train_module.Loop, "step", step)
        arguments = [*SMALL, *corpus, *settings, "optim.lr=1e-2", "hydra.run.dir=outputs/rope/a"]
        assert command("train", *arguments) == 143
    return folder / "outputs/rope/a"


@pytest.fixture
def copy(stopped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda name="a": Path(shutil.copytree(stopped, Path("outputs/rope") / name))


def spoil(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    half = data[: len(data) // 2].rstrip(b"}\n")  # never just behind a whole line
    path.write_bytes({"cut": half, "zero": bytes(len(data)), "flip": data}[damage])


def written(folder: Path, capfd, which: str = "last") -> str:
    capfd.readouterr()
    asked = [f"run={folder}", f"checkpoint={which}", "prompt=to", "tokens=12", "device=cpu"]
    assert command("generate", *asked) == 0
    return capfd.readouterr().out


def measured(folder: Path) -> list[float]:
    assert command("eval", f"run={folder}", *QUICK) == 0
    return [row["nats"] for row in json.loads((folder / "eval/rope.json").read_text())["rows"]]


def ended(folder: Path) -> dict[str, torch.Tensor]:
    path = checkpoint.find(folder, "last")
    assert path.name == "step-000006"
    return load_file(path / "model.safetensors")


@pytest.fixture(scope="module")
def whole(stopped, tmp_path_factory):
    """The numbers of step 4, those of step 2, and the weights at the end."""

    def of(name, capfd):
        folder = tmp_path_factory.mktemp("whole") / "outputs/rope/a"
        shutil.copytree(stopped, folder)
        if name == 2:
            shutil.rmtree(folder / "checkpoints/step-000004")
        answer = written(folder, capfd), measured(folder)
        assert command("train", f"resume={folder}") == 0
        return *answer, ended(folder)

    made = {}
    return lambda step, capfd: made.setdefault(step, of(step, capfd) if step not in made else None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"),
    [*product(INSIDE, ["cut", "flip"]), *product(BESIDE, ["cut", "zero", "flip"])],
)
def test_no_damage_ends_in_a_traceback_or_in_wrong_numbers(copy, whole, capfd, name, damage):
    inside = name in INSIDE
    text, nats, weights = whole(2 if inside else 4, capfd)
    folder = copy()
    spoil(folder / name, damage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert written(folder, capfd) == text
        assert measured(folder) == nats
        capfd.readouterr()
        code = command("train", f"resume={folder}")
    said = capfd.readouterr().err + "".join(str(w.message) for w in caught)
    assert "Traceback" not in said
    if name == "config.yaml":  # a stranger may have edited it: the run must not change with it
        assert code == 1 and f"{folder}/config.yaml" in said
        return
    assert code == 0
    unseen = name.endswith(("last", "best")) or (name, damage) == ("metrics.jsonl", "flip")
    assert unseen or f"{folder}/{name}" in said
    end = ended(folder)
    assert all(torch.equal(end[key], weights[key]) for key in weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attempts = {r["step"]: r["attempt"] for r in read_metrics(folder / "metrics.jsonl")}
    assert (attempts[5], attempts[6]) == (1, 1)
    if inside:
        capfd.readouterr()
        last = folder / name.replace("4", "6")
        spoil(last, damage)
        assert command("generate", f"run={folder}", "checkpoint=6", "prompt=to") == 1
        said = capfd.readouterr().err
        assert said.startswith("error: ") and str(last) in said
        assert len(said.splitlines()) == 1


def test_a_damaged_checkpoint_is_passed_over(copy, whole, capfd):
    """The quick one of the cases above, for every day."""
    text, nats, weights = whole(2, capfd)
    folder = copy()
    spoil(folder / "checkpoints/step-000004/state.pt", "flip")
    with pytest.warns(UserWarning, match=r"step-000004/state.pt is damaged.*the checkpoint before"):
        assert (written(folder, capfd), measured(folder)) == (text, nats)
    with pytest.warns(UserWarning, match="damaged"):
        assert command("train", "resume=auto", *resume_settings(folder)) == 0
    end = ended(folder)
    assert all(torch.equal(end[key], weights[key]) for key in weights)
    assert checkpoint.find(folder, "4").name == "step-000004", "written again"


def resume_settings(folder: Path) -> list[str]:
    """The overrides that a run was made with, but for its folder."""
    config = load_config(folder)
    data = [f"data.{k}={config.data[k]}" for k in ("train", "validation", "test", "cache_dir")]
    steps = ["train.steps=6", "train.save_every=2", "train.eval_every=2", "train.log_every=1"]
    return [*SMALL, *data, *steps, "optim.lr=1e-2"]


def test_no_flipped_bit_of_config_yaml_changes_a_run_unseen(copy):
    """But for what a resume may change; of train.steps a line says that it is another."""
    folder = copy()
    path = checkpoint.find(folder, "last")
    file, known = folder / "config.yaml", resume.identity(load_config(folder))
    text = file.read_bytes()
    for i in range(0, len(text), 17):
        data = bytearray(text)
        data[i] ^= 1 << i % 7
        file.write_bytes(data)
        try:
            config = resume.own_config(folder, path)
        except UserError as error:
            assert "config.yaml" in str(error)
            continue
        for key, value in resume.identity(config).items():
            assert value == known[key] or (key == "train.steps" and resume.new_length(path, config))


def test_what_killed_processes_left_is_cleared(copy, capfd):
    folder = copy()
    root = folder / "checkpoints"
    shutil.copytree(root / "step-000004", root / ".draft-step-000006")
    (root / ".last.123.draft").write_text("step-0")
    (root / "step-000005").mkdir()  # a folder without a manifest
    with pytest.warns(UserWarning, match=r"step-000005/manifest.json cannot be read"):
        assert command("train", f"resume={folder}") == 0
    ended(folder)
    assert not list(root.glob(".*"))
