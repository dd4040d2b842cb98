"""RoPE, rotary position embedding (Su et al. 2021, RoFormer, equations 14 to 16, 34).

Pair t of a head's channels is turned by the angle pos · base^(-2t/R), R the number of rotated
channels, so that q·k depends on the difference of positions alone. RoFormer pairs neighbours
(`interleaved`); the default here pairs channel t with channel t + R/2 (`split_half`, as GPT-NeoX
and Hugging Face's Llama), the same function up to a permutation of channels.

Partial RoPE (`fraction`, GPT-NeoX) turns the first channels only, with frequencies spread over
those. p-RoPE (`keep`, Barbero et al. 2025, arXiv 2410.06205) keeps the frequencies and stops the
slowest pairs: 1 is RoPE, 0 is no positions at all.
"""

from typing import Literal

import torch
from torch import Tensor

from errors import UserError
from model.config import ModelConfig
from model.position.base import Position, wide


def waves(pos: Tensor, frequencies: Tensor, amplitude: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (*pos.shape, R/2) of pos · frequencies."""
    angles = pos[..., None] * frequencies
    return angles.cos() * amplitude, angles.sin() * amplitude


# As one operator: torch.compile would compute the cosines anew for every head, query and key.
opaque_waves = torch.library.custom_op("lengthwise::waves", waves, mutates_args=())


@opaque_waves.register_fake
def shapes(pos: Tensor, frequencies: Tensor, amplitude: float) -> tuple[Tensor, Tensor]:
    shape = (*pos.shape, *frequencies.shape)
    return frequencies.new_empty(shape), frequencies.new_empty(shape)


class RoPE(Position):
    family = "rotary"
    amplitude = 1.0  # multiplies every cosine and sine, once

    def __init__(
        self,
        config: ModelConfig,
        *,
        base: float,
        layout: Literal["split_half", "interleaved"],
        fraction: float,
        keep: float,
    ):
        super().__init__(config)
        if base <= 1:
            raise UserError(f"position.base={base} must be above 1")
        if not 0 < fraction <= 1:
            raise UserError(f"position.fraction={fraction} must be above 0 and at most 1")
        if not 0 <= keep <= 1:
            raise UserError(f"position.keep={keep} must be between 0 and 1")
        self.width = int(config.d_head * fraction)
        if self.width % 2 or self.width < 2:
            raise UserError(
                f"position.fraction={fraction} of {config.d_head} channels a head (model.d_model,"
                " model.n_heads) must be an even number: rotary positions turn pairs"
            )
        self.base = base
        self.turning = int(keep * self.width // 2)  # pairs
        self.layout = SplitHalf() if layout == "split_half" else Interleaved()

    def frequencies(self, length: int | Tensor, device: torch.device) -> Tensor:
        """(R/2,) or (*length.shape, R/2) angle in radians that each pair turns per position."""
        t = torch.arange(self.width // 2, device=device)
        plain = self.base ** (-2 * t.double() / self.width)  # in float32: 4e-3 off at 65,536
        return torch.where(t < self.turning, self.scaled(plain, length), 0)

    def scaled(self, frequencies: Tensor, length: int | Tensor) -> Tensor:
        """Where scalings speak: other frequencies than the plain ones (R/2,), perhaps by `length`."""
        return frequencies

    def rotate(
        self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, length: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        frequencies = self.frequencies(length, q.device)
        k_waves = self.waves(k_pos, frequencies)
        # by document there is a row of frequencies a key, and the queries are the last of them
        own = frequencies[..., -q.shape[2] :, :] if frequencies.dim() > 1 else frequencies
        q_waves = k_waves if q_pos is k_pos else self.waves(q_pos, own)
        return self.turn(q, *q_waves), self.turn(k, *k_waves)

    def waves(self, pos: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        compute = opaque_waves if torch.compiler.is_compiling() else waves
        return compute(pos, frequencies, self.amplitude)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, H, T, D), the first R channels turned, in float32 whatever x is; waves (..., T, R/2)."""
        front = wide(x[..., : self.width])
        cos, sin = (a.unsqueeze(-3).to(front.dtype) for a in (cos, sin))  # one for all heads
        # (a cos - b sin, b cos + a sin) of all pairs at once: whole rows are quicker than halves
        cos, sin = self.layout.join(cos, cos), self.layout.join(-sin, sin)
        turned = torch.addcmul(front * cos, self.layout.swap(front), sin).type_as(x)
        rest = x[..., self.width :]
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


class SplitHalf:
    """Channel t is paired with channel t + R/2."""

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat((a, b), dim=-1)

    def swap(self, x: Tensor) -> Tensor:
        return x.roll(x.shape[-1] // 2, dims=-1)


class Interleaved:
    """Channel 2t is paired with channel 2t + 1."""

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.stack((a, b), dim=-1).flatten(-2)

    def swap(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
