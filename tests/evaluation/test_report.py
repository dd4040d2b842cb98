"""The comparison report, made from run folders on disk with made-up losses."""

import csv
import json
import math

import numpy as np
import pytest

from errors import UserError
from evaluation import results
from evaluation.collect import find_folders, make_groups, read_runs
from evaluation.differences import differences
from evaluation.measures import make_sections
from evaluation.page import render_html
from evaluation.statistics import context_gain, holm, paired_difference, scheme_interval
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


@pytest.fixture(scope="module")
def compared(sweep):
    return report(sweep / "*" / "*")


def test_numbers_are_those_of_the_statistics(sweep, compared):
    rows = list(csv.DictReader(compared.measurements["same_tokens.csv"].splitlines()))
    (row,) = [r for r in rows if (r["scheme"], r["place"]) == ("rope", "512")]
    runs = loaded(sweep, "rope", "same_tokens", 512)
    wanted = scheme_interval(runs)
    gain = context_gain(loaded(sweep, "rope", "same_tokens", 128), runs)
    assert wanted is not None and gain is not None
    assert float(row["loss"]) == pytest.approx(wanted.estimate, rel=1e-12)
    assert float(row["ppl"]) == pytest.approx(math.exp(wanted.estimate), rel=1e-12)
    assert float(row["ppl_low"]) == pytest.approx(math.exp(wanted.low), rel=1e-12)
    assert float(row["ppl_high"]) == pytest.approx(math.exp(wanted.high), rel=1e-12)
    assert float(row["ratio"]) == pytest.approx(math.exp(2.0), rel=1e-6)
    assert float(row["ratio_low"]) == pytest.approx(math.exp(-gain.high), rel=1e-12)
    assert row["seeds"] == "3" and "3 seeds" in row["interval_over"]


def test_table_shows_the_same_numbers(sweep, compared):
    shown = tables(compared)
    runs = [
        scores.nats.mean(dtype=np.float64)
        for scores in loaded(sweep, "rope", "same_tokens", 512).values()
    ]
    cell = cells(shown["Perplexity"], "rope")["512"]
    assert cell.text == f"{math.exp(np.mean(runs)):.1f}" and " to " in cell.detail
    assert cells(shown["Ratio to the trained length"], "rope")["512"].text == "7.39"
    assert cells(shown["Ratio to the trained length"], "rope")["128"].text == "1.00"
    assert cells(shown["Ratio to the trained length"], "alibi")["512"].text == "1.00"
    assert compared.headline == shown["Perplexity"]
    assert compared.headline.head == ["scheme", "seeds", "64", "128", "256", "512"]


def test_bold_is_the_lowest_of_a_column(compared):
    shown = tables(compared)["Perplexity"]
    assert cells(shown, "alibi")["512"].strong and not cells(shown, "rope")["512"].strong


def test_unsupported_is_said_and_not_measured(compared):
    shown = tables(compared)
    for title in ("Perplexity", "Ratio to the trained length", "Bits per byte"):
        assert cells(shown[title], "learned")["256"].text == "unsupported"
        assert cells(shown[title], "learned")["128"].text != "unsupported"


def test_second_protocol_has_its_own_table_and_definition(compared):
    part = compared.page.parts[1]
    assert part.title == "Non-overlapping windows" and "fewer tokens" in part.definition
    assert cells(tables(compared, 1)["Perplexity"], "rope")["512"].text
    assert "Ratio to the trained length" not in tables(compared, 1)


def test_protocol_chooses_what_stands_first(sweep):
    made = report(sweep / "alibi" / "*", protocol="non_overlapping")
    assert made.page.parts[0].title == "Non-overlapping windows"
    with pytest.raises(UserError, match="protocol=ppl is none of same_tokens"):
        report(sweep / "alibi" / "*", protocol="ppl")


def test_difference_is_paired_and_against_the_baseline(sweep):
    made = report(sweep / "*" / "*", baseline="rope")
    table = tables(made)["Difference from rope"]
    pair = [loaded(sweep, label, "same_tokens", 512) for label in ("alibi", "rope")]
    wanted = paired_difference(pair[0], pair[1])
    assert wanted is not None
    assert cells(table, "alibi")["512"].text == f"{wanted.estimate:+.3f}"
    assert cells(table, "alibi")["512"].strong
    assert cells(table, "learned")["512"].text == "–"
    with pytest.raises(UserError, match="baseline=fire is none of the schemes: alibi"):
        report(sweep / "*" / "*", baseline="fire")


def test_ahead_is_said_where_every_difference_is_clear(compared):
    assert "alibi is ahead of every other scheme" in compared.page.finding
    assert "4 times the length trained at" in compared.page.finding


