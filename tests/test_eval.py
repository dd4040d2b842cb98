"""Evaluation of real run folders: the files of the contract, and the identities that a right measurement must have."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SCHEMES, command

from data.corpora import CORPORA
from data.prepare import prepare_split
from data.tokenizer import Tokenizer
from evaluation import results
from training import checkpoint, run
from training.optim import build_optimizer
from training.saving import Saver

QUICK = ["eval.targets=256", "tracker=none", "eval.multiples=[1,2,8]"]


@pytest.fixture
def fresh(smoke, tmp_path, monkeypatch):
    """A copy of a run that a test may write to; the working folder is beside it."""

    def copy(position: str, *overrides: str) -> Path:
        folder = tmp_path / "outputs" / position / "run"
        if not folder.exists():
            shutil.copytree(smoke(position, *overrides), folder)
        return folder

    monkeypatch.chdir(tmp_path)
    return copy


def evaluate(folder: Path, *overrides: str) -> dict:
    """`python eval.py run=<folder>`, and the newest result file."""
    assert command("eval", f"run={folder}", *QUICK, *overrides) == 0
    newest = max((folder / "eval").glob("*.json"), key=lambda p: p.stat().st_mtime_ns)
    results.load(newest)  # strict, and in agreement with its .npz
    return json.loads(newest.read_text())


def by_length(result: dict, protocol: str) -> dict[int, dict]:
    return {r["context_length"]: r for r in result["rows"] if r["protocol"] == protocol}


@pytest.mark.parametrize("position", SCHEMES)
def test_every_scheme_is_measured_beyond_its_context(fresh, position):
    result = evaluate(fresh(position))
    rows = by_length(result, "same_tokens")
    assert list(rows) == [32, 64, 256]
    assert len({r["target_set"] for r in rows.values()}) == 1
    learned = position == "learned"
    assert [r["supported"] for r in rows.values()] == [True, not learned, not learned]
    for row in rows.values():
        if row["supported"]:
            assert row["tokens_scored"] == 256
            assert row["ppl"] == pytest.approx(math.exp(row["nats"] / 256))
            assert row["bpb"] == pytest.approx(row["nats"] / math.log(2) / row["bytes_scored"])
            assert row["ci95"][0] < row["loss"] < row["ci95"][1]
        else:
            assert row["tokens_scored"] == 0 and row["loss"] is None


def test_non_overlapping_scores_every_token_but_a_documents_first(fresh):
    folder = fresh("rope")
    result = evaluate(folder)
    config = run.load_config(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    settings = {k: v for k, v in config.data.items() if k != "name"}
    split = prepare_split(CORPORA["files"](**settings), "test", tokenizer)
    tokens = sum(len(split.document(d)) - 1 for d in range(len(split)))
    size = sum(int(split.token_bytes[split.document(d)[1:]].sum()) for d in range(len(split)))
    for row in by_length(result, "non_overlapping").values():
        assert (row["tokens_scored"], row["bytes_scored"]) == (tokens, size)
    assert result["data_hash"] == split.hash and result["tokenizer_hash"] == tokenizer.hash


def edit_weights(folder: Path, change) -> None:
    """Overwrite weights of the run's last checkpoint through our own writer."""
    path = checkpoint.find(folder, "last")
    config, tokenizer = run.open_checkpoint(folder, path)
    model = run.build_model(config, tokenizer.vocab_size)
    checkpoint.load_weights(model, path)
    _, _, state = checkpoint.load_state(path)
    with torch.no_grad():
        change(model)
    optimizer, scaler = build_optimizer(model, config.optim), torch.amp.GradScaler("cpu")
    Saver(folder, config, tokenizer, model, optimizer, scaler, path).save(state)


PROTOCOLS = "protocols=[same_tokens,non_overlapping,sliding,per_position]"


@pytest.mark.parametrize("position", SCHEMES)
def test_equal_logits_score_ln_v(fresh, position):
    folder = fresh(position)
    edit_weights(folder, lambda model: model.norm.weight.zero_())
    vocabulary = Tokenizer.load(folder / "tokenizer.json").vocab_size
    rows = [r for r in evaluate(folder, PROTOCOLS)["rows"] if r["supported"]]
    assert {r["protocol"] for r in rows} == {
        "same_tokens", "non_overlapping", "sliding", "per_position",
    }  # fmt: skip
    for row in rows:
        assert row["loss"] == pytest.approx(math.log(vocabulary), abs=1e-6)


