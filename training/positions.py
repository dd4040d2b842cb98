"""Positions drawn from a longer range than the context (Ruoss et al. 2023, arXiv 2305.16843): `train.position_range`.

Instead of 0 .. T-1 a sequence gets T different positions below the range, sorted. The model so meets large
positions and uneven distances while it reads short texts. One draw serves a whole batch; each is a pure
function of (seed, index), drawn from a bit generator's raw stream, which NumPy keeps the same in all versions (NEP 19).
"""

import numpy as np
import torch
from torch import Tensor

HELD_OUT = 2**31  # a stream of draws that no seed of training has


def draw(reach: int | None, length: int, seed: int, index: int = 0) -> Tensor | None:
    """(length,) int64 positions below `reach`, sorted, all different; None, the plain positions, without a range."""
    if reach is None:
        return None
    bits = np.random.PCG64(np.random.SeedSequence([seed, index]))
    fewer = min(length, reach - length)  # to draw: those that are in, or those that are not
    drawn = np.empty(0, np.int64)
    while len(drawn) < fewer:  # the first so many different ones
        more = (bits.random_raw(2 * fewer) % np.uint64(reach)).astype(np.int64)
        drawn = np.concatenate((drawn, more))
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])[:fewer]]
    if fewer < length:
        return torch.from_numpy(np.setdiff1d(np.arange(reach), drawn))
    return torch.from_numpy(np.sort(drawn))
