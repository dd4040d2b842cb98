"""The command: what it prints, what it writes, what it tells a tracker."""

import subprocess
import sys
from pathlib import Path

import pytest

from compare import compare
from configs.schema import CompareConfig
from tests.evaluation.report_runs import write_run
from training import tracker

ROOT = Path(__file__).parent.parent


def config(tmp_path: Path, **changes) -> CompareConfig:
    values = {
        "runs": [str(tmp_path / "runs" / "*")],
        "out": str(tmp_path / "report"),
        "protocol": "same_tokens",
        "baseline": None,
        "claim": "this text",
        "tracker": {"name": "none"},
    }
    return CompareConfig(**(values | changes))


@pytest.fixture
def runs(tmp_path):
    for label, loss in (("alibi", 3.0), ("rope", 4.0)):
        write_run(
            tmp_path / "runs" / label,
            label=label,
            loss=lambda n, c, loss=loss: loss,
            limit=256 if label == "rope" else None,
            protocols=("same_tokens",),
        )
    return tmp_path


def test_prints_the_table_and_where_the_report_lies(runs, capsys):
    write_run(runs / "runs" / "waiting", loss=lambda n, c: 3.0, evaluated=False)
    compare(config(runs), [])
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("rope ")]
    assert line.split()[-1] == "unsupported"
    assert "this ranks trained models, not schemes" in out
    assert f"type: python eval.py run={runs}/runs/waiting" in out
    assert out.endswith(f"done: {runs}/report/index.html\n")
    assert (runs / "report" / "index.html").read_text().startswith("<!DOCTYPE html>")


def test_warnings_are_printed(runs, capsys):
    other = {"header": {"data_hash": "e" * 64}, "protocols": ("same_tokens",)}
    write_run(runs / "runs" / "other", label="fire", loss=lambda n, c: 3.0, **other)
    compare(config(runs), [])
    assert "warning: These runs were scored on different text" in capsys.readouterr().out


def test_a_run_that_went_on_since_is_remarked_on(runs, capsys):
    for name in ("step-000001", "step-999999", ".draft-step-9999999"):
        (runs / "runs/rope/checkpoints" / name).mkdir(parents=True)
    (runs / "runs/alibi/checkpoints/step-000001").mkdir(parents=True)
    compare(config(runs), [])
    out = capsys.readouterr().out
    assert "runs/rope was measured at step 50 and is at 999,999 now; type: python eval" in out
    assert "runs/alibi was measured" not in out


def test_tracker_gets_one_report_run(runs, monkeypatch):
    seen = []

    class Recorder(tracker.NoTracker):
        def start(self, **run) -> None:
            seen.append((run["job_type"], run["folder"]))

        def log_report(self, table, page) -> None:
            seen.append((table, page))

        def finish(self, exit_code: int) -> None:
            seen.append(exit_code)

    monkeypatch.setitem(tracker.TRACKERS, "none", Recorder)
    compare(config(runs), [])
    started, (table, page), code = seen
    assert started == ("compare", runs / "report") and code == 0
    assert page == runs / "report" / "index.html"
    assert [(row["scheme"], row["512"] == "unsupported") for row in table] == [
        ("alibi", False),
        ("rope", True),
    ]


def test_command_line(runs):
    command = [sys.executable, "compare.py", f"out={runs}/report"]

    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True)

    done = run(f"runs=[{runs}/runs/*]", "baseline=rope")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("index.html\n")
    failed = run(f"runs=[{runs}/runs/absent]")
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert f"runs={runs}/runs/absent is no run folder" in failed.stderr + failed.stdout