@pytest.mark.parametrize("position", [s for s in SCHEMES if s not in ("sinusoidal", "learned")])
def test_without_context_every_length_is_equal(fresh, position):
    """Attention and MLP outputs zeroed: a scheme that does not add to embeddings has nothing left to differ by."""
    folder = fresh(position)

    def silence(model):
        for block in model.blocks:
            block.attn.wo.weight.zero_()
            block.ffn.w2.weight.zero_()

    edit_weights(folder, silence)
    losses = [r["loss"] for r in by_length(evaluate(folder), "same_tokens").values()]
    assert max(losses) - min(losses) < 1e-6


def test_batch_size_and_repetition_change_nothing(fresh):
    folder = fresh("alibi")
    nats = []
    for tokens in (32, 96, 100_000):
        shutil.rmtree(folder / "eval", ignore_errors=True)
        evaluate(folder, f"eval.tokens_per_batch={tokens}")
        nats.append(np.load(folder / "eval/alibi.npz")["nats"])
    assert all(np.abs(n - nats[0]).max() < 1e-5 for n in nats)
    shutil.rmtree(folder / "eval")
    evaluate(folder, "eval.tokens_per_batch=100_000")
    assert np.array_equal(np.load(folder / "eval/alibi.npz")["nats"], nats[-1])


def test_a_finished_row_is_not_computed_again(fresh, capfd):
    folder = fresh("rope")
    first = evaluate(folder)
    stamp = (folder / "eval/rope.npz").stat().st_mtime_ns
    capfd.readouterr()
    assert evaluate(folder) == first
    assert "6 measurements, 6 there already, 0 tokens to read" in capfd.readouterr().out
    assert (folder / "eval/rope.npz").stat().st_mtime_ns == stamp
    more = evaluate(folder, "protocols=[sliding]", "lengths=[64]", "eval.stride=16")
    assert len(more["rows"]) == 7


def test_other_code_measures_again_and_says_so_row_by_row(fresh, monkeypatch):
    import eval as command_eval

    folder = fresh("rope")
    first = evaluate(folder, "lengths=[32,64,256]", "protocols=[same_tokens]")
    later = {"torch": first["torch"], "commit": "later"}
    monkeypatch.setattr(command_eval, "environment", lambda: later)
    evaluate(folder, "lengths=[256]", "protocols=[non_overlapping]")
    rows = evaluate(folder, "lengths=[32,256]", "protocols=[same_tokens]")["rows"]
    commits = {(r["protocol"], r["context_length"]): r["commit"] for r in rows}
    assert commits == {
        ("same_tokens", 32): "later",
        ("same_tokens", 64): first["commit"],
        ("same_tokens", 256): "later",
        ("non_overlapping", 256): "later",
    }


def test_other_splits_checkpoints_and_precisions_have_files_of_their_own(fresh):
    folder = fresh("rope")
    quick = ["lengths=[32]", "protocols=[same_tokens]"]
    for override in ([], ["split=validation"], ["checkpoint=10"], ["precision=bf16"]):
        evaluate(folder, *quick, *override)
    assert {p.stem for p in (folder / "eval").glob("*.json")} == {
        "rope", "rope--rope_split-validation", "rope--rope_checkpoint-10", "rope--rope_precision-bf16",
    }  # fmt: skip


def test_the_next_command_works_after_the_smoke_preset(fresh):
    folder = fresh("rope")
    assert command("eval", f"run={folder}", "tracker.name=none", "eval.targets=256") == 0
    rows = by_length(json.loads((folder / "eval/rope.json").read_text()), "same_tokens")
    assert list(rows) == [32, 64, 128, 256, 512]


def test_positions_can_be_edited_and_rescaled(fresh, capfd):
    folder = fresh("rope")
    plain = by_length(evaluate(folder), "same_tokens")
    edited = evaluate(folder, "position.base=500")
    assert edited["label"] == "rope--rope_base-500" and edited["position_settings"]["base"] == 500
    scaled = evaluate(folder, "position=rope_linear", "position.factor=4")
    assert scaled["label"] == "rope--rope_linear_factor-4"
    assert (scaled["position"], scaled["trained_position"]) == ("rope_linear", "rope")
    one = by_length(evaluate(folder, "position=rope_linear", "position.factor=1"), "same_tokens")
    for length, row in plain.items():
        assert one[length]["loss"] == pytest.approx(row["loss"], abs=1e-6)
        assert abs(by_length(scaled, "same_tokens")[length]["loss"] - row["loss"]) > 1e-6


