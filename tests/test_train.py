"""The loop: it learns, it repeats itself bit for bit, and a run that was stopped ends where an undisturbed one does."""

import dataclasses
import json
import os
import random
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SCHEMES, SMALL, command
from safetensors.torch import load_file

import train as train_module
from training import checkpoint, run, validation
from training.metrics import read_metrics
from training.optim import learning_rate
from training.positions import draw


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


@pytest.mark.parametrize("position", SCHEMES)
def test_every_scheme_learns(smoke, position):
    losses = [r["val/loss"] for r in records(smoke(position, "optim.lr=1e-2")) if "val/loss" in r]
    assert losses[-1] < losses[0] - 0.1


def test_a_run_folder_is_what_the_readme_says(smoke):
    folder = smoke("rope")
    assert {p.name for p in folder.iterdir()} >= {
        "config.yaml", "metrics.jsonl", "checkpoints", "tokenizer.json",
    }  # fmt: skip
    assert not (folder / ".hydra").exists()
    assert {p.name for p in (folder / "checkpoints").iterdir()} >= {"last", "best", "step-000020"}
    for record in records(folder):
        assert {"attempt", "step", "tokens", "seconds"} <= record.keys()
        assert record["tokens"] == record["step"] * 8 * 32
    best = min((r for r in records(folder) if "val/loss" in r), key=lambda r: r["val/loss"])
    assert checkpoint.step_of(checkpoint.find(folder, "best")) == best["step"]


def test_same_seed_same_bits(smoke, tmp_path, monkeypatch, corpus):
    assert train(tmp_path, monkeypatch, *corpus, "hydra.run.dir=outputs/again") == 0
    first, second = trained_weights(smoke("rope")), trained_weights(tmp_path / "outputs/again")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_schemes_are_paired(smoke):
    """Same seed, two schemes: identical batches, and bit-identical weights outside the scheme at step 0."""
    batches = [[r["batch"] for r in records(smoke(p))] for p in ("rope", "learned", "alibi")]
    assert batches[0] == batches[1] == batches[2] and len(set(batches[0])) == len(batches[0])

    def at_start(position):
        model = run.build_model(run.load_config(smoke(position)), 300)
        model.reset(1)
        return {n: p for n, p in model.named_parameters() if not n.startswith("schemes.")}

    weights = [at_start(position) for position in SCHEMES]
    assert len({frozenset(w) for w in weights}) == 1
    assert all(torch.equal(weights[0][n], w[n]) for w in weights[1:] for n in w)


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
    timed = {"seconds", "attempt", "train/tokens_per_second"}
    one, two = (
        [{k: v for k, v in r.items() if k not in timed} for r in read_metrics(f / "metrics.jsonl")]
        for f in (a, b)
    )
    assert one == two


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
        (["precision=bf16"], [13]),
        (["precision=fp16", "train.save_every=4"], [13]),
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
    lr = [learning_rate(20, steps, run.load_config(Path("outputs/a")).optim) for steps in (20, 25)]
    said = capfd.readouterr().out
    assert "train.steps is 25, no longer 20: from step 20 on the learning rate follows" in said
    assert f"the cosine of 25 steps, {lr[1]:.3g} in place of {lr[0]:.3g}" in said
    assert command("train", "resume=outputs/a") == 0
    a = tmp_path / "outputs/a"
    rates = {r["step"]: r["train/lr"] for r in records(a)}
    assert rates[20] == pytest.approx(2e-4) and rates[21] == lr[1] > 3e-4
    config = run.load_config(a)
    assert (config.train.steps, config.device, config.resume) == (25, "cpu", None)
    assert [r["attempt"] for r in records(a) if r["step"] > 20] == [1, 1, 2, 2, 2]
    assert command("train", "resume=outputs/a") == 1
    assert "has taken all its 25 steps" in capfd.readouterr().err


def test_resume_and_init_from_want_the_same_text_and_tokens(
    smoke, tmp_path, monkeypatch, corpus, capfd
):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be that is the question " * 200)
    data = [f"data.train=[{text}]", *corpus[1:], "tokenizer=bytes", "hydra.run.dir=outputs/a"]
    arguments = [a for a in SMALL if not a.startswith("tokenizer.")]
    monkeypatch.chdir(tmp_path)
    assert command("train", *arguments, *data, "train.steps=2") == 0
    text.write_text(text.read_text().replace("question", "answer"))
    assert command("train", "resume=outputs/a", "train.steps=4") == 1
    assert "training text is not what it was" in capfd.readouterr().err
    other = f"init_from={smoke('rope')}"
    assert command("train", *arguments, *data, other, "hydra.run.dir=outputs/b") == 1
    assert "another tokenizer" in capfd.readouterr().err
    assert not (tmp_path / "outputs/b/config.yaml").exists()


def test_init_from_takes_weights_of_another_scheme(smoke, tmp_path, monkeypatch, corpus):
    other = smoke("rope")
    arguments = ["position=learned", f"init_from={other}", "optim.lr=1e-9", "train.steps=1"]
    assert train(tmp_path, monkeypatch, *corpus, *arguments, "hydra.run.dir=outputs/next") == 0
    before, after = trained_weights(other), trained_weights(tmp_path / "outputs/next")
    assert after.keys() - before.keys() == {"schemes.0.table"}
    for name in before:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("position", ["rope", "t5"])
