"""The tracker against the real wandb: offline, and online against a small server of our own."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from conftest import ROOT

from errors import UserError
from tests.training.wandb_server import Server
from training.tracker import TRACKERS, NoTracker, WandbTracker, evaluation_points

SETTINGS = {
    "project": "lengthwise",
    "mode": "auto",
    "entity": None,
    "group": None,
    "tags": ["small"],
}


@pytest.fixture
def clean_wandb(tmp_path, monkeypatch):
    """wandb without an account, all of its files in tmp, started afresh."""
    import wandb

    for key in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_SILENT"):
        monkeypatch.delenv(key, raising=False)
    for key in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        (tmp_path / key).mkdir()
        monkeypatch.setenv(key, str(tmp_path / key))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.teardown()
    yield wandb
    wandb.teardown()


def start(tracker: NoTracker, folder: Path, scheme: str, run_id: str | None = None) -> None:
    config = {"position": {"name": scheme}, "seed": 1}
    tracker.start(
        folder=folder, name=scheme, group="schemes", job_type="train", config=config, run_id=run_id
    )


def inspect(folder: Path) -> list[dict]:
    """Everything wandb wrote for the one run below `folder`, through its own command."""
    (file,) = folder.glob("wandb/*run-*/*.wandb")
    command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", file.parent]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def of(records: list[dict], kind: str) -> list[dict]:
    return [record[kind] for record in records if record["type"] == kind]


def history(records: list[dict]) -> list[dict]:
    return [{k: v for k, v in x["item"].items() if k[0] != "_"} for x in of(records, "history")]


def summary(records: list[dict]) -> dict:
    merged: dict = {}
    for record in of(records, "summary"):
        merged |= record["update"]
    return merged


def test_jobs_of_one_process_stay_apart_even_when_one_fails(clean_wandb, tmp_path, capfd):
    ids = []
    for index, scheme in enumerate(["rope", "learned", "alibi"]):
        with suppress(ZeroDivisionError), WandbTracker(**SETTINGS) as tracker:
            start(tracker, tmp_path / scheme, scheme)
            ids.append(tracker.run_id)
            tracker.log({"train/loss": 3.0 + index}, step=10, tokens=640)
            tracker.log({"val/loss": 4.0 + index}, step=10, tokens=640)
            _ = 1 / 0 if scheme == "learned" else None
    assert len(set(ids)) == 3
    assert capfd.readouterr().err == ""
    for index, scheme in enumerate(["rope", "learned", "alibi"]):
        records = inspect(tmp_path / scheme)
        (run,) = of(records, "run")
        assert run["run_id"] == ids[index]
        assert run["config"]["update"]["position"] == {"name": scheme}
        assert (run["run_group"], run["job_type"], run["tags"]) == ("schemes", "train", ["small"])
        assert history(records) == [{"train/loss": 3 + index, "val/loss": 4 + index, "tokens": 640}]
        assert of(records, "exit")[-1].get("exit_code", 0) == (scheme == "learned")


def test_curves_are_drawn_over_tokens(clean_wandb, tmp_path):
    with WandbTracker(**SETTINGS) as tracker:
        start(tracker, tmp_path, "rope")
        tracker.log({"val/loss": 2.0}, step=1, tokens=64)
        tracker.log({"val/loss": 3.0}, step=2, tokens=128)
    records = inspect(tmp_path)
    axes = {m.get("glob_name") or m["name"]: m.get("step_metric") for m in of(records, "metric")}
    assert (axes["train/*"], axes["val/*"], axes["val/loss"]) == ("tokens", "tokens", "tokens")
    assert summary(records)["val/loss"] == {"min": 2, "last": 3}


def test_auto_without_login_is_offline_and_says_what_to_do(clean_wandb, tmp_path):
    with WandbTracker(**SETTINGS) as tracker:
        start(tracker, tmp_path, "rope")
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    why, look, upload = tracker.notes
    assert "no wandb login" in why and "offline" in why
    assert look.endswith(f"wandb leet {folder}")
    assert upload.endswith(f"wandb login && wandb sync {folder}")


def test_auto_follows_the_users_own_wandb_mode(clean_wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with WandbTracker(**SETTINGS) as tracker:
        start(tracker, tmp_path, "rope")
        tracker.log({"train/loss": 1.0}, step=1, tokens=1)
    assert tracker.notes == []
    assert not list(tmp_path.glob("wandb/*run*"))


def test_online_without_login_is_one_line(clean_wandb, tmp_path):
    tracker = WandbTracker(**{**SETTINGS, "mode": "online"})
    with pytest.raises(UserError, match=r"tracker\.mode=online.*wandb login"), tracker:
        start(tracker, tmp_path, "rope")


def test_unreachable_server_turns_the_run_offline(clean_wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "local-" + 40 * "0")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr("training.tracker.INIT_TIMEOUT", 0.5)
    with WandbTracker(**SETTINGS) as tracker:
        start(tracker, tmp_path, "rope", run_id="0123abcd")
        tracker.log({"train/loss": 1.0}, step=1, tokens=64)
    assert tracker.run_id == "0123abcd"
    assert len(tracker.notes) == 3 and "did not answer" in tracker.notes[0]
    assert len(list(tmp_path.glob("wandb/offline-run-*-0123abcd"))) == 1
    for other in (tmp_path / "wandb").glob("run-*"):  # what the failed start left
        (other / "run-0123abcd.wandb").unlink()
    records = inspect(tmp_path)
    assert history(records) == [{"train/loss": 1, "tokens": 64}]
    assert of(records, "run")[0]["config"]["update"]["position"] == {"name": "rope"}


@pytest.fixture
def online(clean_wandb, monkeypatch):
    """A login and a server on this machine; yields the history that arrives there."""
    monkeypatch.setattr(Server, "history", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_API_KEY", "local-" + 40 * "0")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    yield Server.history
    server.shutdown()
    server.server_close()


def test_online_run_arrives_and_its_address_is_said(online, tmp_path):
    with WandbTracker(**SETTINGS) as tracker:
        start(tracker, tmp_path, "rope")
        tracker.log({"train/loss": 2.0}, step=1, tokens=64)
    assert [(point["train/loss"], point["tokens"]) for point in online] == [(2.0, 64)]
    (note,) = tracker.notes
    assert note.startswith("wandb: http://127.0.0.1:") and note.endswith(str(tracker.run_id))


def test_online_resume_never_logs_below_the_servers_last_step(online, tmp_path):
    with WandbTracker(**SETTINGS) as tracker:
        start(tracker, tmp_path, "rope", run_id="resumed")
        for step in range(41, 61):
            tracker.log({"train/loss": 1.0}, step=step, tokens=step)
    assert [point["tokens"] for point in online] == list(range(51, 61))
    (log,) = tmp_path.glob("wandb/run-*/logs/debug-internal.log")
    assert "ignoring partial history" not in log.read_text()


def test_resume_keeps_the_id_and_goes_on_at_its_step(clean_wandb, tmp_path):
    with WandbTracker(**SETTINGS) as first:
        start(first, tmp_path / "first", "rope")
        first.log({"train/loss": 2.0}, step=50, tokens=500)
    with WandbTracker(**SETTINGS) as second:
        start(second, tmp_path / "second", "rope", run_id=first.run_id)
        second.log({"train/loss": 1.0}, step=41, tokens=410)
    records = inspect(tmp_path / "second")
    assert of(records, "run")[0]["run_id"] == first.run_id
    assert of(records, "history")[0]["step"] == {"num": 41}


def test_what_we_print_uploads_every_part_of_a_resumed_run(online, tmp_path, monkeypatch):
    offline = {**SETTINGS, "mode": "offline"}
    run_id = None
    for part in range(3):
        with WandbTracker(**offline) as tracker:
            start(tracker, tmp_path, "rope", run_id)
            tracker.log({"train/loss": 1.0 + part}, step=part, tokens=part)
            run_id = tracker.run_id
        with WandbTracker(
            **offline
        ) as other:  # an evaluation of it: another run in the same folder
            start(other, tmp_path, "rope eval")
        time.sleep(1.1)  # wandb's folders are named by the second
    assert online == []
    command = tracker.notes[-1].split("&& ")[1]
    bin = Path(sys.executable).parent
    subprocess.run(f"{bin}/{command}", shell=True, check=True, capture_output=True, timeout=60)
    assert [point["train/loss"] for point in online] == [1.0, 2.0, 3.0]


def test_a_user_without_a_home_is_tracked_offline(tmp_path):
    """As in a container that runs under a number that /etc/passwd does not know."""
    (tmp_path / "sitecustomize.py").write_text("import pwd\npwd.getpwuid = {}.__getitem__\n")
    code = (
        "from pathlib import Path; from training.tracker import WandbTracker\n"
        f"with WandbTracker(**{SETTINGS}) as tracker:\n"
        "    tracker.start(folder=Path('run'), name='a', group='a', job_type='train', config={}, run_id=None)\n"
        "print(tracker.notes[0])"
    )
    kept = {k: v for k, v in os.environ.items() if k != "HOME" and not k.startswith("WANDB")}
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=kept | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no wandb login, so this run is tracked offline" in done.stdout
    assert list((tmp_path / "run/wandb").glob("offline-run-*"))


def row(protocol: str, length: int, ppl: float | None, supported: bool = True, **other) -> dict:
    values = {"ppl": ppl, "loss": 1.5 if supported else None, "bpb": 0.5 if supported else None}
    values["word_ppl"] = None
    place = {"protocol": protocol, "context_length": length, "stride": None, "window": None}
    return {**place, "bin": None, "supported": supported, **values, **other}


ROWS = [
    row("same_tokens", 256, 5.0),
    row("same_tokens", 128, 4.0),
    row("same_tokens", 256, 4.5, window=128),
    row("same_tokens", 512, None),
    row("same_tokens", 1024, None, supported=False),
    row("sliding", 128, 4.2, stride=32),
    row("per_position", 512, 9.0, bin=0),
]


def test_evaluation_is_drawn_over_context_length(clean_wandb, tmp_path):
    with WandbTracker(**SETTINGS) as tracker:
        start(tracker, tmp_path, "rope")
        tracker.log_evaluation(ROWS)
    records = inspect(tmp_path)
    logged = history(records)
    assert [point["eval/context_length"] for point in logged] == [128, 256, 512]
    assert logged[0]["eval/same_tokens/ppl"] == 4 and logged[0]["eval/sliding/ppl"] == 4.2
    assert logged[1]["eval/same_tokens_window-128/ppl"] == 4.5
    assert {m.get("glob_name"): m.get("step_metric") for m in of(records, "metric")}[
        "eval/*"
    ] == "eval/context_length"
    found = {k: v for k, v in summary(records).items() if "@" in k}
    assert found == {"eval/ppl@128": 4, "eval/ppl@256": 5}


def test_what_does_not_exist_is_not_a_point():
    points = evaluation_points(ROWS)
    assert set(points) == {128, 256, 512}
    assert points[512] == {"eval/same_tokens/loss": 1.5, "eval/same_tokens/bpb": 0.5}


def test_report_run_holds_the_table_and_the_page(clean_wandb, tmp_path):
    page = tmp_path / "index.html"
    page.write_text("<!doctype html><title>x</title>")
    with WandbTracker(**SETTINGS) as tracker:
        start(tracker, tmp_path, "compare")
        tracker.log_report([{"scheme": "rope", "128": 4.0}], page)
    (point,) = history(inspect(tmp_path))
    assert point["report/table.nrows"] == 1
    (stored,) = tmp_path.glob("wandb/offline-run*/files/media/html/**/*.html")
    assert stored.read_text() == page.read_text()


def test_null_tracker_and_settings(tmp_path):
    with TRACKERS["none"]() as tracker:
        start(tracker, tmp_path / "never", "rope")
        tracker.log({"train/loss": 1.0}, step=1, tokens=1)
        tracker.log_evaluation(ROWS)
    assert tracker.run_id is None and tracker.notes == [] and not (tmp_path / "never").exists()
    with pytest.raises(UserError, match=r"tracker\.project='a/b'"):
        WandbTracker(**{**SETTINGS, "project": "a/b"})


def test_wandb_is_imported_only_when_a_run_starts():
    code = "import sys, training.tracker as t; t.TRACKERS['none'](); print('wandb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
