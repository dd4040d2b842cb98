"""FoX, the forgetting transformer (Lin et al. 2025, arXiv 2503.02130): a penalty the text decides.

Each head reads a gate f = sigmoid(w·x + b) off the layer's normed input x at every token; the score
of query i and key j gets Σ ln f over the tokens after j up to i. As a clock: c is the running sum of
ln f, and the score gets c_i - c_j. Every layer has its own w and b. w starts normal(0, 0.02), b at
0 as released: each token halves what came before it (x-transformers starts b at 5). A gate that
ignores x is ALiBi. The paper's "pro" block (output gate, norms, shifts) is not part of it.

The sum is kept in float64: at 45,000, which it reaches after 65,536 tokens, neighbours in float32
are 0.004 apart.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.check import within
from model.config import ModelConfig
from model.position.base import Clock, Position, wide


class FoX(Position):
    form = "clock"
    per_layer = True

    def __init__(self, config: ModelConfig, *, bias: float):
        super().__init__(config)
        within("position.bias", bias, -100, 100)
        self.initial_bias = bias
        self.weight = nn.Parameter(torch.empty(config.n_heads, config.d_model))
        self.bias = nn.Parameter(torch.empty(config.n_heads))

    def reset(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.weight, std=self.config.init_std, generator=generator)
        nn.init.constant_(self.bias, self.initial_bias)

    def clock(self, x: Tensor, pos: Tensor, last: Tensor | None = None) -> Clock:
        with torch.autocast(x.device.type, enabled=False):
            x = wide(x)
            gates = F.logsigmoid(F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype)))
        c = gates.mT.double().cumsum(dim=-1)  # (B, H, T)
        return Clock((1.0,) * self.config.n_heads, c if last is None else c + last)
