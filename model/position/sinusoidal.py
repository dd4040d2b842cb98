"""Sinusoidal absolute positions (Vaswani et al. 2017, section 3.5), added to the token embeddings.

The paper multiplies embeddings by sqrt(d_model) so that neither part drowns the other. Here that
factor is chosen so that at initialisation both have the same root mean square, whatever the width:
a row of sines and cosines has 1/sqrt(2).
"""

import torch
from torch import Tensor

from errors import UserError
from model.config import ModelConfig
from model.position.base import Position, angle_dtype


class Sinusoidal(Position):
    def __init__(self, config: ModelConfig, *, base: float):
        super().__init__(config)
        if base <= 1:
            raise UserError(f"position.base={base} must be above 1")
        self.base = base
        self.token_scale = 0.5**0.5 / config.init_std

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x * self.token_scale + self.waves(pos).type_as(x)

    def waves(self, pos: Tensor) -> Tensor:
        """(*pos.shape, C): channel 2t is sin(pos · base^(-2t/C)), channel 2t + 1 its cosine."""
        width = self.config.d_model
        exponent = torch.arange(0, width, 2, device=pos.device, dtype=angle_dtype(pos.device))
        angles = pos[..., None] * self.base ** (-exponent / width)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]