def test_positions_can_be_drawn_from_a_longer_range(smoke, position):
    plain, drawn = (records(smoke(position, *o)) for o in ([], ["train.position_range=200"]))
    assert [r["batch"] for r in plain] == [r["batch"] for r in drawn]
    assert plain[0]["train/loss"] != drawn[0]["train/loss"]
    positions = [draw(200, 32, seed=1, index=i) for i in range(300)]
    assert all((p.diff() > 0).all() and p[0] >= 0 and p[-1] < 200 for p in positions)
    assert torch.equal(draw(200, 32, seed=1, index=7), positions[7])
    assert set(torch.cat(positions).tolist()) == set(range(200))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_is_near_float32(smoke, precision):
    full, mixed = records(smoke("rope")), records(smoke("rope", f"precision={precision}"))
    assert abs(full[0]["train/grad_norm"] / mixed[0]["train/grad_norm"] - 1) < 0.05  # unscaled
    assert abs(full[-1]["val/loss"] - mixed[-1]["val/loss"]) < 0.02
    for tensor in trained_weights(smoke("rope", f"precision={precision}")).values():
        assert tensor.dtype == torch.float32


def test_accumulation_and_evaluation_change_nothing(smoke):
    whole, parts = records(smoke("rope")), records(smoke("rope", "train.accumulate=4"))
    for one, two in zip(whole, parts, strict=True):
        assert one["train/loss"] == pytest.approx(two["train/loss"], rel=1e-5)
    always = trained_weights(smoke("rope", "train.eval_every=5"))
    never = trained_weights(smoke("rope", "train.eval_every=0", "train.save_every=3"))
    assert all(torch.equal(never[k], x) for k, x in always.items())


@pytest.mark.slow
def test_compiled_equals_eager(smoke):
    eager, compiled = records(smoke("rope")), records(smoke("rope", "compile=true"))
    for one, two in zip(eager, compiled, strict=True):
        assert one["train/loss"] == pytest.approx(two["train/loss"], rel=1e-4)
    names = trained_weights(smoke("rope")).keys()
    assert trained_weights(smoke("rope", "compile=true")).keys() == names


def test_a_sweep_makes_a_folder_a_job(tmp_path, monkeypatch, corpus):
    monkeypatch.chdir(tmp_path)
    sweep = ["-m", *SMALL, *corpus, "position=rope,alibi", "seed=1,2", "train.steps=1"]
    assert command("train", *sweep) == 0
    folders = sorted(p.parent for p in tmp_path.glob("outputs/*/*/config.yaml"))
    assert len(folders) == 4
    seen = {(run.load_config(f).position["name"], run.load_config(f).seed) for f in folders}
    assert seen == {(p, s) for p in ("rope", "alibi") for s in (1, 2)}
    assert all(run.load_config(f).position["name"] == f.parent.name for f in folders)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, monkeypatch, corpus, capfd):
    arguments = ["optim.lr=1e30", "optim.warmup_steps=0", "train.log_every=1"]
    assert train(tmp_path, monkeypatch, *corpus, *arguments) == 1
    said = capfd.readouterr().err
    assert "try a lower optim.lr" in said and "Traceback" not in said
    assert not list(tmp_path.glob("outputs/*/*/checkpoints/*")), "nothing of it was saved"


def test_a_step_with_a_broken_gradient_is_not_applied(tmp_path, monkeypatch, corpus, capfd):
    """It stops there, by name; what was saved before stays and is finite."""
    from model.transformer import Transformer

    forward = Transformer.forward

    def broken(model, tokens, *given, **named):
        nats = forward(model, tokens, *given, **named)
        return nats * float("nan") if model.training and calls.pop() == 0 else nats

    calls = [0, 1, 1, 1, 1, 1, 1]  # from the end: the seventh step
    monkeypatch.setattr(Transformer, "forward", broken)
    monkeypatch.setattr(validation.Validation, "measure", lambda *_: {"val/loss": 1.0})
    settings = ["hydra.run.dir=outputs/a", "train.save_every=6", "train.log_every=20"]
    assert train(tmp_path, monkeypatch, *corpus, *settings) == 1
    said = capfd.readouterr().err
    assert said.startswith("error: step 7: the loss or its gradient is not finite; the last good")
    assert "checkpoint is outputs/a/checkpoints/step-000006" in said
    assert [p.name for p in checkpoint.steps(Path("outputs/a/checkpoints"))] == ["step-000006"]


def test_a_full_disk_ends_in_one_line_and_the_run_goes_on(tmp_path, monkeypatch, corpus, capfd):
    """A real limit on the size of files, from the second checkpoint on."""
    from training.saving import Saver

    before, whole = resource.getrlimit(resource.RLIMIT_FSIZE), Saver.save

    def save(saver, state):
        if saver.newest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        whole(saver, state)

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


def test_training_reads_no_global_random_generator(tmp_path, monkeypatch, corpus):
    """So there is none to save: whatever else draws from them, a resumed run sees the same."""
    states = []

    def look(loop, batch, whole=train_module.Loop.step):
        states.append((torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()))
        return whole(loop, batch)

    monkeypatch.setattr(train_module.Loop, "step", look)
    assert train(tmp_path, monkeypatch, *corpus, "train.eval_every=3", "train.save_every=4") == 0
    assert len(states) == 20
    for mine, other, third in states[1:]:
        assert torch.equal(mine, states[0][0]) and other == states[0][1]
        assert (third == states[0][2]).all()


def test_it_ends_with_the_next_command(tmp_path, monkeypatch, corpus, capfd):
    assert train(tmp_path, monkeypatch, *corpus, "train.steps=1") == 0
    said = capfd.readouterr().out.strip().splitlines()
    folder = (tmp_path / "outputs/.latest").read_text()
    assert said[-1] == f"next: python eval.py run={folder}"
    assert (tmp_path / folder / "config.yaml").exists()
