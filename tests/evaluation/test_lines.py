"""What stands in a report's tables beside plain perplexity: window baselines, gains, claims, words."""

import csv
import math

import numpy as np
import pytest

from errors import UserError
from evaluation import results
from evaluation.statistics import context_gain, scheme_interval
from tests.evaluation.report_runs import (
    cells,
    flat,
    loaded,
    report,
    steep,
    tables,
    write_run,
    write_seeds,
)


def test_a_window_is_a_line_beside_its_scheme(tmp_path):
    """Attention that sees 128 tokens loses nothing beyond them, and gains nothing."""
    for seed in (1, 2, 3):
        run = tmp_path / str(seed)
        write_run(run, loss=steep, seed=seed, protocols=("same_tokens", "per_position"))
        limited = {"window": 128, "lengths": (256, 512), "protocols": ("same_tokens",)}
        write_run(run, loss=lambda n, c: 2.9, seed=seed, **limited)
    made = report(tmp_path / "*")
    assert [part.title for part in made.page.parts][:2] == [
        "Same tokens, more context",
        "Loss by position, windows of 512",
    ]
    assert "second baseline" in made.page.parts[0].definition
    assert "second baseline" not in made.page.parts[1].definition
    shown = tables(made)
    for title in ("Perplexity", "Context gain", "Ratio to the trained length", "Bits per byte"):
        assert [row[0].text for row in shown[title].rows] == ["rope", "rope, window 128"]
        line = cells(shown[title], "rope, window 128")
        assert (line["64"].text, line["128"].text) == ("–", "–")
    assert cells(shown["Perplexity"], "rope, window 128")["512"].strong
    gains = shown["Context gain"]
    assert cells(gains, "rope, window 128")["512"].text == "+0.1000"
    assert cells(gains, "rope, window 128")["512"].strong
    assert cells(gains, "rope")["512"].text == "-2.0000" and not cells(gains, "rope")["512"].strong
    assert cells(gains, "rope")["128"].text == "0"
    rows = list(csv.DictReader(made.measurements["same_tokens.csv"].splitlines()))
    assert [(r["scheme"], r["window"]) for r in rows] == [("rope", "")] * 4 + [("rope", "128")] * 4
    assert float(rows[7]["gain"]) == pytest.approx(0.1, abs=1e-6)
    assert len({r["target_set"] for r in rows if r["state"] == "measured"}) == 1
    for figure in made.page.parts[0].figures:
        assert "window 128" in figure.svg
    assert "window" not in made.page.parts[1].figures[0].svg


def test_claims_name_what_they_speak_of(sweep):
    both = {
        claim: report(sweep / "*" / "*", claim=claim) for claim in ("this text", "text like it")
    }
    for claim, made in both.items():
        assert f"claims about {claim}" in made.page.facts
        assert f"on {claim}." in made.page.finding
        for title in ("Perplexity", "Context gain", "Difference from alibi"):
            assert f" on {claim}." in tables(made)[title].note
        overs = [
            r["interval_over"]
            for r in csv.DictReader(made.measurements["same_tokens.csv"].splitlines())
        ]
        assert {over.endswith(f", {claim}") for over in overs if over} == {True}
    runs = loaded(sweep, "rope", "same_tokens", 512)
    rows = list(csv.DictReader(both["text like it"].measurements["same_tokens.csv"].splitlines()))
    (row,) = [r for r in rows if (r["scheme"], r["place"]) == ("rope", "512")]
    wanted = scheme_interval(runs, "text like it")
    assert wanted and float(row["loss_low"]) == pytest.approx(wanted.low, rel=1e-12)
    assert wanted != scheme_interval(runs)
    with pytest.raises(UserError, match="claim=all text is none of this text, text like it"):
        report(sweep / "*" / "*", claim="all text")


@pytest.mark.parametrize("claim", ["this text", "text like it"])
def test_a_gain_is_of_the_claim(tmp_path, claim):
    rng = np.random.default_rng(0)
    write_seeds(tmp_path, "rope", lambda n, c: 3 + 0.3 * rng.normal(size=c.shape))
    made = report(tmp_path / "rope" / "*", claim=claim)
    rows = list(csv.DictReader(made.measurements["same_tokens.csv"].splitlines()))
    (row,) = [r for r in rows if r["place"] == "512"]
    crop, long = (loaded(tmp_path, "rope", "same_tokens", n) for n in (128, 512))
    wanted = context_gain(crop, long, claim)
    assert wanted is not None and wanted.low < wanted.estimate < wanted.high
    found = [float(row[key]) for key in ("gain", "gain_low", "gain_high")]
    assert found == pytest.approx([wanted.estimate, wanted.low, wanted.high], rel=1e-12)


def test_words_have_a_table_where_there_are_words(tmp_path):
    write_run(tmp_path / "run", loss=flat, words=np.array([3000, 2000]))
    made = report(tmp_path / "run")
    assert "Word-level perplexity" not in tables(made)
    write_run(tmp_path / "none", loss=flat)
    assert "Word-level perplexity" not in tables(report(tmp_path / "none"), 1)
    cell = cells(tables(made, 1)["Word-level perplexity"], "rope")["512"]
    result = results.load(tmp_path / "run/eval/rope.json")
    (row,) = [
        r for r in result.rows if r["protocol"] != "same_tokens" and r["context_length"] == 512
    ]
    assert row["words"] == 5000
    assert cell.text == f"{math.exp(row['nats'] / 5000):,.0f}"
