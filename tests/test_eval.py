"""The evaluation command: its files, what it says, what it does not do twice, and what it refuses."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from conftest import SCHEMES, command

from tests.evaluated import BOTH, QUICK, SAME, by_length, evaluate
from training import checkpoint


@pytest.mark.parametrize("position", SCHEMES)
def test_every_scheme_is_measured_beyond_its_context(fresh, position):
    result = evaluate(fresh(position), *SAME, BOTH)
    rows = by_length(result, "same_tokens")
    limited = by_length(result, "same_tokens", window=32)
    assert (list(rows), list(limited)) == ([32, 64, 256], [64, 256])
    assert len({r["target_set"] for r in [*rows.values(), *limited.values()]}) == 1
    learned = position == "learned"
    assert [r["supported"] for r in rows.values()] == [True, not learned, not learned]
    assert [r["supported"] for r in limited.values()] == [not learned] * 2
    for row in [*rows.values(), *limited.values()]:
        if row["supported"]:
            assert row["tokens_scored"] == 256
            assert row["ppl"] == pytest.approx(math.exp(row["nats"] / 256))
            assert row["bpb"] == pytest.approx(row["nats"] / math.log(2) / row["bytes_scored"])
            assert row["ci95"][0] < row["loss"] < row["ci95"][1]
        else:
            assert row["tokens_scored"] == 0 and row["loss"] is None


def test_a_bos_that_training_never_had_is_refused(fresh, capfd):
    folder = fresh("rope", "data.document_mask=true")
    assert command("eval", f"run={folder}", *QUICK, "eval.bos=true") == 1
    said = capfd.readouterr().err
    assert said.startswith(f"error: eval.bos=true: {folder} was trained with data.document_mask")
    assert not (folder / "eval").exists()


def test_a_finished_row_is_not_computed_again(fresh, capfd):
    folder = fresh("rope")
    first = evaluate(folder, BOTH)
    stamp = (folder / "eval/rope.npz").stat().st_mtime_ns
    capfd.readouterr()
    assert evaluate(folder, BOTH) == first
    assert "10 measurements, 10 there already, 0 tokens to read" in capfd.readouterr().out
    assert (folder / "eval/rope.npz").stat().st_mtime_ns == stamp
    more = evaluate(folder, "protocols=[sliding]", "lengths=[64]", "eval.stride=16")
    assert len(more["rows"]) == 11


def test_rows_that_would_not_belong_together_go_and_it_is_said(fresh, capfd):
    """same_tokens at other lengths has other tokens; a run that went on is another checkpoint."""
    folder = fresh("rope")
    evaluate(folder, *SAME, "windows=[full,48]")
    evaluate(folder, "protocols=[non_overlapping]", "lengths=[64]")
    capfd.readouterr()
    result = evaluate(folder, *SAME, "lengths=[32,128]")
    said = "eval/rope.json: same_tokens at 64, 256 scored other tokens than these lengths share"
    assert said in capfd.readouterr().out
    assert list(by_length(result, "same_tokens")) == [32, 128] and len(result["rows"]) == 3
    assert command("train", f"resume={folder}", "train.steps=21", "tracker.name=none") == 0
    capfd.readouterr()
    assert len(evaluate(folder, *SAME, "lengths=[32]")["rows"]) == 1
    assert "rope.json: its 3 rows are of another checkpoint_step" in capfd.readouterr().out


def test_the_cost_is_said_first_and_an_interrupted_evaluation_goes_on(fresh, monkeypatch, capfd):
    from evaluation import scoring

    folder, said, score = fresh("rope"), [], scoring.score

    def stopping(*arguments, **more):
        said.append(capfd.readouterr().out)
        if len(said) == 4:
            raise KeyboardInterrupt
        return score(*arguments, **more)

    monkeypatch.setattr(scoring, "score", stopping)
    assert command("eval", f"run={folder}", *QUICK, BOTH) == 130
    windows = [(r["context_length"], r["window"]) for r in result_rows(folder)]
    assert windows == [(32, None), (64, None), (64, 32)]  # each written as soon as it was there
    cost = re.search(r"10 measurements, 0 there already, ([\d,]+) tokens to read", said[0])
    assert cost
    first = json.dumps(result_rows(folder))
    monkeypatch.setattr(scoring, "score", score)
    evaluate(folder, BOTH)
    out = capfd.readouterr().out
    left = re.search(r"10 measurements, 3 there already, ([\d,]+) tokens to read", out)
    assert left and number(cost[1]) - number(left[1]) == 8 * (32 + 64 + 64)
    assert json.dumps(result_rows(folder)[:3]) == first
    assert re.search(rf"tokens {left[1]}/{left[1]} .* left", out)  # the bar of a log file ends full


def result_rows(folder: Path) -> list[dict]:
    return json.loads((folder / "eval/rope.json").read_text())["rows"]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_other_code_measures_again_and_says_so_row_by_row(fresh, monkeypatch):
    import eval as command_eval

    folder = fresh("rope")
    first = evaluate(folder, "lengths=[32,64,256]", "protocols=[same_tokens]")
    monkeypatch.setattr(command_eval, "revision", lambda *_: "later")
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
    plain = by_length(evaluate(folder, *SAME), "same_tokens")
    edited = evaluate(folder, *SAME, "position.base=500")
    assert edited["label"] == "rope--rope_base-500" and edited["position_settings"]["base"] == 500
    scaled = evaluate(folder, *SAME, "position=rope_linear", "position.factor=4")
    assert scaled["label"] == "rope--rope_linear_factor-4"
    assert (scaled["position"], scaled["trained_position"]) == ("rope_linear", "rope")
    one = by_length(
        evaluate(folder, *SAME, "position=rope_linear", "position.factor=1"), "same_tokens"
    )
    for length, row in plain.items():
        assert one[length]["loss"] == pytest.approx(row["loss"], abs=1e-6)
        assert abs(by_length(scaled, "same_tokens")[length]["loss"] - row["loss"]) > 1e-6


def test_settings_of_any_length_make_a_file_that_can_be_saved(fresh):
    """A hybrid of two long entries once scored a row and then had no name for its file."""
    folder = fresh("hybrid")
    quick = [*SAME, "lengths=[32]"]
    evaluate(folder, *quick)
    entry = (
        "{name: rope_yarn, window: %d, base: 10000, layout: split_half, fraction: 1.0, keep: 1.0, factor: 8, "
        "original_context: null, alpha: 1, beta: 32, ramp: code, temperature: 0.1}"
    )
    found = []
    for windows in ((8, 16), (8, 17)):
        layers = ", ".join(entry % window for window in windows)
        found.append(evaluate(folder, *quick, f"position.layers=[{layers}]"))
    names = [made["label"] for made in found]
    assert len(set(names)) == 2 and all(len(name) <= 200 for name in names)
    assert all(name.startswith("hybrid--hybrid_layers-") for name in names)
    assert [m["position_settings"]["layers"][1]["window"] for m in found] == [16, 17]
    assert len(list((folder / "eval").glob("*.json"))) == 3


@pytest.mark.parametrize("rule", ["clamp", "interpolate", "random"])
def test_learned_beyond_its_table_only_where_it_is_asked_for(fresh, rule):
    folder = fresh("learned")
    plain = by_length(evaluate(folder, *SAME), "same_tokens")
    extended = evaluate(folder, *SAME, f"position.extend={rule}")
    assert extended["label"] == f"learned--learned_extend-{rule}"
    rows = by_length(extended, "same_tokens")
    assert not plain[64]["supported"] and rows[64]["supported"] and rows[256]["supported"]
    assert (rows[32]["loss"] == plain[32]["loss"]) == (rule == "clamp")


def test_settings_come_from_the_command_line_then_the_run_then_yaml(fresh):
    folder = fresh("rope", "position.base=700")
    result = evaluate(folder, *SAME, "position=rope_yarn", "position.ramp=paper")
    settings = result["position_settings"]
    assert (settings["base"], settings["ramp"], settings["beta"]) == (700, "paper", 32)
    assert (
        evaluate(folder, *SAME, "position=rope_yarn", "position.base=9")["position_settings"][
            "base"
        ]
        == 9
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
        (["windows=[half]"], "windows: half is none of full, trained, or a number"),
        (["windows=[trained]", "lengths=[32]"], "windows=['trained']: no length is longer"),
        (["window=128"], "window is no known key; did you mean windows?"),
        (["eval.bos=perhaps"], "eval.bos"),
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
    Path("outputs/.latest").write_text("outputs/rope/gone")
    assert command("eval", "run=latest") == 1
    assert "run=latest: the newest run was outputs/rope/gone, and is gone" in capfd.readouterr().err


def test_a_damaged_checkpoint_is_named(fresh, capfd):
    folder = fresh("rope")
    weights = checkpoint.find(folder, "last") / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert command("eval", f"run={folder}", "checkpoint=20", *QUICK) == 1
    assert f"{weights} is damaged" in capfd.readouterr().err
