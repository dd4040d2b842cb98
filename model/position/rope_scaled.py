"""RoPE made to reach further than it was trained: other frequencies, all pairs by one rule.

`factor` s says how many times further, `original_context` L the length that the frequencies were
trained at. No weights are added, and factor 1 is plain RoPE (of the dynamic one up to L alone).
Scalings that treat pairs by their wavelength are in rope_by_parts.py and rope_yarn.py.
"""

from typing import Literal

import torch
from torch import Tensor

from configs.check import LONGEST, within
from model.config import ModelConfig
from model.position.rope import RoPE


class ScaledRoPE(RoPE):
    by_context = ("original_context",)

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
    ):
        super().__init__(config, base=base, layout=layout, fraction=fraction, keep=keep)
        within("position.factor", factor, 1, LONGEST)
        if original_context is not None:
            within("position.original_context", original_context, 1, LONGEST)
        self.factor = factor
        self.original_context = original_context or config.context_length

    def rebased(self, frequencies: Tensor, s: float | Tensor) -> Tensor:
        """Those of base · s^(R/(R-2)): the fastest pair as it was, the slowest slower by s.

        s: a number, or (..., 1) of them for frequencies (..., R/2).
        """
        t = torch.arange(len(frequencies), device=frequencies.device)
        return frequencies * s ** (-2 * t.to(frequencies.dtype) / max(self.width - 2, 1))


class LinearRoPE(ScaledRoPE):
    """Position interpolation (Chen et al. 2023, equation 4): position m counts as m / s."""

    def scaled(self, frequencies: Tensor, length: int | Tensor) -> Tensor:
        return frequencies / self.factor


class NTKRoPE(ScaledRoPE):
    """NTK-aware scaling (bloc97 2023; Peng et al. 2023, YaRN, equations 14 to 16): a larger base."""

    def scaled(self, frequencies: Tensor, length: int | Tensor) -> Tensor:
        return self.rebased(frequencies, self.factor)


class DynamicRoPE(ScaledRoPE):
    """Dynamic NTK (emozilla 2023): plain up to L, beyond it a base that grows with the text.

    As Hugging Face computes it, s' = s·l/L - (s - 1) for l tokens of a document; with s = 1 that is
    the l/L of YaRN's paper. All keys are turned anew when l grows. But beyond L what a cache keeps
    of a token, from the second layer on, was made when the text was shorter: decoding token by
    token equals one pass over the text up to L tokens, or in a single layer, and differs beyond.
    """

    def varies_at(self, length: int) -> bool:
        return length > self.original_context

    def scaled(self, frequencies: Tensor, length: int | Tensor) -> Tensor:
        L = self.original_context
        if isinstance(length, Tensor):
            beyond = (length - L).clamp(min=0)[..., None].to(frequencies.dtype) / L
        else:
            beyond = max(length - L, 0) / L
        return self.rebased(frequencies, 1 + self.factor * beyond)
