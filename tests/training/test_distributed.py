"""Several processes (torchrun, gloo) give the numbers of one, and only one speaks."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT, SMALL, command
from safetensors.torch import load_file

from training import checkpoint

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def torchrun(n: int, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHRUN, f"--nproc-per-node={n}", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
def test_two_ranks_compute_what_one_process_does(tmp_path):
    """tests/training/rank_checks.py: every scheme's gradients, validation with fewer windows than ranks, sums."""
    done = torchrun(2, str(ROOT / "tests/training/rank_checks.py"), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def records(folder: Path) -> dict[int, dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record for record in map(json.loads, lines)}


def cut(source: Path, folder: Path) -> Path:
    """A run that was stopped at step 10 of its 20."""
    shutil.copytree(source, folder)
    shutil.rmtree(folder / "checkpoints/step-000020")
    for pointer in ("last", "best"):
        (folder / "checkpoints" / pointer).write_text("step-000010")
    return folder


SETTINGS = ["train.log_every=1", "data.document_mask=true", "train.position_range=60"]


@pytest.fixture(scope="module")
def one(smoke) -> Path:
    return smoke("t5", *SETTINGS)


def smoke_settings() -> list[str]:
    """experiment=smoke key by key: a resumed run takes keys that are its own, and no experiment."""
    groups = yaml.safe_load((ROOT / "configs/experiment/smoke.yaml").read_text())
    pairs = ((k, v if isinstance(v, dict) else {"": v}) for k, v in groups.items())
    return [
        f"{k}.{name}".rstrip(".") + f"={v}" for k, values in pairs for name, v in values.items()
    ]


@pytest.fixture(scope="module")
def sweep(one, smoke, corpus, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Three jobs of two ranks: one that cannot be, a run, and the rest of a run that one process began."""
    folder = tmp_path_factory.mktemp("sweep")
    begun = cut(one, folder / "outputs/t5/begun")
    small = [*smoke_settings(), *(a for a in SMALL if not a.startswith("experiment"))]
    arguments = ["-m", *small, *corpus, *SETTINGS, "position=t5"]
    done = torchrun(
        2, str(ROOT / "train.py"), *arguments, f"resume={one},null,{begun}", folder=folder
    )
    return folder / "outputs/t5", done


@pytest.mark.slow
def test_two_ranks_train_as_one_process_does(one, sweep, smoke):
    (run,) = sweep[0].glob("20*_1")
    found, whole = records(run), records(one)
    halves = records(smoke("t5", *SETTINGS, "train.accumulate=2"))
    assert list(found) == list(range(1, 21))
    for step, record in found.items():
        for other in (whole[step], halves[step]):
            assert record["batch"] == other["batch"]
            bound = 1e-6 if step == 1 else 1e-5
            for key in ("train/loss", "train/grad_norm", "train/lr", "val/loss", "val/bpb"):
                assert math.isclose(record.get(key, 0), other.get(key, 0), rel_tol=bound), key
    weights = [load_file(checkpoint.find(f, "last") / "model.safetensors") for f in (run, one)]
    assert weights[0].keys() == weights[1].keys()  # no "module."
    for name in weights[0]:
        torch.testing.assert_close(*(w[name] for w in weights), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_in_another_world(one, sweep, tmp_path, monkeypatch):
    """From one process to two ranks, and back."""
    (two,) = sweep[0].glob("20*_1")
    back = cut(two, tmp_path / "back")
    monkeypatch.chdir(tmp_path)
    assert command("train", f"resume={back}", "device=cpu", "train.accumulate=4") == 0
    for run in (sweep[0] / "begun", back):
        for step, record in records(run).items():
            expected = records(one)[step]
            assert record["attempt"] == (step > 10) and record["batch"] == expected["batch"]
            assert math.isclose(record["train/loss"], expected["train/loss"], rel_tol=1e-5)
        assert checkpoint.step_of(checkpoint.find(run, "last")) == 20


@pytest.mark.slow
def test_ranks_share_a_folder_a_job_and_one_voice(one, sweep):
    folder, done = sweep
    assert sorted(p.name.rpartition("_")[2] for p in folder.iterdir()) == ["1", "begun"]
    assert sorted(p.name for p in folder.parent.iterdir()) == [".latest", "multirun.yaml", "t5"]
    assert done.returncode != 0  # the first job
    assert done.stderr.count("error: resume=") == 1
    assert f"resume={one} has taken all its 20 steps" in done.stderr
    assert done.stdout.count("done: ") == 2 and done.stdout.count("step 20/20") == 2
    assert "2 processes" in done.stdout


@pytest.mark.slow
def test_evaluation_is_that_of_one_process(one, tmp_path, monkeypatch):
    """Three ranks, and fewer batches than ranks."""
    monkeypatch.chdir(tmp_path)
    tokens = {}
    for name, n in (("alone", 1), ("ranks", 3)):
        shutil.copytree(one, tmp_path / name)
        quick = ["tracker=none", "eval.targets=256", "lengths=[32,48]", "device=cpu"]
        quick += ["eval.tokens_per_batch=100_000"]
        if n == 1:
            assert command("eval", f"run={name}", *quick) == 0
        else:
            done = torchrun(n, str(ROOT / "eval.py"), f"run={name}", *quick, folder=tmp_path)
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("done: ") == 1
        tokens[name] = json.loads((tmp_path / name / "eval/t5.json").read_text())
    assert tokens["alone"] == tokens["ranks"]


@pytest.mark.slow
def test_an_error_ends_all_ranks_with_one_line(tmp_path, corpus):
    wrong = [*SMALL, *corpus, "position=rope", "position.bse=3"]
    done = torchrun(2, str(ROOT / "train.py"), *wrong, folder=tmp_path)
    said = [line for line in done.stderr.splitlines() if "position.bse" in line]
    assert done.returncode != 0 and len(said) == 1
    assert said[0].startswith("error: position.bse is no setting of rope")
