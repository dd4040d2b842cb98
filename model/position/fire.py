"""FIRE (Li et al. 2024, arXiv 2310.04418): a learned function of the distance, seen as a share.

score = MLP(ψ(i - j) / ψ(max(i, L))) with ψ(x) = ln(|c|·x + 1). Up to the threshold L this depends on
the distance alone; beyond, the distance counts as a share of the query's position, which stays in
[0, 1] however long the text (progressive interpolation).

As in the code of the paper's appendix: c starts at 0.1, L is `threshold` times a learned multiplier
that starts at 1, the MLP has one hidden layer of 32 ReLUs. The layers share it (the paper's FIRE-S),
and unless it is given the threshold is a quarter of the context: the paper's 512 of 2,048.
"""

import torch
from torch import Tensor, nn

from configs.check import LONGEST, within
from errors import UserError
from model.config import ModelConfig
from model.kernels import network
from model.position.base import Position, wide

EPSILON = 1e-6  # in the denominator, as released


class FIRE(Position):
    form = "pair"
    by_context = ("threshold",)

    def __init__(self, config: ModelConfig, *, threshold: float | None, hidden: int):
        super().__init__(config)
        if threshold is not None and threshold <= 0:
            raise UserError(f"position.threshold={threshold} must be above 0")
        within("position.threshold", threshold or 1, 0, LONGEST)
        within("position.hidden", hidden, 1, 2**16)
        self.threshold = config.context_length / 4 if threshold is None else threshold
        self.c = nn.Parameter(torch.empty(()))
        self.multiplier = nn.Parameter(torch.empty(()))
        self.w1 = nn.Parameter(torch.empty(hidden))
        self.b1 = nn.Parameter(torch.empty(hidden))
        self.w2 = nn.Parameter(torch.empty(config.n_heads, hidden))
        self.b2 = nn.Parameter(torch.empty(config.n_heads))

    def reset(self, generator: torch.Generator) -> None:
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.multiplier)
        bound = len(self.w1) ** -0.5  # as PyTorch's nn.Linear, by the number of inputs
        for parameter, limit in ((self.w1, 1), (self.b1, 1), (self.w2, bound), (self.b2, bound)):
            nn.init.uniform_(parameter, -limit, limit, generator=generator)

    def pair(self, i: Tensor, j: Tensor) -> Tensor:
        c, multiplier = wide(self.c).abs(), wide(self.multiplier).abs()
        reach = torch.maximum(i, multiplier * self.threshold)
        distance = (i - j).clamp(min=0)
        share = torch.log1p(c * distance) / (torch.log1p(c * reach) + EPSILON)
        with torch.autocast(i.device.type, enabled=False):
            return network(share, *map(wide, (self.w1, self.b1, self.w2, self.b2)))
