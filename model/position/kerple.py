"""KERPLE (Chi et al. 2022, arXiv 2205.09921): a penalty by a learned function of the distance.

log: -r1 · ln(1 + r2 · d); power: -r1 · d^r2 with r2 <= 2, so that both are conditionally positive
definite kernels. r1 and r2 are learned, two a head, shared by the layers. The released code starts
them uniformly (log: r1 in (0, 2), r2 in (0, 1); power: r1 in (0, 1), r2 in (0, 2)) and in each step
clamps them to at least 0.01. Here the parameter is what a smooth map turns into the positive number:
softplus, nearly the identity where the numbers are not small, and 2 · sigmoid for the exponent. So
no weight is changed outside the optimizer, and none gets stuck at a border.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.position.base import Position, wide

FLOOR = 0.01  # the smallest initial value, as released


def uniform(like: Tensor, high: float, generator: torch.Generator) -> Tensor:
    return torch.empty_like(like).uniform_(0, high, generator=generator).clamp(FLOOR, high - FLOOR)


def inverse_softplus(x: Tensor) -> Tensor:
    return x + (-torch.expm1(-x)).log()


class KerpleLog(Position):
    form = "distance"

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.raw_r1 = nn.Parameter(torch.empty(config.n_heads))
        self.raw_r2 = nn.Parameter(torch.empty(config.n_heads))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        self.raw_r1.copy_(inverse_softplus(uniform(self.raw_r1, 2, generator)))
        self.raw_r2.copy_(inverse_softplus(uniform(self.raw_r2, 1, generator)))

    def distance(self, d: Tensor) -> Tensor:
        r1, r2 = (F.softplus(wide(raw)) for raw in (self.raw_r1, self.raw_r2))
        return -by_head(r1, d) * torch.log1p(by_head(r2, d) * d)


class KerplePower(KerpleLog):
    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        self.raw_r1.copy_(inverse_softplus(uniform(self.raw_r1, 1, generator)))
        self.raw_r2.copy_(torch.logit(uniform(self.raw_r2, 2, generator) / 2))

    def distance(self, d: Tensor) -> Tensor:
        r1, r2 = F.softplus(wide(self.raw_r1)), 2 * torch.sigmoid(wide(self.raw_r2))
        return -by_head(r1, d) * d.to(r2.dtype) ** by_head(r2, d)


def by_head(r: Tensor, d: Tensor) -> Tensor:
    """(H,) -> (H, 1, ...), to go with d."""
    return r.view(-1, *(1 for _ in d.shape))
