"""Several processes give the numbers of one; what one of them cannot do, none goes on without; only one speaks.

What ranks decide together is tested with threads that share a store, the rest with real processes (torchrun, gloo).
"""

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from conftest import ROOT, SMALL, command
from safetensors.torch import load_file

from configs.cli import alone
from errors import UserError
from training import checkpoint, ranks
from training.distributed import World
from training.ranks import Ranks, launched

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


def together(n: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What `work` returns, or the UserError or SystemExit it raises, on each of n ranks that share a store."""
    store, found = dist.HashStore(), [None] * n

    def be(rank: int) -> None:
        world = Ranks(rank, n, rank)
        world.store = store
        try:
            found[rank] = work(world)
        except (UserError, SystemExit) as error:
            found[rank] = error

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return found


def test_rank_0_decides_for_all():
    calls = []

    def work(world: Ranks) -> list[Any]:
        def decide(i: int) -> list[int]:
            calls.append(world.rank)
            return [world.rank, i]

        shared = []
        for _ in range(2):  # jobs
            world.begin()
            shared += [world.share(lambda i=i: decide(i)) for i in range(2)]
        return shared

    assert together(3, work) == [[[0, 0], [0, 1]] * 2] * 3
    assert calls == [0] * 4


def test_what_rank_0_refuses_all_refuse_and_the_sweep_goes_on(capfd):
    def work(world: Ranks) -> int:
        def refuse() -> None:
            raise UserError("not like this")

        world.begin()
        with pytest.raises(UserError, match="not like this") as refusal:
            world.share(refuse)
        world.failed(str(refusal.value))
        world.regroup()
        world.begin()
        return world.share(lambda: 7)  # not what the first job left

    assert together(3, work) == [7] * 3
    assert capfd.readouterr().err.splitlines() == ["not like this"]


def test_a_rank_that_fails_alone_ends_and_says_why(monkeypatch, capfd):
    monkeypatch.setattr(ranks, "GRACE", 0.2)

    def work(world: Ranks) -> None:
        world.begin()
        if world.rank == 1:
            world.failed("error: mine")
            world.regroup()

    found = together(3, work)
    assert [getattr(end, "code", None) for end in found] == [None, 1, None]
    assert capfd.readouterr().err.splitlines() == ["error: mine"]


def test_rank_0_works_before_the_others():
    order = []

    def work(world: Ranks) -> str:
        return world.first(lambda: order.append(world.rank) or f"made on {world.rank}")

    assert together(3, work) == ["made on 0", "made on 1", "made on 2"]  # each its own: no copies
    assert order[0] == 0 and sorted(order) == [0, 1, 2]


def test_a_difference_between_ranks_is_refused():
    same = together(2, lambda world: world.same("the text", "abc"))
    assert same == [None, None]
    found = together(2, lambda world: world.same("the text", world.rank))
    assert found[0] is None and "the text is not the same on rank 1" in str(found[1])


def test_parts_are_equal():
    for world, accumulate in ((World(), 4), (Ranks(0, 2, 0), 2), (Ranks(1, 4, 1), 1)):
        world.check_batch(8, accumulate)
    with pytest.raises(UserError, match=r"train\.batch_size=8 .* 3 processes"):
        Ranks(0, 3, 0).check_batch(8, 1)
    with pytest.raises(UserError, match=r"train\.accumulate=4"):
        Ranks(0, 4, 0).check_batch(8, 4)


def test_each_process_takes_its_own_gpu(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("training.precision.choose_device", torch.device)
    assert Ranks(3, 4, 1).device("cuda") == torch.device("cuda", 1) and taken == [1]
    assert Ranks(3, 4, 3).device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match=r"--nproc-per-node=2"):
        Ranks(2, 4, 2).device("cuda")
    for setting in ("cuda:0", "mps"):
        with pytest.raises(UserError, match=f"device={setting}"):
            Ranks(0, 4, 0).device(setting)
    assert World().device("cuda:0") == torch.device("cuda", 0)


def test_the_world_is_torchruns(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert type(launched()) is World
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(UserError, match="WORLD_SIZE=6 is set and RANK is not"):
        launched()
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    world = launched()
    assert isinstance(world, Ranks)
    assert (world.rank, world.size, world.local_rank, world.main) == (5, 6, 1, False)


def test_commands_for_one_process_say_so():
    with pytest.raises(UserError, match="without torchrun"):
        alone(lambda config, given: None)(None, [], Ranks(0, 2, 0))


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
