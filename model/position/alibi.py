"""ALiBi (Press, Smith, Lewis 2022): a penalty on the score that grows linearly with the distance.

The score of query i and key j gets -slope[h] · (i - j): a clock that runs backwards, c = -pos.
"""

import math

from torch import Tensor

from configs.check import within
from errors import UserError
from model.config import ModelConfig
from model.position.base import Clock, Position


def slopes(n_heads: int, exponent: float = 8.0) -> tuple[float, ...]:
    """One slope a head by the authors' rule (fairseq/models/transformer.py, get_slopes).

    For 2^k heads a geometric series from 2^(-exponent/n) to 2^-exponent. For other counts the
    series of the next lower power of two, then every second slope of the next higher one: not one
    series through all heads.
    """
    lower = 2 ** int(math.log2(n_heads))
    series = [2 ** (-exponent * (h + 1) / lower) for h in range(lower)]
    between = [2 ** (-exponent * (h + 1) / (2 * lower)) for h in range(0, 2 * lower, 2)]
    return tuple(series + between[: n_heads - lower])


class ALiBi(Position):
    form = "clock"

    def __init__(self, config: ModelConfig, *, exponent: float):
        super().__init__(config)
        if exponent <= 0:
            raise UserError(f"position.exponent={exponent} must be above 0")
        within("position.exponent", exponent, 0, 64)
        self.slopes = slopes(config.n_heads, exponent)

    def clock(self, x: Tensor, pos: Tensor, last: Tensor | None = None) -> Clock:
        c = -pos.float()
        return Clock(self.slopes, c.view(-1, 1, c.shape[-1]))
