"""The loop: it learns, it repeats itself bit for bit, and it stops where numbers go wrong."""

import math
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SCHEMES, SMALL, command

import train as train_module
from runs.config import load_config
from tests.trained import FEW_TOKENS, records, train, trained_weights
from training import checkpoint, run, validation
from training.positions import draw


@pytest.mark.parametrize("position", SCHEMES)
def test_every_scheme_learns(smoke, position):
    losses = [r["val/loss"] for r in records(smoke(position, "optim.lr=1e-2")) if "val/loss" in r]
    assert (
        losses[-1] < losses[0] and losses[-1] < math.log(300) - 1.5
    )  # tokens that it can tell apart


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
        model = run.build_model(load_config(smoke(position)), 300)
        model.reset(1)
        return {n: p for n, p in model.named_parameters() if not n.startswith("schemes.")}

    weights = [at_start(position) for position in SCHEMES]
    assert len({frozenset(w) for w in weights}) == 1
    assert all(torch.equal(weights[0][n], w[n]) for w in weights[1:] for n in w)


def test_init_from_takes_weights_of_another_scheme(smoke, tmp_path, monkeypatch, corpus):
    other = smoke("rope")
    arguments = [
        "position=learned",
        f"init_from={other}",
        "optim.lr=1e-9",
        "optim.min_lr=0",
        "train.steps=1",
    ]
    assert train(tmp_path, monkeypatch, *corpus, *arguments, "hydra.run.dir=outputs/next") == 0
    before, after = trained_weights(other), trained_weights(tmp_path / "outputs/next")
    assert after.keys() - before.keys() == {"schemes.0.table"}
    for name in before:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)


def test_init_from_says_what_is_not_as_it_was(smoke, tmp_path, monkeypatch, corpus, capfd):
    """Weights of another length, of another scheme, and settings that would quietly go by the new length."""
    monkeypatch.chdir(tmp_path)
    longer = [*SMALL, *corpus, "context_length=48", "train.steps=1"]
    rope, table = smoke("rope"), smoke("kerple_log")
    for position, key in (("rope_yarn", "original_context"), ("fire", "threshold")):
        assert command("train", *longer, f"position={position}", f"init_from={rope}") == 1
        said = capfd.readouterr().err
        assert f"position.{key}=null" in said and "was trained at 32" in said
    layers = "position.layers=[{name: none, window: 9}, {name: fire, window: null, threshold: null, hidden: 4}]"
    assert command("train", *longer, "position=hybrid", layers, f"init_from={rope}") == 1
    assert "give position.layers[1].threshold a number" in capfd.readouterr().err
    for wrong, said in (("model.n_heads=1", "model.n_heads=1"), ("init_from=latest", "latest")):
        assert command("train", *longer, f"init_from={rope}", wrong) == 1
        assert said in capfd.readouterr().err
    assert not Path("outputs").exists()
    asked = ["position=rope_yarn", "position.original_context=32", "position.factor=1.5"]
    asked += ["model.softmax_scale=log"]
    assert command("train", *longer, *asked, f"init_from={rope}") == 0
    said = capfd.readouterr().out
    assert "begun anew" not in said and "model.softmax_scale is log, no longer None" in said
    assert command("train", *longer, "position=kerple_log", f"init_from={table}") == 0
    assert "begun anew" not in capfd.readouterr().out
    # a parameter of the same name and shape, in another formula
    assert command("train", *longer, "position=kerple_power", f"init_from={table}") == 0
    assert f"not taken from {table}, but begun anew: schemes.0." in capfd.readouterr().out


def test_validation_reads_no_more_at_once_than_training(tmp_path, monkeypatch, corpus):
    from model.transformer import Transformer

    forward, read = Transformer.forward, set()

    def watched(model, tokens, *given, **named):
        read.add(len(tokens))
        return forward(model, tokens, *given, **named)

    monkeypatch.setattr(Transformer, "forward", watched)
    assert train(tmp_path, monkeypatch, *corpus, "train.accumulate=4", "train.steps=1") == 0
    assert read == {2}


def test_jobs_of_a_sweep_do_not_use_up_each_others_compilations(tmp_path, monkeypatch, corpus):
    """Past torch's limit it would quietly run a model as it is."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    limit = torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True)
    jobs = ["compile=true", "position=rope,none", "context_length=16,24", "train.steps=2"]
    monkeypatch.chdir(tmp_path)
    with limit:
        assert command("train", "-m", *SMALL, *corpus, *jobs) == 0


@pytest.mark.parametrize("position", ["rope", "t5"])
def test_positions_can_be_drawn_from_a_longer_range(smoke, position):
    plain, drawn = (records(smoke(position, *o)) for o in ([], ["train.position_range=200"]))
    assert [r["batch"] for r in plain] == [r["batch"] for r in drawn]
    assert plain[0]["train/loss"] != drawn[0]["train/loss"]
    positions = [draw(200, 32, seed=1, index=i) for i in range(300)]
    assert all((p.diff() > 0).all() and p[0] >= 0 and p[-1] < 200 for p in positions)
    assert torch.equal(draw(200, 32, seed=1, index=7), positions[7])
    assert set(torch.cat(positions).tolist()) == set(range(200))
    for reach in (32, 33, 60, 63, 64, 65):  # as many to leave out as to take, and fewer
        few = [draw(reach, 32, seed=1, index=i) for i in range(100)]
        assert all(len(p) == 32 and (p.diff() > 0).all() and p[-1] < reach for p in few)
        share = torch.bincount(torch.cat(few), minlength=reach) / 100
        assert (share - 32 / reach).abs().max() < 0.25  # five standard deviations


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_is_near_float32(smoke, precision):
    run = smoke("rope", f"precision={precision}", *FEW_TOKENS)
    full, mixed = records(smoke("rope", *FEW_TOKENS)), records(run)
    assert abs(full[0]["train/grad_norm"] / mixed[0]["train/grad_norm"] - 1) < 0.05  # unscaled
    assert abs(full[-1]["val/loss"] - mixed[-1]["val/loss"]) < 0.02
    for tensor in trained_weights(run).values():
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
    seen = {(load_config(f).position["name"], load_config(f).seed) for f in folders}
    assert seen == {(p, s) for p in ("rope", "alibi") for s in (1, 2)}
    assert all(load_config(f).position["name"] == f.parent.name for f in folders)


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
