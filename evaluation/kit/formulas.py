"""Schemes as their papers write them, in float64: what is added to embeddings and to scores.

The reference that each scheme has to agree with, and so written apart from it: nothing of
`model/position` is called, and a bias is a full matrix over two positions, head by head. Slow, and
easy to check by eye. The rotary family is in rotary.py.

T tokens, C model width, H heads, D head width.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from model.config import ModelConfig


class Reference:
    """No positions (Haviv et al. 2022, Kazemnejad et al. 2023): what the others change."""

    relative = True  # a shift of all positions changes nothing

    def __init__(
        self, config: ModelConfig, settings: Mapping[str, Any], weights: Mapping[str, Tensor]
    ):
        self.config, self.settings, self.weights = config, settings, weights

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Token embeddings (T, C) with what the scheme adds to them."""
        return x

    def products(self, q: Tensor, k: Tensor, pos: Tensor) -> Tensor:
        """q_i · k_j (H, T, T) for unturned q and k (H, T, D)."""
        return q @ k.mT

    def bias(self, x: Tensor, pos: Tensor) -> Tensor:
        """What is added to the scaled products (H, T, T), for the layer's normed input x (T, C)."""
        return torch.zeros((), dtype=torch.float64)


# Absolute positions -------------------------------------------------------------------------------


class Learned(Reference):
    relative = False

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        table, s = self.weights["table"], self.settings
        rows = []
        drawn = torch.randint(  # sorted draws with repetition, `factor` for each row
            len(table),
            (int(len(table) * s["factor"]),),
            generator=torch.Generator().manual_seed(s["seed"]),
        )
        for p in pos.tolist():
            if s["extend"] == "interpolate":
                low, share = math.floor(p / s["factor"]), p / s["factor"] % 1
                rows.append((1 - share) * table[low] + share * table[min(low + 1, len(table) - 1)])
            elif s["extend"] == "random":
                rows.append(table[sorted(drawn.tolist())[int(p)]])
            else:
                rows.append(table[min(int(p), len(table) - 1) if s["extend"] else int(p)])
        return x + torch.stack(rows)


class Sinusoidal(Reference):
    """Vaswani et al. 2017, section 3.5.

    Each embedding is brought to the root mean square of a row of sines, 1/sqrt(2).
    """

    relative = False

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        C = self.config.d_model
        waves = torch.empty_like(x)
        for i in range(C):
            angle = pos / self.settings["base"] ** ((i - i % 2) / C)
            waves[:, i] = angle.sin() if i % 2 == 0 else angle.cos()
        square = x.pow(2).mean(-1, keepdim=True).clamp(min=1e-24)
        return x / (2 * square).sqrt() + waves


# Biases -------------------------------------------------------------------------------------------


class Bias(Reference):
    def bias(self, x: Tensor, pos: Tensor) -> Tensor:
        d = (pos[:, None] - pos[None, :]).clamp(min=0)
        return torch.stack([self.head(h, d) for h in range(self.config.n_heads)])

    def head(self, h: int, d: Tensor) -> Tensor:
        """The score of head h, counted from 0, for each distance."""
        raise NotImplementedError  # the formula of a paper, below


class ALiBi(Bias):
    """Press et al. 2022; heads that are no power of two as in the authors' repository."""

    def bias(self, x: Tensor, pos: Tensor) -> Tensor:
        d = pos[:, None] - pos[None, :]
        return torch.stack([-self.slope(h) * d for h in range(self.config.n_heads)])

    def slope(self, h: int) -> float:
        power, e = 2 ** math.floor(math.log2(self.config.n_heads)), self.settings["exponent"]
        if h < power:
            return 2 ** (-e * (h + 1) / power)
        return 2 ** (-e * (2 * (h - power) + 1) / (2 * power))


class T5(Bias):
    """Raffel et al. 2020, as Mesh TensorFlow computes causal buckets."""

    def head(self, h: int, d: Tensor) -> Tensor:
        buckets, exact = self.settings["buckets"], self.settings["buckets"] // 2
        growth = torch.log(d.clamp(min=1) / exact) / math.log(self.settings["max_distance"] / exact)
        large = (exact + growth * (buckets - exact) + 1e-12).floor().clamp(max=buckets - 1)
        return self.weights["table"][h][torch.where(d < exact, d, large).long()]


class KerpleLog(Bias):
    """Chi et al. 2022, equation 7. The weights are stored as what softplus makes positive."""

    def head(self, h: int, d: Tensor) -> Tensor:
        r1, r2 = (torch.log(1 + self.weights[key][h].exp()) for key in ("raw_r1", "raw_r2"))
        return -r1 * torch.log(1 + r2 * d)


class KerplePower(Bias):
    """Chi et al. 2022, equation 6, 0 < r2 < 2."""

    def head(self, h: int, d: Tensor) -> Tensor:
        r1 = torch.log(1 + self.weights["raw_r1"][h].exp())
        r2 = 2 / (1 + torch.exp(-self.weights["raw_r2"][h]))
        return -r1 * torch.where(d > 0, d.clamp(min=1) ** r2, 0.0)


class Sandwich(Bias):
    """Chi et al. 2023, section 5; less the value at distance 0, which a softmax cannot see."""

    def head(self, h: int, d: Tensor) -> Tensor:
        width, ratio = self.settings["width"], (h + 1) * 8 / self.config.n_heads
        return sum(
            (torch.cos(d / self.settings["base"] ** (2 * i / width)) - 1) / ratio
            for i in range(1, width // 2 + 1)
        )  # type: ignore[return-value]


class FIRE(Reference):
    """Li et al. 2024, equation 9 with the appendix's epsilon."""

    relative = False

    def bias(self, x: Tensor, pos: Tensor) -> Tensor:
        w, L = self.weights, self.settings["threshold"]
        L = self.config.context_length / 4 if L is None else L
        d, c = (pos[:, None] - pos[None, :]).clamp(min=0), w["c"].abs()
        reach = torch.maximum(pos, (w["multiplier"] * L).abs())[:, None]
        share = torch.log(c * d + 1) / (torch.log(c * reach + 1) + 1e-6)
        hidden = [(share * a + b).clamp(min=0) for a, b in zip(w["w1"], w["b1"], strict=True)]
        heads = [
            sum(a * y for a, y in zip(row, hidden, strict=True)) + b
            for row, b in zip(w["w2"], w["b2"], strict=True)
        ]
        return torch.stack(heads)  # type: ignore[arg-type]


class FoX(Reference):
    """Lin et al. 2025, equation 6: Σ ln f_l over the tokens l after j up to i."""

    def bias(self, x: Tensor, pos: Tensor) -> Tensor:
        gates = torch.sigmoid(x @ self.weights["weight"].T + self.weights["bias"])  # (T, H)
        total = torch.zeros(gates.shape[1], len(x), len(x), dtype=torch.float64)
        for token in range(len(x)):
            inside = torch.zeros(len(x), len(x), dtype=torch.float64)
            inside[token:, :token] = 1  # queries from it on, keys before it
            total = total + gates[token].log()[:, None, None] * inside
        return total
