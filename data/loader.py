"""Training batches. What step n sees is a pure function of (seed, n): there is no state to save.

The token file is read as a ring. An epoch cuts it, from a start drawn for that epoch, into N // T
windows of T inputs that do not overlap, and takes them in an order drawn for that epoch. A window's
last target is the token after it, so that each of its T positions is trained. Sample
g = step * batch_size + row runs through the epochs: a batch may hold the end of one and the start
of the next. Batches depend neither on the number of processes nor on anything of the model.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data.prepare import TokenSplit
from errors import UserError

IGNORED = -100  # no target: PyTorch's ignore_index, so what the model leaves out, too


@dataclass
class Batch:
    """`segments` numbers the window's documents from 0 with document_mask, and is None without.

    An EOS belongs to the document that it ends. Positions follow from the segments in the model.
    """

    tokens: Tensor  # (B, T + 1) int64
    segments: Tensor | None  # (B, T + 1) int64

    @property
    def inputs(self) -> Tensor:
        return self.tokens[:, :-1]

    @property
    def targets(self) -> Tensor:
        """The token after each input, IGNORED where it begins another document: nothing tells it."""
        targets = self.tokens[:, 1:]
        if self.segments is None:
            return targets
        return targets.masked_fill(self.segments[:, 1:] != self.segments[:, :-1], IGNORED)

    @property
    def documents(self) -> Tensor | None:
        """(B, T): the inputs' part of the segments."""
        return None if self.segments is None else self.segments[:, :-1]

    def chunk(self, parts: int) -> "list[Batch]":
        """So many equal parts of the rows."""
        masks = [None] * parts if self.segments is None else self.segments.chunk(parts)
        return [Batch(*part) for part in zip(self.tokens.chunk(parts), masks, strict=True)]

    def to(self, device: torch.device) -> "Batch":
        """On a device, which is not waited for."""
        segments = self.segments
        segments = None if segments is None else segments.to(device, non_blocking=True)
        return Batch(self.tokens.to(device, non_blocking=True), segments)


def batch_hash(batch: Batch) -> str:
    """16 hexadecimal digits, the same for equal batches."""
    sha256 = hashlib.sha256()
    for part in (batch.tokens, batch.segments):
        if part is not None:
            sha256.update(part.cpu().numpy().tobytes())
    return sha256.hexdigest()[:16]


@lru_cache(maxsize=4)  # two of the batches read ahead, at the end of one; the validation's
def epoch_starts(seed: int, epoch: int, n_tokens: int, length: int) -> np.ndarray:
    """Where each window of an epoch starts, in the order they are taken: (N // T,) int64.

    Drawn from a bit generator's raw stream, which NumPy keeps the same in all versions (NEP 19); it
    doesn't promise that of `Generator.permutation`.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    draws = bits.random_raw(n_tokens // length + 1)
    order = np.argsort(draws[1:], kind="stable")
    return (int(draws[0]) % n_tokens + order * length) % n_tokens


class Loader:
    """Batches of a split; of the same global batch, each of `world` processes has its own rows."""

    def __init__(
        self,
        split: TokenSplit,
        *,
        context_length: int,
        batch_size: int,
        seed: int,
        document_mask: bool,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        n_tokens = len(split.tokens)
        if n_tokens < context_length + 1:
            raise UserError(
                f"context_length={context_length} needs {context_length + 1} tokens and the text "
                f"has {n_tokens}: use a shorter context_length or more text"
            )
        if document_mask and context_length < 2:
            raise UserError(
                f"data.document_mask=true needs a context_length of at least 2, not {context_length}:"
                " a window of an end-of-text token alone would have nothing to learn"
            )
        if batch_size % world:
            raise UserError(f"train.batch_size={batch_size}: must divide by {world} processes")
        self.split = split
        self.context_length = context_length
        self.batch_size = batch_size
        self.seed = seed
        self.document_mask = document_mask
        self.rows = range(rank * batch_size // world, (rank + 1) * batch_size // world)

    def batch(self, step: int) -> Batch:
        """This process's rows of the global batch of a step."""
        return self.samples([step * self.batch_size + row for row in self.rows])

    def whole(self, step: int) -> Batch:
        """The global batch of a step."""
        first = step * self.batch_size
        return self.samples(range(first, first + self.batch_size))

    def samples(self, numbers: Sequence[int]) -> Batch:
        """These samples, counted from the first of the first epoch."""
        tokens, offsets = self.split.tokens, self.split.offsets
        starts = np.array([self._start(sample) for sample in numbers])
        at = (starts[:, None] + np.arange(self.context_length + 1)) % len(tokens)  # (B, T + 1)
        window = torch.from_numpy(tokens[at].astype(np.int64))
        if not self.document_mask:
            return Batch(window, None)
        begins = offsets[np.searchsorted(offsets, at)] == at  # (B, T + 1)
        begins[:, 0] = False
        return Batch(window, torch.from_numpy(np.cumsum(begins, axis=1)))

    def _start(self, sample: int) -> int:
        n_tokens = len(self.split.tokens)
        epoch, index = divmod(sample, n_tokens // self.context_length)
        return int(epoch_starts(self.seed, epoch, n_tokens, self.context_length)[index])


class Ahead:
    """A loader's batches step by step, the next one read by a thread while this one is trained on.

    pinned: in memory that a GPU copies from without the processor waiting.
    """

    def __init__(self, loader: Loader, pinned: bool) -> None:
        self.loader, self.pinned = loader, pinned
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.next: tuple[int, Future[Batch]] | None = None

    def batch(self, step: int) -> Batch:
        waiting = self.next if self.next and self.next[0] == step else self._ask(step)
        batch = waiting[1].result()
        self.next = self._ask(step + 1)
        return batch

    def _ask(self, step: int) -> tuple[int, Future[Batch]]:
        return step, self.thread.submit(self._read, step)

    def _read(self, step: int) -> Batch:
        batch = self.loader.batch(step)
        if not self.pinned:
            return batch
        segments = None if batch.segments is None else batch.segments.pin_memory()
        return Batch(batch.tokens.pin_memory(), segments)

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.shutdown(cancel_futures=True)
