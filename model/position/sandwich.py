"""Sandwich (Chi et al. 2023, arXiv 2212.10356): the inner product of sinusoids, as a bias.

The product of two sinusoidal position vectors of width w depends on their distance d alone:
Σ cos(d / base^(2i/w)) for i = 1 to w/2. Less w/2, so that it is 0 at d = 0, and divided by 8h/H for
head h of 1 to H (the exponents of ALiBi's slopes), it is the score. Nothing is learned. w is 128 in
the paper, whatever the model's width. (NeMo's first version of it lacks the cosine.)
"""

import torch
from torch import Tensor

from configs.check import within
from errors import UserError
from model.config import ModelConfig
from model.position.base import Position


class Sandwich(Position):
    form = "distance"

    def __init__(self, config: ModelConfig, *, base: float, width: int):
        super().__init__(config)
        if base <= 1:
            raise UserError(f"position.base={base} must be above 1")
        if width < 2 or width % 2:
            raise UserError(f"position.width={width} must be even and at least 2")
        within("position.width", width, 2, 2**16)
        self.frequencies = [base ** (-2 * i / width) for i in range(1, width // 2 + 1)]

    def distance(self, d: Tensor) -> Tensor:
        d = d.double()
        product = torch.zeros_like(d)
        for frequency in self.frequencies:  # all at once would take w/2 times the memory
            product = product + torch.cos(d * frequency)
        heads = torch.arange(1, self.config.n_heads + 1, device=d.device, dtype=d.dtype)
        ratio = (heads * 8 / self.config.n_heads).view(-1, *(1 for _ in d.shape))
        return (product - len(self.frequencies)) / ratio
