"""The shape of a model: everything that decides its weights except the position scheme.

Errors name the configuration key, because a shape that cannot be built is always somebody's
setting.
"""

import math
from dataclasses import dataclass
from typing import Literal

from configs.check import within
from errors import UserError

# Of a shape: far more than anybody builds, far less than takes for ever to refuse
MOST = {"d_model": 2**17, "n_layers": 2**12, "n_heads": 2**17, "n_kv_heads": 2**17, "d_ff": 2**20}


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    context_length: int  # inputs a training window; what a scheme may call its trained length
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int  # keys and values are shared by groups of n_heads / n_kv_heads query heads
    d_ff: int
    norm_eps: float
    tie_embeddings: bool  # the output layer is the token embedding
    softmax_scale: float | Literal["log"] | None  # see `scale` and `log_scale`

    init_std = 0.02  # of embeddings and projections (GPT-2), the same for every scheme

    def __post_init__(self) -> None:
        for key in ("vocab_size", "context_length"):
            if getattr(self, key) < 1:
                raise UserError(f"{key}={getattr(self, key)} must be at least 1")
        for key, most in MOST.items():
            within(f"model.{key}", getattr(self, key), 1, most)
        if self.d_model % self.n_heads:
            raise UserError(
                f"model.n_heads={self.n_heads} must divide model.d_model={self.d_model}"
            )
        if self.n_heads % self.n_kv_heads:
            raise UserError(
                f"model.n_kv_heads={self.n_kv_heads} must divide model.n_heads={self.n_heads}"
            )
        within("model.norm_eps", self.norm_eps, 1e-30, 1)
        self.check_softmax_scale()

    def check_softmax_scale(self) -> None:
        scale = self.softmax_scale
        if isinstance(scale, str):
            if scale != "log":
                raise UserError(f"model.softmax_scale={scale} must be a number, log or null")
            if self.context_length < 2:
                raise UserError("model.softmax_scale=log needs a context_length of at least 2")
        elif scale is not None:
            within("model.softmax_scale", scale, 1e-30, 1e6)

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def scale(self) -> float:
        """What multiplies q·k before the softmax."""
        scale = self.softmax_scale
        return self.d_head**-0.5 if scale is None or isinstance(scale, str) else scale

    @property
    def log_scale(self) -> float | None:
        """With softmax_scale "log", q·k is multiplied by this times ln(keys that the query sees), too.

        So that attention over more keys is no flatter: SSMax (Nakanishi 2025, arXiv 2501.19399).
        There the number is learned; here a query that sees context_length keys has the usual scale.
        """
        return 1 / math.log(self.context_length) if self.softmax_scale == "log" else None
