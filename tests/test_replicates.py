"""The check on real runs: which splits it makes, what it calls different, and what it refuses."""

import json

import numpy as np
import pytest
from conftest import command
from scipy import stats

from benchmarks import replicates
from docs import methodology
from errors import UserError
from tests.evaluated import SAME, evaluate
from tests.evaluation.report_runs import flat, loaded, steep, write_run, write_seeds


def test_halves_are_made_once_each():
    found = list(replicates.halves([3, 1, 2, 6, 5, 4]))
    assert len(found) == 10  # C(6, 3) / 2
    assert len({frozenset(map(frozenset, pair)) for pair in found}) == 10
    for a, b in found:
        assert sorted(a + b) == [1, 2, 3, 4, 5, 6] and len(a) == len(b) == 3
        assert a == sorted(a) and b == sorted(b)


@pytest.fixture
def noisy(tmp_path):
    """Two schemes of four seeds; rope grows worse with length, and every run has noise of its own."""
    rng = np.random.default_rng(0)
    for label, loss in (("rope", steep), ("alibi", flat)):
        for seed in (1, 2, 3, 4):
            own = {n: 0.05 * rng.normal() for n in (64, 128, 256, 512)}
            limit = 256 if label == "alibi" else None
            noise = lambda n, c, loss=loss, own=own: loss(n, c) + own[n]  # noqa: E731
            write_seeds(tmp_path, label, noise, seeds=(seed,), limit=limit)
    return tmp_path


def test_counts_are_those_of_paired_t_tests(noisy):
    made = replicates.measure([f"{noisy}/rope/*", f"{noisy}/alibi/*"])
    rows = {(row["scheme"], row["place"]): row for row in made["same_scheme"]}
    assert ("rope", "512") in rows and ("alibi", "512") not in rows  # unsupported there
    for (scheme, place), row in rows.items():
        means = {
            seed: scores.nats.mean(dtype=np.float64)
            for seed, scores in loaded(noisy, scheme, "same_tokens", int(place)).items()
        }
        p = [
            stats.ttest_rel([means[s] for s in a], [means[s] for s in b]).pvalue
            for a, b in replicates.halves(list(means))
        ]
        assert (row["splits"], row["this text"]) == (3, sum(value < 0.05 for value in p))
    this = {r["place"]: r for r in made["two_schemes"] if r["claim"] == "this text"}
    assert list(this) == ["64", "128", "256"]
    means = [
        [s.nats.mean(dtype=np.float64) for s in loaded(noisy, name, "same_tokens", 256).values()]
        for name in ("alibi", "rope")
    ]
    wanted = stats.ttest_rel(*means)
    assert this["256"]["p"] == pytest.approx(wanted.pvalue, rel=1e-4)
    assert this["256"]["estimate"] == pytest.approx(np.mean(means[0]) - np.mean(means[1]), abs=1e-6)
    assert this["256"]["p_holm"] >= this["256"]["p"]


def test_the_page_shows_what_was_written(noisy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(methodology, "RESULTS", tmp_path)
    assert methodology.replicates().startswith("Not measured yet")
    replicates.main([f"{noisy}/rope/*", f"{noisy}/alibi/*"], tmp_path / "replicates.json")
    made = json.loads((tmp_path / "replicates.json").read_text())
    wrong, splits = (sum(r[key] for r in made["same_scheme"]) for key in ("this text", "splits"))
    assert f"this text: {wrong} of {splits} splits" in capsys.readouterr().out
    shown = methodology.replicates()
    assert f"| all |  | {splits} | {wrong} |" in shown
    assert (
        f"{made['two_schemes'][0]['estimate']:+.4f}" in shown
        and "alibi minus loss of rope" in shown
    )


def test_runs_that_do_not_fit_the_question_are_refused(tmp_path):
    for label in ("rope", "alibi"):
        write_seeds(tmp_path, label, flat, seeds=(1, 2, 3, 4), protocols=("same_tokens",))
    both = [f"{tmp_path}/rope/*", f"{tmp_path}/alibi/*"]
    with pytest.raises(UserError, match=r"two schemes; these are 1: rope \(4 seeds\)"):
        replicates.measure(both[:1])
    with pytest.raises(UserError, match=r"even number of seeds"):
        replicates.measure([*both[:1], *(f"{tmp_path}/alibi/*_{seed}" for seed in (1, 2, 3))])
    for seed in (1, 2, 3, 4):
        run = tmp_path / "fire" / str(seed)
        write_run(run, label="fire", loss=flat, seed=seed, header={"data_hash": "e" * 64})
    with pytest.raises(UserError, match="scored on different text"):
        replicates.measure([both[0], f"{tmp_path}/fire/*"])


@pytest.mark.slow
def test_real_runs(smoke, tmp_path, capsys):
    """Trained, evaluated, split and compared, as the page says."""
    folders = [
        smoke(position, f"seed={seed}", "train.steps=3")
        for position in ("rope", "alibi")
        for seed in (1, 2, 3, 4)
    ]
    for folder in folders:
        evaluate(folder, *SAME, "lengths=[32,256]")
    made = replicates.measure([str(folder) for folder in folders])
    assert made["seeds"] == {"rope": [1, 2, 3, 4], "alibi": [1, 2, 3, 4]}
    assert [(r["scheme"], r["place"], r["splits"]) for r in made["same_scheme"]] == [
        (scheme, place, 3) for scheme in ("rope", "alibi") for place in ("32", "256")
    ]
    assert {row["place"] for row in made["two_schemes"]} == {"32", "256"}
    runs = ",".join(map(str, folders))
    out = tmp_path / "report"
    assert command("compare", f"runs=[{runs}]", f"out={out}", "claim=text like it") == 0
    assert "on text like it" in (out / "report.md").read_text()
