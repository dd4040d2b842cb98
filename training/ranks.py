"""A world of several processes, as torchrun starts them.

What is unusual: only tensors go through a process group (NCCL on CUDA, gloo on a CPU). What rank 0 decides for
all, and who has failed, goes through torchrun's key-value store, job by job: it waits as long as preparing data
takes, and what a failed job of a sweep left behind there is never taken for the next one's. Rank 0 alone has a
voice; but the first rank that fails says why, once.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from errors import UserError
from training.distributed import World

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

T = TypeVar("T")
WAIT = timedelta(days=1)  # for rank 0, which may be preparing data; torchrun ends us if it died
STUCK = timedelta(minutes=30)  # for a tensor of another rank, which may be saving a checkpoint
GRACE = 10.0  # seconds in which all ranks meet the same error, if they do


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
    size = from_environment("WORLD_SIZE") if "WORLD_SIZE" in os.environ else 1
    if size == 1:
        return World()
    return Ranks(from_environment("RANK"), size, from_environment("LOCAL_RANK"))


def from_environment(name: str) -> int:
    value = os.environ.get(name)
    if value is None:
        raise UserError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set and {name} is not: use torchrun, or unset it"
        )
    if not re.fullmatch("[0-9]{1,9}", value) or (name == "WORLD_SIZE" and int(value) == 0):
        raise UserError(f"{name}={value!r} must be a whole number: use torchrun, or unset it")
    return int(value)
