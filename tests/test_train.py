"""The loop: it learns, it repeats itself bit for bit, and a run that was stopped ends where an undisturbed one does."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import SCHEMES, SMALL, command
from safetensors.torch import load_file

from training import checkpoint, run
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


@pytest.mark.parametrize(
    "extra", [[], ["train.accumulate=4"], ["precision=bf16"], ["precision=fp16"]]
)
def test_resumed_equals_undisturbed(tmp_path, monkeypatch, corpus, extra):
    """The first ten steps of a run of twenty, then the rest: same weights, same optimizer, same batches."""
    small = [*corpus, *extra, "data.document_mask=true"]
    assert train(tmp_path, monkeypatch, *small, "hydra.run.dir=outputs/a") == 0
    shutil.copytree(tmp_path / "outputs/a", tmp_path / "outputs/b")
    b = tmp_path / "outputs/b"
    shutil.rmtree(b / "checkpoints/step-000020")
    for pointer in ("last", "best"):
        (b / "checkpoints" / pointer).write_text("step-000010")
    assert command("train", "resume=outputs/b") == 0

    a, paths = tmp_path / "outputs/a", {}
    for name, folder in (("a", a), ("b", b)):
        paths[name] = checkpoint.find(folder, "last")
        assert checkpoint.step_of(paths[name]) == 20
    weights = [load_file(paths[n] / "model.safetensors") for n in ("a", "b")]
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
    states = [checkpoint.load_state(paths[n]) for n in ("a", "b")]
    for one, two in zip(*(s["optimizer"]["state"].values() for s in states), strict=True):
        assert all(torch.equal(one[k], two[k]) for k in one)
    assert states[0]["scaler"] == states[1]["scaler"]
    newest = {r["step"]: r for r in records(b)}
    assert [r["attempt"] for r in records(b)] == [0] * 4 + [1] * 2
    for record in records(a):
        assert newest[record["step"]]["batch"] == record["batch"]
        assert newest[record["step"]]["train/loss"] == record["train/loss"]


def test_resume_auto_takes_the_newest_unfinished_run_of_equal_configuration(
    tmp_path, monkeypatch, corpus, capfd
):
    assert train(tmp_path, monkeypatch, *corpus, "hydra.run.dir=outputs/rope/a") == 0
    a = tmp_path / "outputs/rope/a"
    shutil.rmtree(a / "checkpoints/step-000020")
    for pointer in ("last", "best"):
        (a / "checkpoints" / pointer).write_text("step-000010")
    assert (
        train(
            tmp_path, monkeypatch, *corpus, "resume=auto", "seed=2", "hydra.run.dir=outputs/rope/c"
        )
        == 0
    )
    assert (tmp_path / "outputs/rope/c/config.yaml").exists(), "another seed is another run"
    assert train(tmp_path, monkeypatch, *corpus, "resume=auto", "hydra.run.dir=outputs/rope/d") == 0
    assert not (tmp_path / "outputs/rope/d").exists()
    assert checkpoint.step_of(checkpoint.find(a, "last")) == 20


def test_resume_refuses_other_settings_by_name(smoke, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = smoke("rope")
    for override, name in (("position=alibi", "position"), ("model.n_layers=3", "model.n_layers")):
        assert command("train", f"resume={folder}", override, "train.steps=30") == 1
        assert f"{name} is the run's own" in capfd.readouterr().err
    assert command("train", f"resume={folder}") == 1
    assert "has taken all its 20 steps" in capfd.readouterr().err


def test_a_longer_run_stays_longer(tmp_path, monkeypatch, corpus, capfd):
    """train.steps given at resume becomes the run's own, so that a further resume needs no more than the folder."""
    assert train(tmp_path, monkeypatch, *corpus, "hydra.run.dir=outputs/a", "compile=false") == 0
    assert command("train", "resume=outputs/a", "train.steps=25", "tracker.name=none") == 0
    a = tmp_path / "outputs/a"
    config = run.load_config(a)
    assert (config.train.steps, config.device, config.resume) == (25, "cpu", None)
    assert [r["attempt"] for r in records(a) if r["step"] > 20] == [1]
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
    never = trained_weights(smoke("rope", "train.eval_every=0", "train.save_every=3"))
    assert all(torch.equal(never[k], x) for k, x in trained_weights(smoke("rope")).items())


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


def test_it_ends_with_the_next_command(tmp_path, monkeypatch, corpus, capfd):
    assert train(tmp_path, monkeypatch, *corpus, "train.steps=1") == 0
    said = capfd.readouterr().out.strip().splitlines()
    folder = (tmp_path / "outputs/.latest").read_text()
    assert said[-1] == f"next: python eval.py run={folder}"
    assert (tmp_path / folder / "config.yaml").exists()
