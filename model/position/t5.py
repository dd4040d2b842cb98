"""T5's relative bias (Raffel et al. 2020, section 2.1): a learned score for buckets of distances.

Causal: half of the buckets hold one distance each, the other half grow logarithmically up to
`max_distance`, and the last holds everything beyond. The bias is added to the scaled q·k and not
scaled itself (T5 scales neither; x-transformers multiplies the bias by sqrt(d)). Each head has its
own row, the layers share the table; initialised normal(0, 1/sqrt(d_model)), all as in T5.
"""

import math

import torch
from torch import Tensor, nn

from configs.check import LONGEST, within
from errors import UserError
from model.config import ModelConfig
from model.position.base import Position, constant, wide


def bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance of each bucket but the first.

    T5 takes exact + floor(ln(d / exact) / ln(max_distance / exact) · rest) for each d in float32;
    starts found once give those buckets without a logarithm on the wrong side of a border.
    """
    exact = buckets // 2
    rest = buckets - exact
    grown = [exact * (max_distance / exact) ** (k / rest) for k in range(1, rest)]
    return list(range(1, exact + 1)) + [math.ceil(start - 1e-9) for start in grown]


class T5(Position):
    form = "distance"

    def __init__(self, config: ModelConfig, *, buckets: int, max_distance: int):
        super().__init__(config)
        within("position.buckets", buckets, 2, 2**16)
        within("position.max_distance", max_distance, 1, LONGEST)
        if max_distance <= buckets // 2:
            raise UserError(
                f"position.max_distance={max_distance} must be above half of position.buckets={buckets}"
            )
        self.starts = bucket_starts(buckets, max_distance)
        self.table = nn.Parameter(torch.empty(config.n_heads, buckets))

    def reset(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.table, std=self.config.d_model**-0.5, generator=generator)

    def distance(self, d: Tensor) -> Tensor:
        starts = constant(self.starts, torch.int64, d.device)
        return wide(self.table)[:, torch.bucketize(d, starts, right=True)]
