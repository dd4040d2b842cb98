"""metrics.jsonl: strict, complete over resumes, and readable after a crash."""

import json
import warnings

import pytest

from errors import UserError
from training.metrics import MetricsFile, read_metrics


def test_metrics_file_is_strict_json_and_counts_attempts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for expected in (0, 1):
        with MetricsFile(path) as metrics:
            assert metrics.attempt == expected
            metrics.log(
                {"train/loss": float("nan"), "val/ppl": float("inf"), "train/lr": 0.1},
                step=1 + expected,
                tokens=64,
                seconds=0.5,
                batch=lambda: "0123",
            )
            lines = path.read_text().splitlines()  # written at once, before closing
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert records[1] == {
        "attempt": 1,
        "step": 2,
        "tokens": 64,
        "seconds": 0.5,
        "batch": "0123",
        "train/loss": None,
        "val/ppl": None,
        "train/lr": 0.1,
    }


def test_resume_below_the_last_step_keeps_every_step_and_the_newest_value(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for steps, loss in ((range(1, 51), 2.0), (range(41, 61), 1.0)):
        with MetricsFile(path) as metrics:
            for step in steps:
                metrics.log({"train/loss": loss}, step=step, tokens=step, seconds=0.0)
                if loss == 2.0 and step == 50:
                    metrics.log({"val/loss": 7.0}, step=step, tokens=step, seconds=0.0)
    records = read_metrics(path)
    assert [record["step"] for record in records] == list(range(1, 61))
    assert [record["train/loss"] for record in records] == [2.0] * 40 + [1.0] * 20
    assert records[49]["val/loss"] == 7.0 and records[49]["attempt"] == 1


def test_a_torn_line_costs_only_itself(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"attempt": 0, "step": 1, "tokens": 1}\n{"attempt": 0, "step": 2, "tok')
    with MetricsFile(path) as metrics:
        metrics.log({"train/loss": 1.0}, step=2, tokens=2, seconds=0.0)
    with pytest.warns(UserWarning, match=r"metrics\.jsonl, line 2: damaged"):
        records = read_metrics(path)
    assert [(record["step"], record["attempt"]) for record in records] == [(1, 0), (2, 1)]


def test_no_metrics_file_means_no_records(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize(
    "line", ["", "nul", "[1, 2]", "7", '{"step": 1}', '{"attempt": 0, "step": "1"}', "{'step': 1}",
             '{"attempt": 0, "step": 2, "train/loss": "low"}', '{"attempt": 0, "step": 2, "x": NaN}']
)  # fmt: skip
def test_a_bad_line_is_skipped_with_a_warning(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    good = b'{"attempt": 0, "step": 1, "train/loss": 2.5, "batch": "0f"}\n'
    bad = b"\0\xff\xfe" if line == "nul" else line.encode()
    path.write_bytes(good + bad + b"\n" + good.replace(b"1,", b"3,"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [record["step"] for record in read_metrics(path)] == [1, 3]
    assert [f"{path}, line 2: damaged" in str(w.message) for w in caught] == [True] * bool(line)


def test_attempts_go_on_where_the_file_is_lost(tmp_path):
    with MetricsFile(tmp_path / "metrics.jsonl", after=4) as metrics:
        assert metrics.attempt == 5


def test_a_full_disk_is_one_line(tmp_path):
    """/dev/full is a disk without space."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics._file = open("/dev/full", "a")  # noqa: SIM115
    with (
        pytest.raises(UserError, match=r"metrics\.jsonl cannot be written: No space left"),
        metrics,
    ):
        metrics.log({"train/loss": 1.0}, step=1, tokens=1, seconds=0.0)
