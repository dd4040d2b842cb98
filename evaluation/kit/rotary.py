"""The rotary family as the papers write it, in float64: see formulas.py.

A frequency is a scalar formula of one pair, and a score is a sum of complex numbers over the
difference of two positions: nothing is ever rotated.

R rotated channels of D, H heads, T tokens.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evaluation.kit.formulas import Reference
from model.config import ModelConfig


class RoPE(Reference):
    """RoFormer (Su et al. 2021), equation 16: Re Σ q_t conj(k_t) e^(i (m - n) θ_t)."""

    amplitude = 1.0  # of q and of k

    @property
    def R(self) -> int:
        return int(self.config.d_head * self.settings.get("fraction", 1))

    def frequency(self, t: int, n: int) -> float:
        """θ_t for a text of n tokens."""
        return self.settings["base"] ** (-2 * t / self.R)

    def fading(self, t: int, d: Tensor) -> Tensor:
        return torch.ones_like(d)

    def products(self, q: Tensor, k: Tensor, pos: Tensor) -> Tensor:
        d = pos[:, None] - pos[None, :]
        turning = math.floor(self.settings.get("keep", 1) * (self.R // 2))
        total = q[..., self.R :] @ k[..., self.R :].mT
        for t in range(self.R // 2):
            angle = d * (self.frequency(t, len(pos)) if t < turning else 0.0)
            turn = torch.polar(self.fading(t, d), angle)
            z = self.pair(q, t)[:, :, None] * self.pair(k, t).conj()[:, None, :]
            total = total + self.amplitude**2 * (z * turn).real
        return total

    def pair(self, x: Tensor, t: int) -> Tensor:
        """Channels of pair t as complex numbers (H, T)."""
        a, b = (2 * t, 2 * t + 1)
        if self.settings["layout"] == "split_half":
            a, b = (t, t + self.R // 2)
        return torch.complex(x[..., a], x[..., b])


class Linear(RoPE):
    """Position interpolation (Chen et al. 2023), equation 4."""

    def frequency(self, t: int, n: int) -> float:
        return super().frequency(t, n) / self.settings["factor"]


class NTK(RoPE):
    """bloc97 2023: base' = base · s^(R/(R-2))."""

    def scale(self, n: int) -> float:
        return self.settings["factor"]

    def frequency(self, t: int, n: int) -> float:
        base = self.settings["base"] * self.scale(n) ** (self.R / (self.R - 2))
        return base ** (-2 * t / self.R)


class Dynamic(NTK):
    """emozilla 2023, as transformers computes it: s' = s · l/L - (s - 1) beyond L tokens."""

    def scale(self, n: int) -> float:
        s, L = self.settings["factor"], original(self.config, self.settings)
        return s * max(n, L) / L - (s - 1)


def original(config: ModelConfig, settings: Mapping[str, Any]) -> int:
    given = settings["original_context"]
    return config.context_length if given is None else given


class ByParts(RoPE):
    """NTK-by-parts (Peng et al. 2023), equations 11 to 13."""

    def gamma(self, t: int, n: int) -> float:
        turns = original(self.config, self.settings) * super().frequency(t, n) / (2 * math.pi)
        low, high = self.settings["alpha"], self.settings["beta"]
        return min(1.0, max(0.0, (turns - low) / (high - low)))

    def frequency(self, t: int, n: int) -> float:
        plain, g = super().frequency(t, n), self.gamma(t, n)
        return (1 - g) * plain / self.settings["factor"] + g * plain


class YaRN(ByParts):
    """Peng et al. 2023, section 3.4; `code`: jquesnelle/yarn, a line between two pair indices."""

    @property
    def amplitude(self) -> float:  # type: ignore[override]
        return self.settings["temperature"] * math.log(self.settings["factor"]) + 1

    def gamma(self, t: int, n: int) -> float:
        if self.settings["ramp"] == "paper":
            return super().gamma(t, n)

        def index(turns: float) -> float:
            L, base = original(self.config, self.settings), self.settings["base"]
            return self.R * math.log(L / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(index(self.settings["beta"])), 0)
        high = min(math.ceil(index(self.settings["alpha"])), self.R - 1)
        high = high + 0.001 if low == high else high
        return 1 - min(1.0, max(0.0, (t - low) / (high - low)))


class Llama3(RoPE):
    """Llama 3.1's released code: three ranges of wavelengths."""

    def frequency(self, t: int, n: int) -> float:
        plain, L = super().frequency(t, n), original(self.config, self.settings)
        low, high = self.settings["alpha"], self.settings["beta"]
        wavelength = 2 * math.pi / plain
        if wavelength < L / high:
            return plain
        if wavelength > L / low:
            return plain / self.settings["factor"]
        smooth = (L / wavelength - low) / (high - low)
        return (1 - smooth) * plain / self.settings["factor"] + smooth * plain


class XPos(RoPE):
    """Sun et al. 2022, equation 13: the product of pair t fades as ζ_t^((m - n) / scale_base)."""

    def fading(self, t: int, d: Tensor) -> Tensor:
        gamma = self.settings["gamma"]
        zeta = (2 * t / self.R + gamma) / (1 + gamma)
        return zeta ** (d / self.settings["scale_base"])
