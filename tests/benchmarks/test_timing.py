"""What benchmarks rest on: turns and clean samples, equal shapes, options, scheme files read without YAML."""

import json

import pytest
import yaml
from conftest import ROOT, SCHEMES

from benchmarks import (
    evaluation,
    gpu,
    options,
    peers,
    profile_step,
    quality_per_minute,
    speed,
    subjects,
    timing,
)
from benchmarks.timing import Sample
from errors import UserError
from training.cost import flops_per_token


def test_the_same_model_at_the_same_shape():
    """Equal sizes, so that a ratio is one of code."""
    shape = subjects.shape("3M", 64)
    model, _ = peers.llama(shape, None)
    ours = subjects.ours(shape, "rope")
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in ours.parameters())
    d, ff, L, V = 256, 704, 4, 4096
    matrices = L * (4 * d * d + 3 * d * ff) + V * d
    found = flops_per_token(ours, shape.config)
    assert found == pytest.approx(6 * matrices + 6 * L * 64 * d, rel=1e-3)  # norms are the rest
    assert found == flops_per_token(model, shape.config)


def test_a_case_that_fails_or_hangs_is_a_line_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "tidy", lambda: None)

    def hang():
        while True:
            pass

    cases = [({"case": "bad"}, lambda: 1 / 0), ({"case": "slow"}, hang), ({"case": "late"}, dict)]
    journal = gpu.Journal(tmp_path / "gpu.jsonl")
    gpu.run_part("x", iter(cases), journal, 1.0, gpu.time.monotonic() + 1.0)
    bad, slow, late = map(json.loads, (tmp_path / "gpu.jsonl").read_text().splitlines())
    assert bad["error"].startswith("ZeroDivisionError") and slow["error"].startswith("OutOfTime")
    assert late["skipped"]


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_are_read_as_yaml_reads_them(name):
    found, path = subjects.scheme(name), ROOT / f"configs/position/{name}.yaml"
    assert found == yaml.safe_load(path.read_text())
    assert str(found) == str(yaml.safe_load(path.read_text()))  # 8 is not 8.0


def test_only_clean_samples_count():
    a = [Sample(1.0, True), Sample(9.0, False), Sample(3.0, True)]
    b = [Sample(2.0, True), Sample(1.0, True), Sample(2.0, True)]
    assert timing.seconds(a) == {
        "seconds": 2.0, "fastest": 1.0, "slowest": 3.0, "clean": 2, "rounds": 3
    }  # fmt: skip
    assert timing.ratio(list(zip(a, b, strict=True))) == {
        "ratio": 1.0,
        "low": 0.5,
        "high": 1.5,
        "rounds": 2,
    }
    noisy = [Sample(1.0, False), Sample(2.0, False)]
    assert timing.seconds(noisy)["clean"] == 0 and timing.seconds(noisy)["seconds"] == 1.5
    assert timing.seconds([Sample(1.0, None)])["clean"] is None


def test_a_busy_neighbour_makes_a_sample_unclean(monkeypatch):
    used = iter([0.0, 0.5, 0.5, 0.51])
    monkeypatch.setattr(timing, "others", lambda: next(used))
    since = timing.others()
    assert timing.quiet(since, 1.0) is False
    assert timing.quiet(timing.others(), 1.0) is True


def test_turns_are_rounds():
    order = []
    cases = {name: lambda name=name: order.append(name) for name in "abcd"}
    taken, pairs = timing.take_turns(cases, {"d": [], "a": ["b", "c"], "c": []}, 2, patience=0)
    assert "".join(order) == "dabacac" * 2
    assert {name: len(s) for name, s in taken.items()} == {"a": 6, "b": 2, "c": 4, "d": 2}
    a, b, c = ([s.seconds for s in taken[name]] for name in "abc")
    found = {name: [(x.seconds, y.seconds) for x, y in pairs[name]] for name in "bc"}
    assert found["b"] == [(b[0], (a[0] + a[1]) / 2), (b[1], (a[3] + a[4]) / 2)]
    assert found["c"] == [(c[0], (a[1] + a[2]) / 2), (c[2], (a[4] + a[5]) / 2)]


@pytest.mark.parametrize(
    ("word", "said"),
    [("round=3", "rounds"), ("rounds=many", "rounds=many"), ("rounds", "key=value")],
)
def test_a_wrong_option_is_named(word, said):
    with pytest.raises(UserError, match=said):
        options.parse(speed.Settings, [word])


@pytest.mark.parametrize("benchmark", [evaluation, gpu, profile_step, quality_per_minute, speed])
def test_help_shows_each_setting_as_it_is_given(benchmark):
    shown = {line.split()[0] for line in options.explained(benchmark.Settings)}
    given = [word for word in shown if not word.endswith("=")]
    assert options.parse(benchmark.Settings, given) == benchmark.Settings()
    assert {word.partition("=")[0] for word in shown} == set(benchmark.Settings.__annotations__)
    assert any("  " in line.strip() for line in options.explained(benchmark.Settings)), "comments"


def test_a_path_that_is_no_checkout_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nanogpt=.*model\.py"):
        peers.nanogpt(subjects.SHAPES["tiny"], str(tmp_path))
    with pytest.raises(peers.Absent, match="litgpt=/path"):
        peers.litgpt(subjects.SHAPES["tiny"], None)


@pytest.mark.parametrize(
    ("benchmark", "words", "said"),
    [
        (speed, ["out={file}"], "speed-peers.json cannot be written: Not a directory"),
        (speed, ["out={folder}", "rounds=0"], "rounds=0"),
        (speed, ["out={folder}", "tokens=64", "lengths=32,128"], "tokens=64 must be from 128"),
        (speed, ["out={folder}", "parts=peer"], "did you mean peers"),
        (speed, ["parts=schemes", "scheme_size=tiny"], "docs/results is for real sizes"),
        (profile_step, ["out={file}/x.json"], "x.json cannot be written: Not a directory"),
        (profile_step, ["out={folder}/x.json", "steps=0"], "steps=0"),
        (profile_step, ["size=tiny"], "is for real sizes"),
        (evaluation, ["out={folder}"], "cannot be written: Is a directory"),
        (evaluation, ["out={folder}/x.json", "lengths=0"], "lengths=0"),
        (quality_per_minute, ["out={folder}"], "cannot be written: Is a directory"),
    ],
)
def test_what_cannot_end_well_is_refused_before_any_work(tmp_path, benchmark, words, said):
    (tmp_path / "file").touch()
    places = {"file": tmp_path / "file", "folder": tmp_path}
    words = [word.format(**places) for word in words]
    with pytest.raises(UserError, match=said):
        benchmark.measure(options.parse(benchmark.Settings, words))
