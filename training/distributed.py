"""Several processes that train or evaluate as one, started by torchrun; one process is a world of one.

`World` is that one process and the null object: nothing in it waits or talks. `Ranks` is the same for several.
What is unusual: only tensors go through a process group (NCCL on CUDA, gloo on a CPU). What rank 0 decides for
all, and who has failed, goes through torchrun's key-value store, job by job: it waits as long as preparing data
takes, and what a failed job of a sweep left behind there is never taken for the next one's. Rank 0 alone has a
voice; but the first rank that fails says why, once. torch is imported where it is needed, since every command
makes a world, `--help` too.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

T = TypeVar("T")
WAIT = timedelta(days=1)  # for rank 0, which may be preparing data; torchrun ends us if it died
STUCK = timedelta(minutes=30)  # for a tensor of another rank, which may be saving a checkpoint
GRACE = 10.0  # seconds in which all ranks meet the same error, if they do


class World:
    """This process alone."""

    rank = local_rank = 0
    size = 1

    @property
    def main(self) -> bool:
        """Whether this process prints, tracks and writes."""
        return self.rank == 0

    def __str__(self) -> str:
        """What to say behind the name of a device."""
        return "" if self.size == 1 else f", {self.size} processes"

    # How a command starts, fails and ends: configs/cli.py

    def start(self) -> None:
        """The process starts."""

    def begin(self) -> None:
        """A job begins: the only one, or the next of a sweep."""

    def failed(self, line: str) -> None:
        """Tell the user why this job failed."""
        print(line, file=sys.stderr, flush=True)

    def regroup(self) -> None:
        """Return when this job has failed on every rank, so that the next may begin; else end the process."""

    def crashed(self) -> None:
        """What to do about an exception that is no UserError before it goes up."""

    def leave(self) -> None:
        """The process is about to end with an error."""

    def close(self) -> None:
        """The process is about to end."""

    # What rank 0 decides

    def share(self, decide: Callable[[], T]) -> T:
        """What `decide` returns on rank 0, where alone it is called; if it raises a UserError there, all do."""
        return decide()

    def first(self, work: Callable[[], T]) -> T:
        """`work()`, on rank 0 before the others: it leaves in a cache what they need."""
        return work()

    def same(self, what: str, value: Any) -> None:
        """UserError where `value` isn't rank 0's."""

    # Computing

    def check_batch(self, batch_size: int, accumulate: int) -> None:
        """UserError unless every micro-batch of every rank has equally many sequences."""
        if batch_size % (accumulate * self.size):
            raise UserError(
                f"train.batch_size={batch_size} must divide into {self.size} processes x "
                f"train.accumulate={accumulate} equal parts"
            )

    def device(self, setting: str) -> torch.device:
        """The device that `setting` stands for in this process."""
        from training.precision import choose_device

        return choose_device(setting)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to call in training: its gradients are the mean over ranks."""
        return model

    def part(self, model: Any, last: bool) -> AbstractContextManager:
        """Around forward and backward of a micro-batch of a wrapped model: ranks talk in a step's last one alone."""
        return nullcontext()

    def mean(self, x: Tensor) -> Tensor:
        """The mean over ranks of a scalar on any device, the same bits on each."""
        return x

    def total(self, *numbers: float) -> list[float]:
        """Each number's sum over ranks, in float64."""
        return list(numbers)

    def any(self, flag: bool) -> bool:
        """Whether a rank says so."""
        return self.total(flag)[0] > 0

    def gather(self, array: np.ndarray) -> np.ndarray:
        """(n,) of this rank, (0,) too -> those of all ranks, end to end by rank."""
        return array


