"""YaRN (Peng et al. 2023, arXiv 2309.00071): RoPE scaled by parts, and scores sharpened.

Cosines and sines are multiplied by 1 + temperature · ln s (equation 22: sqrt(1/t)), so q·k by its
square. The paper's ramp is a line in turns (`paper`); the released code's is a line in the channel
index between the pairs that make `beta` and `alpha` turns, rounded outwards (`code`, as in Hugging
Face): different frequencies for the same settings.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from configs.check import within
from model.config import ModelConfig
from model.position.rope_by_parts import ByPartsRoPE


class YaRN(ByPartsRoPE):
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
        ramp: Literal["paper", "code"],
        temperature: float,
    ):
        scaling = {
            "factor": factor,
            "original_context": original_context,
            "alpha": alpha,
            "beta": beta,
        }
        super().__init__(config, base=base, layout=layout, fraction=fraction, keep=keep, **scaling)
        within("position.temperature", temperature, 0, 100)
        self.by_index = ramp == "code"
        self.amplitude = 1 + temperature * math.log(factor)

    def kept(self, frequencies: Tensor) -> Tensor:
        if not self.by_index:
            return super().kept(frequencies)
        low = max(math.floor(self.index(self.beta)), 0)
        high = min(math.ceil(self.index(self.alpha)), self.width - 1)
        t = torch.arange(len(frequencies), device=frequencies.device, dtype=frequencies.dtype)
        return 1 - ((t - low) / max(high - low, 0.001)).clamp(0, 1)

    def index(self, turns: float) -> float:
        """The index of the pair, a fraction, that makes so many turns within the trained length."""
        share = math.log(self.original_context / (2 * math.pi * turns)) / math.log(self.base)
        return share * self.width / 2
