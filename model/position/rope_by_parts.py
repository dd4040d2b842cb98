"""RoPE scaled by wavelength: slow pairs interpolated, fast pairs kept, those between mixed.

A pair makes r = L · frequency / 2π turns within the trained length L. With gamma = 0 below `alpha` turns,
1 above `beta` and a straight line between, its frequency becomes (1 - gamma) · frequency / s + gamma ·
frequency (Peng et al. 2023, YaRN, equations 17 to 20). Llama 3.1 is exactly this with alpha = 1 and
beta = 4 (its low_freq_factor and high_freq_factor), so it has no class of its own.
"""

import math
from typing import Literal

from torch import Tensor

from configs.check import LONGEST, within
from errors import UserError
from model.config import ModelConfig
from model.position.rope_scaled import ScaledRoPE


class ByPartsRoPE(ScaledRoPE):
    def __init__(
        self,
        config: ModelConfig,
        *,
        base: float,
        layout: Literal["split_half", "interleaved"],
        fraction: float,
        keep: float,
        factor: float,
        original_context: int | None,
        alpha: float,
        beta: float,
    ):
        rope = {"base": base, "layout": layout, "fraction": fraction, "keep": keep}
        super().__init__(config, **rope, factor=factor, original_context=original_context)
        if not 0 < alpha < beta:
            raise UserError(
                f"position.alpha={alpha} must be above 0 and below position.beta={beta}"
            )
        for key, turns in (("alpha", alpha), ("beta", beta)):
            within(f"position.{key}", turns, 1e-9, LONGEST)
        self.alpha, self.beta = alpha, beta

    def scaled(self, frequencies: Tensor, length: int | Tensor) -> Tensor:
        gamma = self.kept(frequencies)
        return (1 - gamma) * frequencies / self.factor + gamma * frequencies

    def kept(self, frequencies: Tensor) -> Tensor:
        """gamma (R/2,): how much of each frequency is kept, by its turns."""
        turns = self.original_context * frequencies / (2 * math.pi)
        return ((turns - self.alpha) / (self.beta - self.alpha)).clamp(0, 1)
