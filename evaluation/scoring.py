"""Runs any plan of windows through a model and returns the nats of every target.

What is unusual: windows are batched only with windows of the same shape, so nothing is ever padded
and no token's score can depend on its neighbours in a batch; and each score is put where its target
stands in the plan, so the answer is the same for every batch size, batch order and number of
processes. Means are taken elsewhere, over tokens.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from evaluation.protocols import Plan, Scores

NatsFn = Callable[[Tensor, Tensor], Tensor]  # inputs (B, N), targets (B, K) -> -log p (B, K)
Gather = Callable[[np.ndarray], np.ndarray]  # (n,) of this process -> those of all, end to end


class Split(Protocol):
    """Document d is tokens[offsets[d] : offsets[d + 1] - 1]; its end-of-document token follows."""

    @property
    def tokens(self) -> np.ndarray: ...
    @property
    def offsets(self) -> np.ndarray: ...
    @property
    def token_bytes(self) -> np.ndarray: ...


def document_lengths(split: Split) -> np.ndarray:
    """Tokens in each document, (D,) int64, without the end-of-document token."""
    return np.diff(split.offsets) - 1


def batches(plan: Plan, tokens_per_batch: int) -> list[np.ndarray]:
    """Windows, by number, that share (inputs, scored): up to tokens_per_batch inputs, or one.

    The largest windows come first: if memory does not suffice, that shows at once.
    """
    shape = np.stack([plan.stop - plan.start, plan.scored], axis=1)
    kinds, kind = np.unique(shape, axis=0, return_inverse=True)
    found = []
    for number in reversed(range(len(kinds))):
        windows = np.flatnonzero(kind.reshape(-1) == number)
        size = max(1, tokens_per_batch // int(kinds[number, 0]))
        found += [windows[i : i + size] for i in range(0, len(windows), size)]
    return found


@torch.inference_mode()
def score(
    nats_fn: NatsFn,
    split: Split,
    plan: Plan,
    *,
    tokens_per_batch: int,
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
    rank: int = 0,
    world: int = 1,
    gather: Gather = lambda own: own,
) -> Scores:
    """Scores every target of the plan once.

    `progress` is told how many input tokens this process has read so far. With several processes
    each takes every `world`-th batch, perhaps none, and `gather` joins what they found; all of them
    return the whole.
    """
    if (plan.stop >= document_lengths(split)[plan.document]).any():
        raise ValueError("the plan was made for other documents: a window leaves its document")
    # one before the first document: numpy takes the last token, which is the BOS wanted there
    origin = split.offsets[plan.document] + plan.start
    first = np.cumsum(plan.scored) - plan.scored  # where each window's targets begin in the answer
    places, nats, done = [np.empty(0, np.int64)], [np.empty(0, np.float32)], 0
    for batch in batches(plan, tokens_per_batch)[rank::world]:
        n, k = int((plan.stop - plan.start)[batch[0]]), int(plan.scored[batch[0]])
        text = split.tokens[origin[batch, None] + np.arange(n + 1)].astype(np.int64)
        if plan.bos:
            text[:, 0] = split.tokens[-1]  # every document ends with it
        tokens = torch.from_numpy(text).to(device)  # (B, n + 1)
        found = nats_fn(tokens[:, :-1], tokens[:, n + 1 - k :])  # (B, k)
        nats.append(found.float().cpu().numpy().reshape(-1))
        places.append((first[batch, None] + np.arange(k)).reshape(-1))
        done += n * len(batch)
        if progress is not None:
            progress(done)
    place, value = gather(np.concatenate(places)), gather(np.concatenate(nats))
    return _assemble(split, plan, place, value)


def _assemble(split: Split, plan: Plan, place: np.ndarray, value: np.ndarray) -> Scores:
    document, index, _ = plan.targets()
    if not np.array_equal(np.bincount(place, minlength=len(index)), np.ones(len(index))):
        raise RuntimeError("a target was scored twice or not at all")
    nats = np.empty(len(index), np.float32)
    nats[place] = value
    size = split.token_bytes[split.tokens[split.offsets[document] + index]]
    return Scores(nats, *(part.astype(np.int32) for part in (document, index, size)))
