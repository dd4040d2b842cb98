"""Positions drawn from a longer range than the context (Ruoss et al. 2023, arXiv 2305.16843): `train.position_range`.

Instead of 0 .. T-1 a sequence gets T different positions below the range, sorted. The model so meets large
positions and uneven distances while it reads short texts. One draw serves a whole batch; each is a pure
function of (seed, index).
"""

import numpy as np
import torch
from torch import Tensor

HELD_OUT = 2**31  # a stream of draws that no seed of training has


def draw(reach: int | None, length: int, seed: int, index: int = 0) -> Tensor | None:
    """(length,) int64 positions below `reach`, sorted, all different; None, the plain positions, without a range."""
    if reach is None:
        return None
    generator = np.random.Generator(np.random.PCG64([seed, index]))
    return torch.from_numpy(np.sort(generator.choice(reach, length, replace=False)))