@pytest.mark.parametrize("rule", ["clamp", "interpolate", "random"])
def test_learned_beyond_its_table_only_where_it_is_asked_for(fresh, rule):
    folder = fresh("learned")
    plain = by_length(evaluate(folder), "same_tokens")
    extended = evaluate(folder, f"position.extend={rule}")
    assert extended["label"] == f"learned--learned_extend-{rule}"
    rows = by_length(extended, "same_tokens")
    assert not plain[64]["supported"] and rows[64]["supported"] and rows[256]["supported"]
    assert (rows[32]["loss"] == plain[32]["loss"]) == (rule == "clamp")


def test_settings_come_from_the_command_line_then_the_run_then_yaml(fresh):
    folder = fresh("rope", "position.base=700")
    result = evaluate(folder, "position=rope_yarn", "position.ramp=paper")
    settings = result["position_settings"]
    assert (settings["base"], settings["ramp"], settings["beta"]) == (700, "paper", 32)
    assert (
        evaluate(folder, "position=rope_yarn", "position.base=9")["position_settings"]["base"] == 9
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["position=alibi"], "position=alibi: the run was trained with rope"),
        (["position.bas=3"], "position.bas is no setting of rope; did you mean base?"),
        (["model.n_layers=3"], "model.n_layers belongs to the trained run"),
        (["context_length=64"], "context_length belongs to the trained run"),
        (["checkpoint=999"], "checkpoint=999"),
        (["split=tests"], "tests"),
        (["position.name=none"], "position=none: the run was trained with rope"),
        (["position.base.x=3"], "position.base.x: give position.base as a whole"),
        (["eval.multiples=[]"], "lengths=[]"),
        (["lengths=[]"], "lengths=[]"),
        (["protocols=[sametokens]"], "sametokens"),
        (["lengths=[0]"], "lengths"),
        (["lengths=[100000]"], "eval.targets=256"),
        (["run=nowhere"], "run=nowhere is no run folder"),
        (["run=no*where"], "run=no*where matches no run folder"),
        (["+lenghts=3"], "lenghts is no known key; did you mean lengths?"),
    ],
)
def test_mistakes_stop_with_one_line(fresh, overrides, message, capfd):
    folder = fresh("rope")
    assert command("eval", f"run={folder}", *QUICK, *overrides) == 1
    said = capfd.readouterr().err
    assert message in said and "Traceback" not in said
    assert not (folder / "eval").exists()


def test_a_range_of_positions_is_drawn_from_again(fresh):
    folder = fresh("rope", "train.position_range=100")
    rows = by_length(evaluate(folder), "same_tokens")
    assert [rows[n]["supported"] for n in (32, 64, 256)] == [True, True, False]
    shutil.rmtree(folder / "eval")
    again = by_length(evaluate(folder, "eval.tokens_per_batch=64"), "same_tokens")
    assert again[64]["loss"] == pytest.approx(rows[64]["loss"], abs=1e-5)


def test_latest_and_globs(fresh, capfd):
    fresh("rope"), fresh("alibi")
    Path("outputs/rope/notes").mkdir()
    Path("outputs/.latest").write_text("outputs/alibi/run")
    assert command("eval", *QUICK, "lengths=[32]") == 0
    assert not Path("outputs/rope/run/eval").exists()
    assert command("eval", "run=outputs/*/*", *QUICK, "lengths=[32]") == 0
    assert Path("outputs/rope/run/eval/rope.json").exists()
    assert sorted(p.name for p in Path("outputs").iterdir()) == [".latest", "alibi", "rope"]


def test_a_damaged_checkpoint_is_named(fresh, capfd):
    folder = fresh("rope")
    weights = checkpoint.find(folder, "last") / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert command("eval", f"run={folder}", "checkpoint=20", *QUICK) == 1
    assert f"{weights} is damaged" in capfd.readouterr().err
