"""Several processes that train or evaluate as one: what a command may ask of them, and the answers of one process.

`World` is the null object: nothing in it waits or talks. ranks.py has the same for the processes that torchrun
starts. torch is imported where it is needed, since every command makes a world, `--help` too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

T = TypeVar("T")


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