def test_noise_over_seeds_is_not_ahead(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        for seed in (1, 2, 3):
            noise = 0.2 * rng.normal()
            write_seeds(tmp_path, label, lambda n, c, noise=noise: 3 + noise, seeds=(seed,))
    finding = report(tmp_path / "*" / "*").page.finding
    assert "not clearly better" in finding and "ahead" not in finding


def test_one_seed_never_makes_a_claim_about_a_scheme(tmp_path):
    write_seeds(tmp_path, "alibi", flat, seeds=(1,))
    write_seeds(tmp_path, "rope", steep, seeds=(1,))
    made = report(tmp_path / "*" / "*")
    page = render_html(made.page)
    assert "ranks trained models, not schemes" in made.page.finding
    assert "ahead" not in page and "Difference from" not in page
    assert "says nothing about its scheme" in tables(made)["Perplexity"].note
    rows = list(csv.DictReader(made.measurements["same_tokens.csv"].splitlines()))
    assert {row["interval_over"] for row in rows} == {results.CHECKPOINT_UNIT}


def test_one_scheme_alone_is_described(tmp_path):
    write_seeds(tmp_path, "rope", steep, seeds=(1,))
    made = report(tmp_path / "*" / "*")
    assert made.page.title == "How far rope reaches beyond the 128 tokens it was trained at"
    assert "7.39 times that at the trained length" in made.page.finding


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"header": {"data_hash": "e" * 64}}, "scored on different text"),
        ({"header": {"tokenizer_hash": "e" * 64}}, "different tokenizers"),
        (
            {"header": {"trained_context": 256}},
            "different context lengths: 128 (alibi); 256 (rope)",
        ),
        ({"header": {"checkpoint_step": 30}}, "numbers of tokens: 25,600 (alibi); 15,360 (rope)"),
        ({"header": {"precision": "bf16"}}, "different precision"),
        ({"header": {"bos": True}}, "with and without BOS: False (alibi); True (rope)"),
        ({"lengths": (64, 128, 256)}, "did not score the same tokens under same_tokens"),
    ],
)
def test_what_is_not_comparable_is_warned_of(tmp_path, change, said):
    write_seeds(tmp_path, "alibi", flat, seeds=(1, 2), protocols=("same_tokens",))
    write_seeds(tmp_path, "rope", steep, seeds=(1, 2), protocols=("same_tokens",), **change)
    made = report(tmp_path / "*" / "*")
    assert len(made.page.warnings) == 1 and said in made.page.warnings[0]
    assert "compares no schemes" in made.page.finding and "ahead" not in made.page.finding
    page = render_html(made.page)
    assert page.index("Not comparable as they stand") < page.index('class="finding"')


def test_comparable_runs_have_no_warning(compared):
    assert compared.page.warnings == [] and "Not comparable" not in render_html(compared.page)


def test_groups_of_one_label_are_named_by_what_differs(tmp_path):
    for base, folder in ((10000, "x"), (500000, "y")):
        position = {"position": {"name": "rope", "base": base}}
        write_seeds(tmp_path / folder, "rope", flat, seeds=(1, 2), config=position)
    made = report(tmp_path / "*" / "rope" / "*")
    names = [row[0].text for row in made.headline.rows]
    assert names == ["rope (position.base=10000)", "rope (position.base=500000)"]
    assert [row[1].text for row in made.headline.rows] == ["2", "2"]


def test_a_repeated_seed_is_no_further_seed(tmp_path):
    for name in ("2026-01-31_12-00-00", "2026-02-01_12-00-00"):
        write_run(tmp_path / name, loss=flat, seed=1)
    made = report(tmp_path / "*")
    assert made.headline.rows[0][1].text == "1"
    (remark,) = made.page.remarks
    assert remark.startswith(f"Left out: {tmp_path}/2026-01-31_12-00-00 repeats seed 1")


def test_positions_are_drawn_for_the_longest_window(tmp_path):
    write_run(tmp_path / "run", loss=flat, protocols=("same_tokens", "per_position"))
    made = report(tmp_path / "run")
    assert [part.title for part in made.page.parts][:2] == [
        "Same tokens, more context",
        "Loss by position, windows of 512",
    ]
    assert {"per_position-at-64.csv", "per_position-at-512.csv"} <= made.measurements.keys()


def test_overflow_and_not_finite_are_words(tmp_path):
    write_run(tmp_path / "run", loss=lambda n, c: {512: np.inf, 256: 800.0}.get(n, 3.0))
    shown = cells(report(tmp_path / "run").headline, "rope")
    assert shown["512"].text == "not finite" and shown["256"].text == "overflow"


def test_runs_table_holds_what_a_reader_must_know(sweep, compared):
    (row, *_) = csv.DictReader(compared.measurements["runs.csv"].splitlines())
    assert row["run"] == str(sweep / "alibi" / "2026-01-31_12-00-00_1") and row["seed"] == "1"
    assert (row["trained tokens"], row["parameters"]) == ("25600", "1000")
    assert row["of the scheme"] == "10" and row["BOS"] == "no" and len(row["config hash"]) == 12
    assert row["data hash"] == "d" * 12 and row["tokenizer hash"] == "f" * 12
    listing = compared.page.parts[-1].listing
    assert "context_length: 128" in listing and "seed" not in listing


def test_damaged_results_name_the_file(tmp_path):
    write_run(tmp_path / "run", loss=flat)
    path = tmp_path / "run" / "eval" / "rope.json"
    content = json.loads(path.read_text())
    content["rows"][0]["nats"] += 1.0
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"rope\.json: rows\[0\]\.nats=.* do not belong together"):
        report(tmp_path / "run")


def test_holm_counts_every_difference_of_the_table(sweep):
    folders, _ = find_folders([str(sweep / "*" / "*")])
    groups, _ = make_groups(read_runs(folders, lambda folder: []))
    alibi, learned, rope = groups
    section = make_sections(groups, "same_tokens", "this text")[0]
    (alone,) = differences(section, [(learned, alibi)], ["128"])
    pairs = [(learned, alibi), (rope, alibi)]
    among = {(d.group, d.place): d for d in differences(section, pairs, section.places)}
    assert among.keys() == {("rope", p) for p in section.places} | {
        ("learned", "64"),
        ("learned", "128"),
    }
    assert among["learned", "128"].interval == alone.interval
    assert alone.p_holm == alone.interval.p_value
    p = [d.interval.p_value or 0.0 for d in among.values()]
    assert [d.p_holm for d in among.values()] == pytest.approx(holm(p)) and holm(p) != p
