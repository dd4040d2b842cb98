"""Learned absolute positions: one trained vector for each position (Gehring et al. 2017; GPT-2).

There is no vector beyond the table, so the scheme is undefined there and says so (`max_length`),
unless `extend` says what to take instead, meant for evaluation:

- clamp: the last row, for every later position.
- interpolate: position / factor, between two rows, as Chen et al. 2023 do for RoPE; the table then
  lasts `factor` times as long.
- random: sorted random rows. Ruoss et al. 2023 (arXiv 2305.16843) draw as many rows as the text has
  tokens, without repetition, which a text longer than the table cannot have. So rows are drawn with
  repetition, once for `factor` times the table, from `seed`, and sorted.

Each is a function of the position alone, whatever the length of the text, so that a cached key never
has to change.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from configs.check import LONGEST, within
from errors import UserError
from model.config import ModelConfig
from model.position.base import Position, wide


class Learned(Position):
    def __init__(
        self,
        config: ModelConfig,
        *,
        rows: int | None,
        extend: Literal["clamp", "interpolate", "random"] | None,
        factor: float,
        seed: int,
    ):
        super().__init__(config)
        rows = config.context_length if rows is None else rows
        if rows < config.context_length:
            raise UserError(
                f"position.rows={rows} must be at least context_length={config.context_length}"
            )
        within("position.rows", rows, 1, LONGEST)
        within("position.factor", factor, 1, LONGEST / rows if extend == "random" else LONGEST)
        self.table = nn.Parameter(torch.empty(rows, config.d_model))
        self.extend, self.factor = extend, factor
        reach = int(rows * factor)
        self.max_length = {None: rows, "clamp": None}.get(extend, reach)
        # No buffer, and on the CPU always: not saved, and never without values.
        generator = torch.Generator("cpu").manual_seed(seed)
        count = reach if extend == "random" else 0
        self.drawn = torch.randint(rows, (count,), generator=generator, device="cpu").sort().values

    def reset(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.table, std=self.config.init_std, generator=generator)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.vectors(pos).type_as(x)

    def vectors(self, pos: Tensor) -> Tensor:
        """(*pos.shape, C)"""
        last = len(self.table) - 1
        if self.extend == "random":
            return self.table[self.drawn.to(pos.device)[pos]]
        if self.extend != "interpolate":
            return self.table[pos.clamp(max=last) if self.extend == "clamp" else pos]
        place = pos / self.factor
        low = place.floor()
        below, above = (wide(self.table[i.long().clamp(max=last)]) for i in (low, low + 1))
        return torch.lerp(below, above, (place - low)[..., None].to(below.dtype))
