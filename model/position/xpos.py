"""xPos (Sun et al. 2022, arXiv 2212.10554): RoPE whose pairs also fade with distance.

Beside the rotation, queries are multiplied by ζ^(m / scale_base) and keys by ζ^(-n / scale_base), so
their product by ζ^((m - n) / scale_base). For pair t of D/2, ζ = (2t/D + gamma) / (1 + gamma): the faster a
pair turns the sooner it fades. gamma = 0.4 and scale_base = 512 as released.

Those powers leave every number format (10^35 at position 32,768), while the product is tame: only
the difference m - n matters. The released code counts from the middle of the whole input, which
moves the overflow further out. Here each call counts from the middle of its own queries and asks for
at most `span` of them, about 4,000 with those numbers: queries and the keys near them then have
factors between 1/150 and 150, far keys go to zero as they should, and no length overflows, in
float16 too.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from configs.check import LONGEST, within
from errors import UserError
from model.config import ModelConfig
from model.position.rope import RoPE

REACH = 5.0  # natural logarithm of the largest factor that a query gets


class XPos(RoPE):
    family = None  # weights trained without fading know nothing of it

    def __init__(
        self,
        config: ModelConfig,
        *,
        base: float,
        layout: Literal["split_half", "interleaved"],
        gamma: float,
        scale_base: float,
    ):
        super().__init__(config, base=base, layout=layout, fraction=1.0, keep=1.0)
        if gamma <= 0:
            raise UserError(f"position.gamma={gamma} must be above 0")
        within("position.scale_base", scale_base, 1, 1e18)
        self.gamma, self.scale_base = gamma, scale_base
        steepest = math.log1p(1 / gamma) / scale_base  # a token, in the pair that fades soonest
        self.span = int(min(max(2 * REACH / max(steepest, 1e-30), 1), LONGEST))

    def rotate(
        self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, length: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        frequencies = self.frequencies(length, q.device)
        t = torch.arange(self.width // 2, device=q.device).to(frequencies.dtype)
        fading = ((2 * t / self.width + self.gamma) / (1 + self.gamma)).log() / self.scale_base
        middle = (q_pos.amin(-1, keepdim=True) + q_pos.amax(-1, keepdim=True)) // 2
        # Reached only where positions are strewn widely (random ones): finite rather than exact.
        limit = 8 if q.dtype == torch.float16 else 40

        def faded(x: Tensor, pos: Tensor, away: Tensor) -> Tensor:
            size = (away[..., None] * fading).clamp(-limit, limit).exp()
            return self.turn(x, *(wave * size for wave in self.waves(pos, frequencies)))

        return faded(q, q_pos, q_pos - middle), faded(k, k_pos, middle - k_pos)
