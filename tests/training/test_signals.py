"""SIGTERM and SIGINT: the run saves and says how to go on, with the exit code of the shell; a second one is at once."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, command

import train as train_module
from tests.trained import same_bits, same_metrics
from training import checkpoint, feed, validation
from training.distributed import World
from training.signals import Stop

BOTH = pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


@BOTH
def test_deferred_it_asks_elsewhere_it_ends(number, code):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with Stop(World()) as stop, stop.deferred():
        assert not stop.asked
        kill(number)
        assert stop.asked
    with pytest.raises(SystemExit) as end:
        stop.leave("saved")
    assert end.value.code == code
    with pytest.raises(SystemExit) as end, Stop(World()):
        kill(number)
    assert end.value.code == code
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    Stop(World()).leave("nothing was asked")


@BOTH
def test_while_data_is_prepared_there_is_nothing_to_save(
    tmp_path, monkeypatch, corpus, capfd, number, code
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(feed, "prepare_split", lambda *_: kill(number))
    assert command("train", *SMALL, *corpus) == code
    assert "stopped before the first step: there is nothing to save" in capfd.readouterr().err
    assert not Path("outputs").exists()  # nor an empty folder


@pytest.mark.parametrize(
    ("wait", "number", "code"),
    [(0.0, signal.SIGINT, 130), (2.0, signal.SIGTERM, 143)],
    ids=["reading", "merging"],
)
def test_a_tokenizer_in_the_making_is_no_reason_to_wait(tmp_path, wait, number, code):
    """Which would take 10 seconds and more; a terminal sends Ctrl-C to every process of the group."""
    rng = random.Random(0)
    words = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(300_000))
    (tmp_path / "text.txt").write_text(" ".join(words))
    (tmp_path / "held_out.txt").write_text("held out " * 99)
    data = ["data.train=[text.txt]", "data.validation=[held_out.txt]", "tokenizer.vocab_size=30000"]
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", *SMALL[:4], *data, "data.cache_dir=cache"],
        cwd=tmp_path, text=True, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (own := children.read_text().split()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        time.sleep(wait)
        os.killpg(process.pid, number)
        began = time.monotonic()
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - began < 2
        assert process.returncode == code and said.count("\n") == 1, said
        assert "stopped before the first step: there is nothing to save" in said
        assert not any(Path(f"/proc/{child}").exists() for child in own)
        assert not list((tmp_path / "cache").glob("tokenizer-*.partial"))
    finally:
        process.kill()


def test_in_validation_nothing_is_lost(tmp_path, monkeypatch, corpus, capfd):
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALL, *corpus, "train.save_every=0"]
    assert command("train", *arguments, "hydra.run.dir=outputs/a") == 0
    whole, calls = validation.Validation.measure, []

    def measure(*given):
        if not calls:
            kill(signal.SIGTERM)
        calls.append(given)
        return whole(*given)

    monkeypatch.setattr(validation.Validation, "measure", measure)
    assert command("train", *arguments, "hydra.run.dir=outputs/b") == 143
    assert checkpoint.find(Path("outputs/b"), "last").name == "step-000010"
    assert command("train", "resume=outputs/b") == 0
    same_bits(Path("outputs/a"), Path("outputs/b"))
    same_metrics(Path("outputs/a"), Path("outputs/b"))


def test_a_sweep_stops_as_a_whole_and_goes_on_as_one(tmp_path, monkeypatch, corpus, capfd):
    """With resume=auto: what is finished is left alone, what is not goes on, the rest is begun."""
    whole = train_module.Loop.step

    def step(loop, batch):
        if loop.config.position["name"] == "rope":
            kill(signal.SIGINT)
        return whole(loop, batch)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_module.Loop, "step", step)
    sweep = ["-m", *SMALL, *corpus, "position=alibi,rope,none", "train.steps=3", "resume=auto"]
    assert command("train", *sweep) == 130
    assert "SIGINT: saved at step 1" in capfd.readouterr().err
    assert len(list(tmp_path.glob("outputs/*/*/config.yaml"))) == 2
    monkeypatch.setattr(train_module.Loop, "step", whole)
    assert command("train", *sweep) == 0
    folders = [p for p in tmp_path.glob("outputs/*/*") if p.is_dir()]
    assert sorted(p.parent.name for p in folders) == ["alibi", "none", "rope"]
    assert {checkpoint.find(p, "last").name for p in folders} == {"step-000003"}
    assert "nothing to do" in capfd.readouterr().out


def test_wandb_is_closed(tmp_path, monkeypatch, corpus, capfd):
    """And a resume goes on with the same run of it."""
    from training.tracker import NoTracker

    seen = []

    class Tracker(NoTracker):
        def start(self, *, run_id, **_):
            self.run_id = run_id or "abc"
            seen.append(run_id)

        def finish(self, exit_code):
            seen.append(exit_code)

    monkeypatch.setitem(sys.modules["training.tracker"].TRACKERS, "none", Tracker)
    whole = train_module.Loop.step

    def step(loop, batch):
        if loop.state.step == 3:
            kill(signal.SIGTERM)
        return whole(loop, batch)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_module.Loop, "step", step)
    assert command("train", *SMALL, *corpus, "hydra.run.dir=outputs/a") == 143
    monkeypatch.setattr(train_module.Loop, "step", whole)
    assert command("train", "resume=outputs/a") == 0
    assert seen == [None, 0, "abc", 0]


@pytest.fixture
def started(tmp_path, corpus):
    """A real process in the midst of its steps."""
    settings = ["train.steps=4000", "train.log_every=1", "train.save_every=0", "train.eval_every=0"]
    name = "hydra.run.dir=outputs/b"
    arguments = [sys.executable, ROOT / "train.py", *SMALL, *corpus, *settings, name]
    process = subprocess.Popen(
        arguments, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    metrics = tmp_path / "outputs/b/metrics.jsonl"
    try:
        while not (metrics.exists() and metrics.stat().st_size > 500):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        yield process
    finally:
        process.kill()


@pytest.mark.slow
def test_a_real_process_saves_and_its_run_goes_on(started, tmp_path, monkeypatch, corpus):
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 143
    monkeypatch.chdir(tmp_path)
    step = checkpoint.step_of(checkpoint.find(Path("outputs/b"), "last"))
    assert said.endswith(f"SIGTERM: saved at step {step}\nnext: python train.py resume=outputs/b\n")
    length = f"train.steps={step + 5}"
    assert command("train", "resume=outputs/b", length) == 0
    settings = ["train.steps=4000", "train.log_every=1", "train.save_every=0", "train.eval_every=0"]
    # the undisturbed one: as long as the killed one until there, then as long as the resumed one
    stop = train_module.Loop.step

    def until(loop, batch):
        if loop.state.step + 1 == step:
            kill(signal.SIGTERM)
        return stop(loop, batch)

    monkeypatch.setattr(train_module.Loop, "step", until)
    assert command("train", *SMALL, *corpus, *settings, "hydra.run.dir=outputs/a") == 143
    assert command("train", "resume=outputs/a", length) == 0
    same_bits(Path("outputs/a"), Path("outputs/b"))
    same_metrics(Path("outputs/a"), Path("outputs/b"))


@pytest.mark.slow
def test_the_second_one_is_at_once(started, tmp_path):
    started.send_signal(signal.SIGSTOP)  # so that both arrive in one step
    started.send_signal(signal.SIGINT)
    started.send_signal(signal.SIGTERM)
    started.send_signal(signal.SIGCONT)
    started.communicate(timeout=60)
    assert started.returncode in (130, 143)
    assert not list((tmp_path / "outputs/b").glob("checkpoints/step-*"))
