"""Sinusoidal absolute positions (Vaswani et al. 2017, section 3.5), added to the token embeddings.

The paper multiplies embeddings by sqrt(d_model) so that neither part drowns the other. A constant
does not last: here embeddings grow sixfold in the first minutes of training, the sines stay as they
are, and the model hardly sees them any more. So each token's embedding is brought to the root mean
square of a row of sines and cosines, 1/sqrt(2), at any time and width; the first norm of the model
would have taken its length away anyhow.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from errors import UserError
from model.config import ModelConfig
from model.position.base import Position


class Sinusoidal(Position):
    def __init__(self, config: ModelConfig, *, base: float):
        super().__init__(config)
        if base <= 1:
            raise UserError(f"position.base={base} must be above 1")
        self.base = base

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=1e-12) * 0.5**0.5 + self.waves(pos).type_as(x)

    def waves(self, pos: Tensor) -> Tensor:
        """(*pos.shape, C): channel 2t is sin(pos · base^(-2t/C)), channel 2t + 1 its cosine."""
        width = self.config.d_model
        exponent = torch.arange(0, width, 2, device=pos.device, dtype=torch.float64)
        angles = pos[..., None] * self.base ** (-exponent / width)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]
