"""What ranks decide together, with threads that share a store: no process is started."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from configs.cli import alone
from errors import UserError
from training import ranks
from training.distributed import World
from training.ranks import Ranks, launched


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
    with pytest.raises(UserError, match="device=cuda:0"):
        Ranks(0, 4, 0).device("cuda:0")
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


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK"])
@pytest.mark.parametrize("value", ["", "abc", "-1", "1.5", "²", "9" * 5000])
def test_a_variable_that_is_no_number_is_named(monkeypatch, name, value):
    for other in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(other, "2")
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"{name}=.* must be a whole number"):
        launched()


def test_commands_for_one_process_say_so():
    with pytest.raises(UserError, match="without torchrun"):
        alone(lambda config, given: None)(None, [], Ranks(0, 2, 0))
