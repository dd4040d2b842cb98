"""A run that was stopped anywhere ends where an undisturbed one does; what it may be given anew, and what not."""

import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from conftest import SMALL, command
from filelock import FileLock

import train as train_module
from runs.config import load_config
from tests.trained import FEW_TOKENS, records, same_bits, same_metrics, train
from training import checkpoint
from training.optim import learning_rate


@pytest.fixture
def stopped(monkeypatch):
    """stopped(number, *steps): from now on such a signal arrives in the midst of each of these steps."""
    whole = train_module.Loop.step

    def at(number: int, *steps: int) -> None:
        def step(loop, batch):
            if loop.state.step + 1 in steps:
                os.kill(os.getpid(), number)
            return whole(loop, batch)

        monkeypatch.setattr(train_module.Loop, "step", step)

    return at


@pytest.mark.parametrize(
    ("extra", "steps"),
    [
        # 20,120 tokens are 314 windows of 64: step 10 has the end of an epoch and the start of the next
        (["data.document_mask=true", "context_length=64", "train.batch_size=32"], [3, 10, 11]),
        (["train.accumulate=4", "train.eval_every=3"], [1, 7]),
        (["precision=bf16", *FEW_TOKENS], [13]),
        (["precision=fp16", "train.save_every=4", *FEW_TOKENS], [13]),
        pytest.param(["compile=true"], [13], marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed_equals_undisturbed(
    tmp_path, monkeypatch, corpus, stopped, capfd, extra, steps
):
    """At any step: off the steps that log or save, on them, twice in a row, and over the end of an epoch."""
    a, b = tmp_path / "outputs/a", tmp_path / "outputs/b"
    assert train(tmp_path, monkeypatch, *corpus, *extra, "hydra.run.dir=outputs/a") == 0
    stopped(signal.SIGTERM, *steps)
    assert train(tmp_path, monkeypatch, *corpus, *extra, "hydra.run.dir=outputs/b") == 143
    for step in steps:
        assert checkpoint.step_of(checkpoint.find(b, "last")) == step
        said = capfd.readouterr().err
        assert f"SIGTERM: saved at step {step}\nnext: python train.py resume=outputs/b" in said
        assert command("train", "resume=outputs/b") == (143 if step != steps[-1] else 0)
    same_bits(a, b)
    same_metrics(a, b)
    assert {r["attempt"] for r in records(b)} <= {*range(len(steps) + 1)}
    assert records(b)[-1]["attempt"] == len(steps)


def test_resume_auto_goes_on_with_what_is_the_same_run(
    tmp_path, monkeypatch, corpus, stopped, capfd
):
    stopped(signal.SIGINT, 7)
    auto = [*corpus, "resume=auto"]
    assert train(tmp_path, monkeypatch, *auto, "hydra.run.dir=outputs/rope/a") == 130
    monkeypatch.undo()
    for number, other in enumerate(["seed=2", "train.steps=21", "position=alibi"]):
        folder = f"outputs/rope/{number}"
        assert train(tmp_path, monkeypatch, *auto, other, f"hydra.run.dir={folder}") == 0
        assert (tmp_path / folder / "config.yaml").exists(), "another setting is another run"
    capfd.readouterr()
    same = ["tracker.name=none", "compile=false", "hydra.run.dir=outputs/rope/d"]
    assert train(tmp_path, monkeypatch, *auto, *same) == 0
    assert "going on from outputs/rope/a/checkpoints/step-000007" in capfd.readouterr().out
    assert checkpoint.step_of(checkpoint.find(tmp_path / "outputs/rope/a", "last")) == 20
    assert train(tmp_path, monkeypatch, *auto, *same) == 0
    assert "outputs/rope/a has taken all its 20 steps: nothing to do" in capfd.readouterr().out
    assert not (tmp_path / "outputs/rope/d").exists()


def test_resume_refuses_other_settings_by_name(smoke, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = smoke("rope")
    for override, name in (("position=alibi", "position"), ("model.n_layers=3", "model.n_layers")):
        assert command("train", f"resume={folder}", override, "train.steps=30") == 1
        assert f"{name} is the run's own" in capfd.readouterr().err
    assert command("train", f"resume={folder}") == 1
    assert "has taken all its 20 steps" in capfd.readouterr().err


def test_a_longer_run_stays_longer(tmp_path, monkeypatch, corpus, capfd, stopped):
    """train.steps given at resume becomes the run's own, so that a further resume needs no more than the folder;
    from there the learning rate is that of a run which was as long from the start, and a line says so."""
    settings = ["optim.warmup_steps=5", "train.log_every=1"]
    assert train(tmp_path, monkeypatch, *corpus, *settings, "hydra.run.dir=outputs/a") == 0
    stopped(signal.SIGTERM, 22)
    capfd.readouterr()
    assert command("train", "resume=outputs/a", "train.steps=25", "tracker.name=none") == 143
    longer = learning_rate(20, 25, load_config(Path("outputs/a")).optim)
    said = capfd.readouterr().out
    assert (
        "train.steps is 25, no longer 20: from here on the learning rate follows the cosine" in said
    )
    assert f"of 25 steps; it was 0.0002 at step 20 and is {longer:.3g} at the next" in said
    assert command("train", "resume=outputs/a") == 0
    a = tmp_path / "outputs/a"
    rates = {r["step"]: r["train/lr"] for r in records(a)}
    assert rates[20] == pytest.approx(2e-4) and rates[21] == longer > 3e-4
    config = load_config(a)
    assert (config.train.steps, config.device, config.resume) == (25, "cpu", None)
    assert [r["attempt"] for r in records(a) if r["step"] > 20] == [1, 1, 2, 2, 2]
    assert command("train", "resume=outputs/a") == 1
    assert "has taken all its 25 steps" in capfd.readouterr().err


def test_resume_and_init_from_want_the_same_text_and_tokens(
    smoke, tmp_path, monkeypatch, corpus, capfd
):
    text, held_out = tmp_path / "text.txt", tmp_path / "held_out.txt"
    for file in (text, held_out):
        file.write_text(f"{file.stem} to be or not to be that is the question " * 200)
    files = [f"data.train=[{text}]", f"data.validation=[{held_out}]", *corpus[2:]]
    data = [*files, "tokenizer=bytes", "hydra.run.dir=outputs/a"]
    arguments = [a for a in SMALL if not a.startswith("tokenizer.")]
    monkeypatch.chdir(tmp_path)
    assert command("train", *arguments, *data, "train.steps=2") == 0
    for file, kind in ((held_out, "held-out"), (text, "training")):
        file.write_text(file.read_text().replace("question", "answer"))
        assert command("train", "resume=outputs/a", "train.steps=4") == 1
        assert f"the {kind} text is not what it was" in capfd.readouterr().err
    other = f"init_from={smoke('rope')}"
    assert command("train", *arguments, *data, other, "hydra.run.dir=outputs/b") == 1
    assert "another tokenizer" in capfd.readouterr().err
    assert not (tmp_path / "outputs/b/config.yaml").exists()


def test_a_full_disk_ends_in_one_line_and_the_run_goes_on(tmp_path, monkeypatch, corpus, capfd):
    """A real limit on the size of files, from the second checkpoint on."""
    from training.saving import Saver

    before, whole = resource.getrlimit(resource.RLIMIT_FSIZE), Saver.save

    def save(saver, state):
        if saver.newest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        return whole(saver, state)

    assert train(tmp_path, monkeypatch, *corpus, "hydra.run.dir=outputs/a") == 0
    monkeypatch.setattr(Saver, "save", save)
    try:
        assert train(tmp_path, monkeypatch, *corpus, "hydra.run.dir=outputs/b") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: outputs/b/checkpoints/.draft-step-000020/model.safetensors")
    assert "File too large" in line
    b = tmp_path / "outputs/b"
    assert sorted(p.name for p in (b / "checkpoints").iterdir()) == ["best", "last", "step-000010"]
    monkeypatch.setattr(Saver, "save", whole)
    assert command("train", "resume=outputs/b") == 0
    same_bits(tmp_path / "outputs/a", b)


def test_a_run_is_trained_by_one_process_at_a_time(smoke, tmp_path, monkeypatch, capfd):
    folder = shutil.copytree(smoke("rope"), tmp_path / "outputs/rope/run")
    monkeypatch.chdir(tmp_path)
    before = (folder / "metrics.jsonl").read_bytes()
    with FileLock(folder / ".lock"):
        assert command("train", f"resume={folder}", "train.steps=30") == 1
    assert f"{folder} is being trained by another process" in capfd.readouterr().err
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert command("train", f"resume={folder}", "train.steps=30") == 0