class Ranks(World):
    """One of several processes."""

    def __init__(self, rank: int, size: int, local_rank: int) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.jobs = self.shared = 0  # jobs begun; things shared in this one

    @cached_property
    def store(self) -> Any:
        """A torch.distributed.Store, the same for all ranks."""
        from torch.distributed.rendezvous import rendezvous

        store, *_ = next(rendezvous("env://"))
        return store

    @cached_property
    def group(self) -> Any:
        """torch.distributed with its process group, made once for all jobs of the process."""
        import torch
        import torch.distributed as dist

        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(
            backend, store=self.store, rank=self.rank, world_size=self.size, timeout=STUCK
        )
        return dist

    def start(self) -> None:
        if not self.main:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  open as long as we are

    def begin(self) -> None:
        self.jobs, self.shared = self.jobs + 1, 0

    def failed(self, line: str) -> None:
        if self.store.add(f"lengthwise/failed/{self.jobs}", 1) == 1:
            print(line, file=sys.__stderr__, flush=True)

    def regroup(self) -> None:
        end = time.monotonic() + GRACE
        while self.store.add(f"lengthwise/failed/{self.jobs}", 0) < self.size:
            if time.monotonic() > end:
                sys.exit(1)  # torchrun then ends the others, wherever they wait for us
            time.sleep(0.05)

    def crashed(self) -> None:
        self.failed(traceback.format_exc())
        sys.exit(1)

    def leave(self) -> None:
        if self.jobs:
            return
        if self.main:  # Hydra refused the command line, and has said why
            self.store.set("lengthwise/left", "")
        else:  # the first to end ends all: let rank 0 speak before
            with suppress(RuntimeError):
                self.store.wait(["lengthwise/left"], timedelta(seconds=GRACE))

    def close(self) -> None:
        if "group" in vars(self):
            self.group.destroy_process_group()

    def share(self, decide: Callable[[], T]) -> T:
        self.shared += 1
        key = f"lengthwise/shared/{self.jobs}/{self.shared}"
        if self.main:
            try:
                answer: Any = decide()
            except UserError as error:
                answer = error
            self.store.set(key, pickle.dumps(answer))
        else:
            self.store.wait([key], WAIT)
            answer = pickle.loads(self.store.get(key))
        if isinstance(answer, UserError):
            raise answer
        return answer

    def first(self, work: Callable[[], T]) -> T:
        done: list[T] = []
        self.share(lambda: done.append(work()))
        return done[0] if done else work()

    def same(self, what: str, value: Any) -> None:
        if self.share(lambda: value) != value:
            raise UserError(f"{what} is not the same on rank {self.rank} as on rank 0")

    def device(self, setting: str) -> torch.device:
        import torch

        device = super().device(setting)
        if device.type == "cpu":
            return device
        if device.type != "cuda":
            raise UserError(f"device={setting} takes one process: start it without torchrun")
        if device.index is not None:
            raise UserError(f"device={setting}: each process takes its own GPU; use device=cuda")
        if self.local_rank >= (count := torch.cuda.device_count()):
            raise UserError(
                f"device={setting}: more processes than the {count} GPUs here; "
                f"use torchrun --nproc-per-node={count}, or device=cpu"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def wrap(self, model: nn.Module) -> nn.Module:
        from torch.nn.parallel import DistributedDataParallel

        assert self.group
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def part(self, model: Any, last: bool) -> AbstractContextManager:
        return nullcontext() if last else model.no_sync()

    def mean(self, x: Tensor) -> Tensor:
        x = x / self.size
        self.group.all_reduce(x)
        return x

    def total(self, *numbers: float) -> list[float]:
        import torch

        sums = torch.tensor(numbers, dtype=torch.float64)
        self.group.all_reduce(sums)
        return sums.tolist()

    def gather(self, array: np.ndarray) -> np.ndarray:
        import numpy as np

        parts: list[Any] = [None] * self.size
        self.group.all_gather_object(parts, array)
        return np.concatenate(parts)


def launched() -> World:
    """The world that torchrun's environment variables describe: the one place that reads them."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    try:
        rank, local_rank = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))
    except KeyError as error:
        raise UserError(
            f"WORLD_SIZE={size} is set and {error.args[0]} is not: use torchrun, or unset it"
        ) from None
    return Ranks(rank, size, local_rank)
